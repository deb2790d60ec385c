//! Programs of libpcap's on our libpcap and on the system's: the highest rate without loss, and CPU time per packet.
//!
//! ```text
//!   tcpdump -w /dev/null             every packet
//!   tcpdump -w /dev/null FILTER      one packet of 256
//!   softflowd                        every packet, to flows
//! ```
//!
//! Each is the same program, started as it is, by `wirelane run`, and by `wirelane run --take`, which keeps the packets from
//! the host's stack. Traffic is live frames of 256 flows: a driver's own, before there is an sk_buff. What a device has to
//! make of an sk_buff before XDP sees it is the other parts' matter.
//!
//! First all of them take what they can while the generator runs as fast as it can, each once in a round; in setup B it is
//! seen what of a packet's time is the program's, and what NAPI's, the capture and the host's stack in it. Then their highest
//! rates are searched for.
//!
//! Each search is one of `search`, for a loss of 0.5 % and for none. Afterwards all run at one rate, four fifths of what
//! the slowest one takes, for the program's CPU time. (NAPI's thread is woken for each handful of packets at such rates, and that
//! is what its time is then.)

pub mod report;
mod trial;

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use serde::Serialize;

use crate::bed::{Bed, Cores, Setup};
use crate::options::{Options, USUAL_MTU};
use crate::run::is_installed;
use crate::search::{Found, Length, Outcome, search};
use crate::summary::Spread;
use crate::trial::{NOT_REACHED, Tools};
pub use trial::Point;

/// What a program does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// tcpdump writes every packet to /dev/null.
    Write,
    /// The same with a filter that rejects 255 of 256.
    Filter,
    /// softflowd makes flows of all packets.
    Flows,
}

impl Work {
    /// All of them.
    const ALL: [Work; 3] = [Work::Write, Work::Filter, Work::Flows];

    /// For people.
    pub fn label(self) -> &'static str {
        match self {
            Work::Write => "tcpdump -w /dev/null",
            Work::Filter => "the same, 1 of 256 wanted",
            Work::Flows => "softflowd",
        }
    }

    /// How many times the system's rate ours is to reach.
    pub fn target(self) -> f64 {
        if self == Work::Filter { 2.0 } else { 1.5 }
    }

    fn program(self) -> &'static str {
        if self == Work::Flows { "softflowd" } else { "tcpdump" }
    }
}

/// Whose libpcap a program uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Whose {
    /// The system's.
    System,
    /// Ours, by `wirelane run`.
    Ours,
    /// Ours, by `wirelane run --take`.
    Taken,
}

impl Whose {
    const ALL: [Whose; 3] = [Whose::System, Whose::Ours, Whose::Taken];

    /// For people.
    pub fn label(self) -> &'static str {
        match self {
            Whose::System => "the system's",
            Whose::Ours => "Wirelane's",
            Whose::Taken => "Wirelane's, taken",
        }
    }

    fn is_ours(self) -> bool {
        matches!(self, Whose::Ours | Whose::Taken)
    }
}

/// What one program does with one size of frames.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// Who works where.
    pub setup: Setup,
    /// What.
    pub work: Work,
    /// Bytes of a frame.
    pub size: u32,
    /// Packets a second that were judged at full speed.
    pub full: BTreeMap<Whose, Spread>,
    /// These as ratios to the system's within each round.
    pub ratios: BTreeMap<Whose, Spread>,
    /// Nanoseconds of the program's CPU time per packet that was judged at full speed.
    pub full_ns: BTreeMap<Whose, Spread>,
    /// The same of NAPI's thread; in setup B only.
    pub napi_ns: BTreeMap<Whose, Spread>,
    /// What the searches found: for a loss of 0.5 %, and for none; empty where they were not run.
    pub found: BTreeMap<Whose, Vec<Found>>,
    /// Nanoseconds of the program's CPU time per packet that was not lost, all at one rate.
    pub cpu_ns: BTreeMap<Whose, Spread>,
}

/// What was measured.
#[derive(Debug, Default)]
pub struct Compared {
    /// By setup, work and size.
    pub cells: Vec<Cell>,
    /// Every trial.
    pub points: Vec<Point>,
    /// What could not be measured, and why.
    pub failed: Vec<String>,
}

const GOALS: [f64; 2] = [0.005, 0.0];
/// Seconds of a short trial, and of one that confirms.
const SHORT: f64 = 0.25;
const LONG: f64 = 0.9;
/// Trials after which a search for one goal ends.
const MOST_TRIALS: usize = 24;
const QUICK_TRIALS: usize = 8;
/// Trials of CPU time with each library, in turn.
const COST_TRIALS: usize = 5;
/// The rate of these, of the lower of the two that were found.
const COST_RATE: f64 = 0.8;
/// Largest frames that are measured where no sizes were chosen: the smallest, and those of an average.
const SIZES: usize = 2;

/// Measures everything; what there is when `check` ends it stays in `compared`.
///
/// # Errors
/// Where a bed cannot be made, and that of `check`.
pub fn measure(
    options: &Options,
    tools: &Tools,
    check: &dyn Fn() -> Result<()>,
    say: &dyn Fn(&str),
    compared: &mut Compared,
) -> Result<()> {
    let [generator, receiver] = options.cores[..] else { anyhow::bail!("--cores: give two") };
    let cores = Cores { generator, receiver, nice: options.nice };
    for work in Work::ALL.iter().filter(|work| !is_installed(work.program())) {
        compared.failed.push(format!("{}: {} is not installed", work.label(), work.program()));
    }
    for setup in &options.setups {
        for size in options.sizes.iter().take(SIZES) {
            for work in Work::ALL.into_iter().filter(|work| is_installed(work.program())) {
                compared.cells.push(Cell {
                    setup: *setup,
                    work,
                    size: *size,
                    full: BTreeMap::new(),
                    ratios: BTreeMap::new(),
                    full_ns: BTreeMap::new(),
                    napi_ns: BTreeMap::new(),
                    found: BTreeMap::new(),
                    cpu_ns: BTreeMap::new(),
                });
            }
        }
    }
    for searches in [false, true] {
        for cell in &mut compared.cells {
            let what = format!("{}, setup {}, {} bytes", cell.work.label(), cell.setup.name(), cell.size);
            say(&format!("libpcap: {}{what}", if searches { "loss-free rate: " } else { "" }));
            let mut bed = Bed::new(cell.setup, USUAL_MTU, cores)?;
            let mut runner = Runner { bed: &mut bed, tools, options, check, points: &mut compared.points };
            let done = if searches { runner.searches(cell) } else { runner.full_speed(cell) };
            if let Err(error) = done {
                check()?;
                say(&format!("failed: {what}: {error:#}"));
                compared.failed.push(format!("{what}: {error:#}"));
            }
        }
    }
    Ok(())
}

struct Runner<'a> {
    bed: &'a mut Bed,
    tools: &'a Tools,
    options: &'a Options,
    check: &'a dyn Fn() -> Result<()>,
    points: &'a mut Vec<Point>,
}

impl Runner<'_> {
    fn full_speed(&mut self, cell: &mut Cell) -> Result<()> {
        let mut rates = BTreeMap::<_, Vec<_>>::new();
        let (mut ratios, mut costs, mut napi) = (rates.clone(), rates.clone(), rates.clone());
        for _ in 0..self.options.rounds {
            let mut system = None;
            for whose in Whose::ALL {
                let point = self.trial(cell, whose, None, self.options.seconds)?;
                if point.invalid.is_some() && !self.options.disturbed {
                    continue;
                }
                let pps = point.judged_pps();
                rates.entry(whose).or_default().push(pps);
                costs.entry(whose).or_default().push(point.receiver_ns());
                if cell.setup == Setup::B {
                    napi.entry(whose).or_default().push(point.napi_ns());
                }
                if whose == Whose::System {
                    system = Some(pps);
                } else if let Some(system) = system {
                    ratios.entry(whose).or_default().push(pps / system);
                }
            }
        }
        cell.full = spreads(rates);
        cell.ratios = spreads(ratios);
        [cell.full_ns, cell.napi_ns] = [costs, napi].map(spreads);
        Ok(())
    }

    fn searches(&mut self, cell: &mut Cell) -> Result<()> {
        for whose in Whose::ALL {
            let found = self.search(cell, whose)?;
            cell.found.insert(whose, found);
        }
        let best = |found: &Vec<Found>| found.iter().filter_map(|one| one.rate).fold(0.0, f64::max);
        let lowest = cell.found.values().map(best).fold(f64::INFINITY, f64::min);
        ensure!(lowest > 0.0, "no rate was found at which nothing is lost");
        let mut costs = BTreeMap::<_, Vec<_>>::new();
        for _ in 0..COST_TRIALS {
            for whose in Whose::ALL {
                let point = self.trial(cell, whose, Some(COST_RATE * lowest), LONG)?;
                if point.invalid.is_none() || self.options.disturbed {
                    costs.entry(whose).or_default().push(point.receiver_ns());
                }
            }
        }
        cell.cpu_ns = spreads(costs);
        Ok(())
    }

    fn search(&mut self, cell: &Cell, whose: Whose) -> Result<Vec<Found>> {
        // What it took at full speed is near.
        let start = match cell.full.get(&whose) {
            Some(full) => full.median,
            None => self.trial(cell, whose, None, self.options.seconds)?.judged_pps(),
        };
        let most = if self.options.quick { QUICK_TRIALS } else { MOST_TRIALS };
        let disturbed = self.options.disturbed;
        search(start, &GOALS, most, &mut |rate, length| {
            let seconds = if length == Length::Long { LONG } else { SHORT };
            let point = self.trial(cell, whose, Some(rate), seconds)?;
            let loss = point.loss();
            Ok(match point.invalid {
                Some(NOT_REACHED) => Outcome::Invalid,
                Some(_) if loss > 0.0 && !disturbed => Outcome::Disturbed(loss),
                _ => Outcome::Loss(loss),
            })
        })
    }

    fn trial(&mut self, cell: &Cell, whose: Whose, rate: Option<f64>, seconds: f64) -> Result<Point> {
        (self.check)()?;
        let Cell { setup, work, size, .. } = *cell;
        let point = trial::Trial { setup, work, whose, size, rate, seconds }.run(self.bed, self.tools)?;
        self.points.push(point.clone());
        Ok(point)
    }
}

fn spreads(of: BTreeMap<Whose, Vec<f64>>) -> BTreeMap<Whose, Spread> {
    of.into_iter().filter_map(|(whose, values)| Some((whose, Spread::of(values)?))).collect()
}
