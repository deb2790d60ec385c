//! Programs of libpcap's on our libpcap and on the system's: the highest rate without loss, and CPU time per packet.
//!
//! ```text
//!   tcpdump -w /dev/null             every packet
//!   tcpdump -w /dev/null FILTER      one packet of 256
//!   softflowd                        every packet, to flows
//! ```
//!
//! Each is the same program, started as it is and by `wirelane run`. Traffic is live frames of 256 flows: a driver's own,
//! before there is an sk_buff. What a device has to make of an sk_buff before XDP sees it is the other parts' matter.
//!
//! First all of them take what they can while the generator runs as fast as it can, both libraries in each round. Then
//! their highest rates are searched for.
//!
//! Each search is one of `search`, for a loss of 0.5 % and for none. Afterwards both run at one rate, four fifths of what
//! the slower one takes, for the program's CPU time. (NAPI's thread is woken for each handful of packets at such rates, and that
//! is what its time is then.)

pub mod report;
mod trial;

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
}

impl Whose {
    const ALL: [Whose; 2] = [Whose::System, Whose::Ours];
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
    /// Packets a second that were judged at full speed, with the system's libpcap and with ours, and the ratio of ours to
    /// the system's within each round.
    pub full: [Option<Spread>; 3],
    /// What the searches found with the system's libpcap: for a loss of 0.5 %, and for none; empty where they were not run.
    pub system: Vec<Found>,
    /// The same with ours.
    pub ours: Vec<Found>,
    /// Nanoseconds of the program's CPU time per packet that was not lost, with the system's.
    pub system_ns: Option<Spread>,
    /// The same with ours.
    pub ours_ns: Option<Spread>,
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
                    full: [None; 3],
                    system: Vec::new(),
                    ours: Vec::new(),
                    system_ns: None,
                    ours_ns: None,
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
        let mut rates = [Vec::new(), Vec::new(), Vec::new()];
        for _ in 0..self.options.rounds {
            let mut both = Vec::new();
            for whose in Whose::ALL {
                let point = self.trial(cell, whose, None, self.options.seconds)?;
                if point.invalid.is_none() || self.options.disturbed {
                    both.push(point.judged_pps());
                }
            }
            if let [system, ours] = both[..] {
                rates[0].push(system);
                rates[1].push(ours);
                rates[2].push(ours / system);
            }
        }
        cell.full = rates.map(Spread::of);
        Ok(())
    }

    fn searches(&mut self, cell: &mut Cell) -> Result<()> {
        cell.system = self.search(cell, Whose::System)?;
        cell.ours = self.search(cell, Whose::Ours)?;
        let best = |found: &[Found]| found.iter().filter_map(|one| one.rate).fold(0.0, f64::max);
        let lower = best(&cell.system).min(best(&cell.ours));
        ensure!(lower > 0.0, "no rate was found at which nothing is lost");
        let mut costs = [Vec::new(), Vec::new()];
        for _ in 0..COST_TRIALS {
            for (whose, costs) in Whose::ALL.into_iter().zip(&mut costs) {
                let point = self.trial(cell, whose, Some(COST_RATE * lower), LONG)?;
                if point.invalid.is_none() || self.options.disturbed {
                    costs.push(point.receiver_ns());
                }
            }
        }
        [cell.system_ns, cell.ours_ns] = costs.map(Spread::of);
        Ok(())
    }

    fn search(&mut self, cell: &Cell, whose: Whose) -> Result<Vec<Found>> {
        // What it took at full speed is near.
        let start = match (whose, cell.full[0], cell.full[1]) {
            (Whose::System, Some(full), _) | (Whose::Ours, _, Some(full)) => full.median,
            _ => self.trial(cell, whose, None, self.options.seconds)?.judged_pps(),
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
