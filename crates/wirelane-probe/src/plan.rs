//! A configuration made ready: compiled once, and read by all workers and the reader.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wirelane::Error;
use wirelane::rules::{Room, RuleSet};
use wirelane_bpf::rules::FlatSet;

use crate::cell::Shape;
use crate::config::{Changed, Config, Field, Measurement, When};

/// Packets that are kept for a while, for recordings of what was before an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    /// Whether all are; else those of the rules that have a bit.
    pub all: bool,
    pub rules: u32,
    /// Bytes that a worker has for them.
    pub buffer: usize,
}

impl Kept {
    /// What the alarms of a configuration may want recorded.
    fn of(config: &Config) -> Option<Kept> {
        let mut kept = None;
        for alarm in &config.alarms {
            for recording in alarm.actions.iter().filter_map(|place| config.actions[*place].recording()) {
                let kept = kept.get_or_insert(Kept { all: false, rules: 0, buffer: 0 });
                match recording.rule_of(&config.measurements[alarm.measurement]) {
                    Some(rule) => kept.rules |= 1 << rule,
                    None => kept.all = true,
                }
                kept.buffer = kept.buffer.max(recording.buffer);
            }
        }
        kept
    }
}

/// What workers do with packets.
#[derive(Debug)]
pub struct Plan {
    pub(crate) config: Config,
    /// Each rule alone, so that a packet can hit any of them.
    pub(crate) rules: Vec<FlatSet>,
    pub(crate) shapes: Vec<Shape>,
    /// Whether any measurement looks at TCP's sequence numbers, or ARP's senders.
    pub(crate) tcp: bool,
    pub(crate) macs: bool,
    /// A bit for each measurement that can be made of packets that have been added up; and for each that is made
    /// of packets, which those of plug-ins are not.
    pub(crate) of_parts: u64,
    pub(crate) all: u64,
    /// Whether any is by what speaks.
    pub(crate) applications: bool,
    /// What is kept of packets for recordings, where there are any.
    pub(crate) kept: Option<Kept>,
    /// Of sketches.
    pub(crate) seed: u64,
    /// What is active: the same of all plans that were made of each other by changing them.
    switched: Arc<Switched>,
    /// The same of all plans that follow each other with the same intervals: what is counted by them is one sum.
    line: Arc<()>,
    /// The number of the first plan that had these rules and recordings.
    origin: u64,
    /// How often totals have been asked for in this line.
    flushes: u64,
    /// There is a plan behind this one in its line. Relaxed: it is there before that plan is, and who looks has heard of
    /// that plan by way of a worker ([`Switches::change`]).
    followed: AtomicBool,
}

/// What is active.
#[derive(Debug)]
struct Switched {
    /// A bit for each measurement. Written by the reader, and by who changes a plan while the reader does not work; a worker
    /// looks at it when it begins an interval. Relaxed: nothing else is read by what it says.
    measurements: AtomicU64,
    /// A bit for each rule that no packet fits, as it is switched off. The same of it.
    idle: AtomicU32,
    /// By alarm. For the reader, and for who changes a plan.
    alarms: Mutex<Vec<bool>>,
    /// By schedule: its times, where they are not the configuration's any more. The same of it.
    times: Mutex<Vec<Option<When>>>,
}

impl Plan {
    /// Makes a configuration ready. The seed is that of all sketches: one that nobody can guess, or results of a file
    /// that are the same at every run.
    ///
    /// # Errors
    /// Where rules cannot be compiled.
    pub fn new(config: Config, seed: u64) -> Result<Plan, Error> {
        let alone = |rule| RuleSet {
            rules: vec![rule],
            sets: config.rules.sets.clone(),
            patterns: config.rules.patterns.clone(),
            ..RuleSet::default()
        };
        let rules = config.rules.rules.iter().cloned().map(alone);
        let rules = rules.map(|set| set.compile("", &[], Room::UNLIMITED)).collect::<Result<_, _>>()?;
        let shapes: Vec<Shape> =
            config.measurements.iter().map(|one| Shape::new(one, config.interval_ns)).collect();
        let bits = |wanted: &dyn Fn(&Measurement) -> bool| {
            let of = config.measurements.iter().enumerate().filter(|(_, one)| wanted(one));
            of.fold(0, |bits, (place, _)| bits | 1 << place)
        };
        let active = bits(&|one| one.active);
        let alarms = config.alarms.iter().map(|alarm| alarm.active).collect();
        let times = vec![None; config.schedules.len()];
        Ok(Plan {
            of_parts: bits(&|one| one.plugin.is_none() && config.is_of_parts(one)),
            all: bits(&|one| one.plugin.is_none()),
            rules,
            tcp: shapes.iter().any(|shape| shape.tcp),
            macs: shapes.iter().any(|shape| shape.macs),
            applications: config.measurements.iter().any(|one| one.key.contains(&Field::Application)),
            shapes,
            kept: Kept::of(&config),
            config,
            seed,
            switched: Arc::new(Switched {
                measurements: AtomicU64::new(active),
                idle: AtomicU32::new(0),
                alarms: Mutex::new(alarms),
                times: Mutex::new(times),
            }),
            line: Arc::default(),
            origin: 0,
            flushes: 0,
            followed: AtomicBool::new(false),
        })
    }

    /// The plan that is made of this one by changing it: what was switched meanwhile stays so, but for what was set.
    fn changed(&self, changed: &Changed) -> Result<Plan, Error> {
        let mut plan = Plan::new(changed.config.clone(), self.seed)?;
        let set = changed.measurements;
        let measurements = self.active() & !set | plan.active() & set;
        // In one step, as one of several may have been switched off for another.
        self.switched.measurements.store(measurements, Ordering::Relaxed);
        plan.origin = self.origin;
        for place in &changed.alarms {
            self.set_alarm(*place, plan.alarm_is_on(*place));
        }
        for place in &changed.schedules {
            self.retime(*place, None);
        }
        plan.switched = Arc::clone(&self.switched);
        if plan.config.interval_ns == self.config.interval_ns {
            plan.line = Arc::clone(&self.line);
            plan.flushes = self.flushes + u64::from(changed.flush);
            self.followed.store(true, Ordering::Relaxed);
        }
        Ok(plan)
    }

    /// Whether what is counted by the one and by the other is one sum.
    pub(crate) fn is_of_line(&self, other: &Plan) -> bool {
        Arc::ptr_eq(&self.line, &other.line)
    }

    /// Whether there is a plan that goes on with this one's intervals.
    pub(crate) fn is_followed(&self) -> bool {
        self.followed.load(Ordering::Relaxed)
    }

    /// The same of plans whose rules and recordings are the same.
    pub(crate) fn origin(&self) -> u64 {
        self.origin
    }

    pub(crate) fn flushes(&self) -> u64 {
        self.flushes
    }

    fn alarms(&self) -> MutexGuard<'_, Vec<bool>> {
        self.switched.alarms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn alarm_is_on(&self, place: usize) -> bool {
        self.alarms().get(place).is_some_and(|is_on| *is_on)
    }

    pub(crate) fn set_alarm(&self, place: usize, is_on: bool) {
        if let Some(alarm) = self.alarms().get_mut(place) {
            *alarm = is_on;
        }
    }

    fn times(&self) -> MutexGuard<'_, Vec<Option<When>>> {
        self.switched.times.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The times of a schedule.
    pub(crate) fn when(&self, place: usize) -> When {
        let given = self.times().get(place).copied().flatten();
        given.unwrap_or(self.config.schedules[place].when)
    }

    /// Gives a schedule other times, or the configuration's.
    pub(crate) fn retime(&self, place: usize, when: Option<When>) {
        if let Some(given) = self.times().get_mut(place) {
            *given = when;
        }
    }

    /// What it is made of.
    pub fn config(&self) -> &Config {
        &self.config
    }

    pub(crate) fn active(&self) -> u64 {
        self.switched.measurements.load(Ordering::Relaxed)
    }

    /// Rules that no packet fits, a bit each.
    pub(crate) fn idle_rules(&self) -> u32 {
        self.switched.idle.load(Ordering::Relaxed)
    }

    /// For the reader, and for who makes a plan that follows while the reader does not work.
    pub(crate) fn set_rule_active(&self, place: usize, is_on: bool) {
        let bits = self.switched.idle.load(Ordering::Relaxed);
        let bits = if is_on { bits & !(1 << place) } else { bits | 1 << place };
        self.switched.idle.store(bits, Ordering::Relaxed);
    }

    /// For the reader, and for who makes a plan that follows while the reader does not work.
    pub(crate) fn set_active(&self, place: usize, is_on: bool) {
        let bits = self.switched.measurements.load(Ordering::Relaxed);
        let bits = if is_on { bits | 1 << place } else { bits & !(1 << place) };
        self.switched.measurements.store(bits, Ordering::Relaxed);
    }
}

/// The plan in force, which workers take up when they pause.
#[derive(Debug)]
pub struct Switches {
    /// How many plans there have been. Release where it is raised, behind the new plan; the partner is the Acquire of a
    /// worker that looks whether its plan is still in force.
    generation: AtomicU64,
    plan: Mutex<(u64, Arc<Plan>)>,
}

impl Switches {
    /// With the first plan.
    pub fn new(plan: Plan) -> Switches {
        Switches { generation: AtomicU64::new(0), plan: Mutex::new((0, Arc::new(plan))) }
    }

    /// Puts a plan in the place of the one in force. Each worker takes it up between two packets; what it has counted
    /// by then is handed over as part of the old one.
    pub fn replace(&self, mut plan: Plan) {
        let mut now = self.plan.lock().unwrap_or_else(PoisonError::into_inner);
        plan.origin = now.0 + 1;
        *now = (now.0 + 1, Arc::new(plan));
        self.generation.store(now.0, Ordering::Release);
    }

    /// Changes the plan in force: a plan that follows it takes its place, as [`Switches::replace`] does. Measurements,
    /// alarms and schedules that stay as they are go on as if nothing had happened: sums, also of the interval in which
    /// that is, what is raised, what was switched. With other intervals sums begin anew. The reader has to do nothing
    /// meanwhile.
    ///
    /// # Errors
    /// Where rules cannot be compiled; then nothing is changed.
    pub fn change(&self, changed: &Changed) -> Result<(), Error> {
        let mut now = self.plan.lock().unwrap_or_else(PoisonError::into_inner);
        let plan = Arc::new(now.1.changed(changed)?);
        *now = (now.0 + 1, plan);
        self.generation.store(now.0, Ordering::Release);
        Ok(())
    }

    /// The plan in force, with its number.
    pub fn now(&self) -> (u64, Arc<Plan>) {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether another plan than this one is in force.
    pub(crate) fn is_behind(&self, generation: u64) -> bool {
        self.generation.load(Ordering::Acquire) != generation
    }
}
