//! The studies, each in rounds of its own: what changes on the machine meanwhile hits all cells of a round alike.

use std::io::{Write, stderr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use super::rules::{self, FLOWS, InSet, Others, Rest, RuleFiles};
use super::trial::{self, Ask, Traffic};
use super::{ELEPHANT, FULL_SPEED, Point, Series, Study};
use crate::bed::{Bed, Cores, Setup};
use crate::options::{LARGEST_LIVE_FRAME, Options, USUAL_MTU};
use crate::trial::Tools;

/// How often a trial is tried that something else decides.
const TRIES: usize = 3;
const QUICK_TRIES: usize = 2;

/// RX queues, workers and applications.
const COUNTS: [usize; 4] = [1, 2, 4, 8];

/// Offered rates of the study of congestion, in percent of what the analysis can do; those of further loads.
const FACTORS: [u32; 6] = [50, 100, 150, 200, 400, FULL_SPEED];
const FURTHER_FACTORS: [u32; 3] = [100, 200, FULL_SPEED];
/// Its ring in MiB: one that fills soon, so that a trial is mostly what comes after that.
const SMALL_RING: u32 = 1;
/// Its trials are this many times longer than others, up to what processes may run that go first.
const LONGER: f64 = 2.0;
const LONGEST: f64 = 0.9;

/// The study of skew: workers, the exponent of Zipf's law, loops per packet (the lighter load of the papers), the
/// offered rate as a part of what the workers can do (the elephant alone must not be too much for one), and the least
/// length of a trial in seconds: two seconds for balance to find its place, and as long again to look at it.
const SKEW_WORKERS: usize = 4;
const ZIPF: f64 = 1.0;
const SKEW_LOAD: u32 = 1000;
const SKEW_RATE: f64 = 0.5;
const SKEW_SECONDS: f64 = 4.0;
const SKEW_QUICK_SECONDS: f64 = 1.0;

/// The study of forwarding: bytes of its frames.
const FORWARDED_SIZES: [u32; 2] = [60, 512];

/// What was measured.
#[derive(Debug, Default)]
pub struct Studied {
    /// Every trial.
    pub points: Vec<Point>,
    /// Receivers that were left out, and why.
    pub left_out: Vec<String>,
    /// Cells in which a receiver could not be measured, and why; with whether it is ours.
    pub failed: Vec<(bool, String)>,
}

/// Runs those studies that the options ask for, until they are done or a signal ends them. What there is by then stands.
///
/// # Errors
/// Where a bed cannot be made, or a signal came.
pub fn run(
    options: &Options,
    tools: &Tools,
    stop: &Arc<AtomicBool>,
    start: Instant,
    studied: &mut Studied,
) -> Result<()> {
    let mut runner = Runner { options, tools, stop, start, studied, files: RuleFiles::new() };
    for study in Study::ALL.into_iter().filter(|study| options.parts.contains(&study.part())) {
        for round in 0..options.rounds {
            runner.say(&format!("{}: round {} of {}", study.name(), round + 1, options.rounds));
            runner.round(study, round)?;
        }
    }
    Ok(())
}

struct Runner<'a> {
    options: &'a Options,
    tools: &'a Tools,
    stop: &'a AtomicBool,
    start: Instant,
    studied: &'a mut Studied,
    files: RuleFiles,
}

impl Runner<'_> {
    fn round(&mut self, study: Study, round: usize) -> Result<()> {
        match study {
            Study::Queues => self.queues(round),
            Study::Workers => self.workers(round),
            Study::Congestion => self.congestion(round),
            Study::Skew => self.skew(round),
            Study::Sharing => self.sharing(round),
            Study::PreciseRules => self.precise_rules(round),
            Study::WildcardRules => self.wildcard_rules(round),
            Study::NamedSets => self.named_sets(round),
            Study::Forwarding => self.forwarding(round),
            Study::Filters => self.filters(round),
        }
    }

    fn queues(&mut self, round: usize) -> Result<()> {
        let all = [Series::Drop, Series::Ring, Series::RingPerQueue, Series::Xsk, Series::Fanout];
        for setup in self.options.setups.clone() {
            for count in self.counts() {
                let mut bed = self.bed(setup, count)?;
                for series in turned(&all, round) {
                    let traffic = Traffic::Clones(count as u32);
                    let ask = Ask { x: count as u32, count, ..self.ask(Study::Queues, setup, series, round) };
                    self.try_out(&mut bed, &Ask { traffic, ..ask })?;
                }
            }
        }
        self.table_2(round)
    }

    /// Fusco and Deri's Table 2. Its setups say themselves who polls the queues, so the bed is that of setup A.
    fn table_2(&mut self, round: usize) -> Result<()> {
        for (series, queues) in turned(&Series::TABLE_2, round) {
            if queues as usize > self.options.most {
                continue;
            }
            let mut bed = self.bed(Setup::A, queues as usize)?;
            let count = if series == Series::OneReader { 1 } else { 2 };
            let ask = self.ask(Study::Queues, Setup::A, series, round);
            let traffic = Traffic::Clones(queues);
            self.try_out(&mut bed, &Ask { x: queues, count, traffic, ..ask })?;
        }
        Ok(())
    }

    fn workers(&mut self, round: usize) -> Result<()> {
        let setup = self.first_setup()?;
        let mut bed = self.bed(setup, 1)?;
        for count in turned(&self.counts(), round) {
            for series in [Series::Ring, Series::Fanout] {
                let ask = self.ask(Study::Workers, setup, series, round);
                self.try_out(&mut bed, &Ask { x: count as u32, count, ..ask })?;
            }
        }
        Ok(())
    }

    fn congestion(&mut self, round: usize) -> Result<()> {
        let seconds = (self.options.seconds * LONGER).min(LONGEST);
        for setup in self.options.setups.clone() {
            let mut bed = self.bed(setup, 1)?;
            for (number, load) in self.options.load.iter().enumerate() {
                let basis = Ask {
                    traffic: Traffic::EndingFlows,
                    buffer: SMALL_RING,
                    load: *load,
                    seconds,
                    ..self.ask(Study::Congestion, setup, Series::Uncontrolled, round)
                };
                let Some(capacity) = self.capacity(&mut bed, &basis)? else { continue };
                let factors = if number == 0 { &FACTORS[..] } else { &FURTHER_FACTORS[..] };
                for x in turned(factors, round) {
                    let pps = (x != FULL_SPEED).then(|| capacity * f64::from(x) / 100.0);
                    for series in turned(&[Series::Uncontrolled, Series::Controlled], round) {
                        self.try_out(&mut bed, &Ask { x, series, pps, ..basis })?;
                    }
                }
            }
        }
        Ok(())
    }

    fn skew(&mut self, round: usize) -> Result<()> {
        let setup = self.first_setup()?;
        let mut bed = self.bed(setup, 1)?;
        let count = SKEW_WORKERS.min(self.options.most);
        let basis = Ask {
            traffic: Traffic::Skewed(ZIPF, ELEPHANT),
            load: SKEW_LOAD,
            count,
            x: count as u32,
            ..self.ask(Study::Skew, setup, Series::Static, round)
        };
        let Some(capacity) = self.capacity(&mut bed, &Ask { count: 1, ..basis })? else { return Ok(()) };
        // Workers that share a core can do no more than one.
        let cores = self.options.worker_cores().len().min(count);
        let pps = Some(capacity * cores as f64 * SKEW_RATE);
        let seconds = if self.options.quick { SKEW_QUICK_SECONDS } else { SKEW_SECONDS };
        for series in turned(&[Series::Static, Series::Adaptive], round) {
            self.try_out(
                &mut bed,
                &Ask { series, pps, seconds: seconds.max(self.options.seconds), ..basis },
            )?;
        }
        Ok(())
    }

    fn sharing(&mut self, round: usize) -> Result<()> {
        let setup = self.first_setup()?;
        let mut bed = self.bed(setup, 1)?;
        let mut all = vec![Series::RingGroups, Series::Packet];
        all.extend(self.tcpdump(Study::Sharing, round));
        for count in self.counts() {
            for series in turned(&all, round) {
                let ask = self.ask(Study::Sharing, setup, series, round);
                self.try_out(&mut bed, &Ask { x: count as u32, count, ..ask })?;
            }
        }
        Ok(())
    }

    /// Each number of rules with XDP_DROP beside it.
    fn precise_rules(&mut self, round: usize) -> Result<()> {
        let setup = self.first_setup()?;
        let mut bed = self.bed(setup, 1)?;
        for x in turned(&self.numbers(&rules::PRECISE), round) {
            let file = self.files.precise(x)?;
            for (series, flows) in
                turned(&[(Series::Drop, x), (Series::RuleHit, 1), (Series::RuleSpread, x)], round)
            {
                let ask = self.ask(Study::PreciseRules, setup, series, round);
                let traffic = Traffic::Flows(flows);
                self.try_out(&mut bed, &Ask { x, traffic, rules: Some(&file), ..ask })?;
            }
        }
        Ok(())
    }

    fn wildcard_rules(&mut self, round: usize) -> Result<()> {
        let setup = self.first_setup()?;
        let mut bed = self.bed(setup, 1)?;
        for x in turned(&self.numbers(&rules::WILDCARD), round) {
            let (apart, near) =
                (self.files.wildcard(x, Others::Apart)?, self.files.wildcard(x, Others::Near)?);
            let all = [
                (Series::Drop, None),
                (Series::RulesApart, Some(&*apart)),
                (Series::RulesNear, Some(&*near)),
            ];
            for (series, rules) in turned(&all, round) {
                let ask = self.ask(Study::WildcardRules, setup, series, round);
                self.try_out(&mut bed, &Ask { x, rules, ..ask })?;
            }
        }
        Ok(())
    }

    /// Each number of entries with XDP_DROP beside it.
    fn named_sets(&mut self, round: usize) -> Result<()> {
        let setup = self.first_setup()?;
        let mut bed = self.bed(setup, 1)?;
        for x in turned(&self.numbers(&rules::ENTRIES), round) {
            let [strange, hosts, sure] =
                [InSet::None, InSet::All, InSet::Confirmed].map(|which| self.files.named_set(x, which));
            let (strange, hosts, sure) = (strange?, hosts?, sure?);
            let all = [
                (Series::Drop, None, x),
                (Series::SetMiss, Some(&*strange), FLOWS),
                (Series::SetHit, Some(&*hosts), x),
                (Series::SetSure, Some(&*sure), x),
            ];
            for (series, rules, flows) in turned(&all, round) {
                let ask = self.ask(Study::NamedSets, setup, series, round);
                let traffic = Traffic::Flows(flows);
                self.try_out(&mut bed, &Ask { x, traffic, rules, ..ask })?;
            }
        }
        Ok(())
    }

    fn forwarding(&mut self, round: usize) -> Result<()> {
        let setup = self.first_setup()?;
        let mut bed = self.bed(setup, 1)?;
        let (taken, left) = (self.files.forwarding(Rest::Counted)?, self.files.forwarding(Rest::Dropped)?);
        let all = [
            (Series::Drop, None),
            (Series::ForwardTaken, Some(&*taken)),
            (Series::ForwardLeft, Some(&*left)),
        ];
        for size in turned(&FORWARDED_SIZES, round) {
            for (series, rules) in turned(&all, round) {
                let ask = self.ask(Study::Forwarding, setup, series, round);
                self.try_out(&mut bed, &Ask { x: size, size, rules, ..ask })?;
            }
        }
        Ok(())
    }

    fn filters(&mut self, round: usize) -> Result<()> {
        let setup = self.first_setup()?;
        let mut bed = self.bed(setup, 1)?;
        let mut all = vec![Series::FilterKernel, Series::FilterWorker];
        all.extend(self.tcpdump(Study::Filters, round));
        for x in turned(&rules::FILTERED, round) {
            for series in turned(&all, round) {
                let ask = self.ask(Study::Filters, setup, series, round);
                self.try_out(&mut bed, &Ask { x, ..ask })?;
            }
        }
        Ok(())
    }

    /// tcpdump where it is installed; that it is not is said once.
    fn tcpdump(&mut self, study: Study, round: usize) -> Option<Series> {
        if crate::run::is_installed("tcpdump") {
            return Some(Series::Tcpdump);
        }
        if round == 0 {
            self.studied.left_out.push(format!("{}: tcpdump is not installed", study.name()));
        }
        None
    }

    /// Those of these numbers of rules that are asked for.
    fn numbers(&self, all: &[u32]) -> Vec<u32> {
        all.iter().copied().filter(|number| *number <= self.options.most_rules).collect()
    }

    /// Packets per second that one worker can analyse with a core of its own, from a trial at full speed; none where
    /// that failed.
    fn capacity(&mut self, bed: &mut Bed, basis: &Ask<'_>) -> Result<Option<f64>> {
        self.check_stop()?;
        let ask = Ask { x: FULL_SPEED, pps: None, seconds: self.options.seconds, ..*basis };
        match trial::run(bed, self.tools, &ask) {
            Ok(point) if point.received > 0 && point.receiver_cpu_s > 0.0 => {
                let capacity = point.received as f64 / point.receiver_cpu_s;
                self.say(&format!(
                    "{}: setup {}, {} loops a packet: {:.0} packets per second of CPU",
                    ask.study.name(),
                    ask.setup.name(),
                    ask.load,
                    capacity
                ));
                Ok(Some(capacity))
            }
            Ok(point) => {
                self.failed(&ask, &anyhow::anyhow!("nothing was received: {point:?}"))?;
                Ok(None)
            }
            Err(error) => {
                self.failed(&ask, &error)?;
                Ok(None)
            }
        }
    }

    /// One trial; again where it does not count.
    fn try_out(&mut self, bed: &mut Bed, ask: &Ask<'_>) -> Result<()> {
        let tries = match (self.options.disturbed, self.options.quick) {
            (true, _) => 1,
            (false, true) => QUICK_TRIES,
            (false, false) => TRIES,
        };
        for _ in 0..tries {
            self.check_stop()?;
            match trial::run(bed, self.tools, ask) {
                Ok(point) => {
                    let counts = point.invalid.is_none();
                    self.studied.points.push(point);
                    if counts {
                        break;
                    }
                }
                Err(error) => return self.failed(ask, &error),
            }
        }
        Ok(())
    }

    /// What most trials have in common.
    fn ask(&self, study: Study, setup: Setup, series: Series, round: usize) -> Ask<'static> {
        Ask {
            study,
            setup,
            x: 1,
            series,
            round,
            count: 1,
            traffic: Traffic::Flows(FLOWS),
            size: self.options.sizes[0].min(LARGEST_LIVE_FRAME),
            pps: None,
            seconds: self.options.seconds,
            buffer: self.options.buffer,
            load: 0,
            rules: None,
        }
    }

    fn counts(&self) -> Vec<usize> {
        COUNTS.into_iter().filter(|count| *count <= self.options.most).collect()
    }

    /// Where one setup does: NAPI on the generator's core where both are measured, so that the cores of the workers are
    /// theirs.
    fn first_setup(&self) -> Result<Setup> {
        self.options.setups.iter().copied().min().context("--setups: give one or more")
    }

    fn bed(&self, setup: Setup, queues: usize) -> Result<Bed> {
        self.check_stop()?;
        let [generator, receiver] = self.options.cores[..] else { bail!("--cores: give two") };
        let cores = Cores { generator, receiver, nice: self.options.nice };
        // The generator makes no larger frames here, and they fit into the MTU where they fit into a page.
        let mtu = if self.options.sizes[0] > USUAL_MTU { LARGEST_LIVE_FRAME } else { USUAL_MTU };
        Bed::with_queues(setup, mtu, cores, self.options.worker_cores(), queues as u32)
    }

    /// What cannot be measured is named in the results; after a signal, the run ends.
    fn failed(&mut self, ask: &Ask<'_>, error: &anyhow::Error) -> Result<()> {
        self.check_stop()?;
        let message = format!(
            "{}, {}, setup {}, {}: {error:#}",
            ask.study.name(),
            ask.series.label(),
            ask.setup.name(),
            ask.x
        );
        self.say(&format!("failed: {message}"));
        self.studied.failed.push((ask.series.is_ours(), message));
        Ok(())
    }

    fn check_stop(&self) -> Result<()> {
        if self.stop.load(Ordering::Relaxed) {
            bail!("ended by a signal");
        }
        Ok(())
    }

    /// Progress, on standard error.
    fn say(&self, text: &str) {
        // Nobody may be reading; the results are written all the same.
        let _ = writeln!(stderr(), "{:>5.0} s  {text}", self.start.elapsed().as_secs_f64());
    }
}

/// All of them, beginning with another one each round.
fn turned<T: Copy>(all: &[T], round: usize) -> Vec<T> {
    (0..all.len()).map(|position| all[(position + round) % all.len()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_round_begins_with_another_one_and_has_all() {
        assert_eq!(turned(&[1, 2, 3], 0), [1, 2, 3]);
        assert_eq!(turned(&[1, 2, 3], 4), [2, 3, 1]);
        assert!(turned::<u8>(&[], 1).is_empty());
    }
}
