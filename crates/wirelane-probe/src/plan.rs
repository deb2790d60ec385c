//! A compiled configuration, shared by all workers and the reader.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wirelane::Error;
use wirelane::rules::{Room, RuleSet};
use wirelane_bpf::rules::FlatSet;

use crate::cell::Shape;
use crate::config::{Changed, Config, Field, Measurement, When};

/// Packets that workers buffer, for recordings of the time before an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    /// Whether all packets are buffered; otherwise only those of the rules in the mask `rules`.
    pub all: bool,
    pub rules: u32,
    /// Buffer of a worker in bytes.
    pub buffer: usize,
}

impl Kept {
    /// Packets that the recordings of a configuration need, if it has any.
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

/// Instructions for the workers, compiled from a configuration.
#[derive(Debug)]
pub struct Plan {
    pub(crate) config: Config,
    /// Each rule compiled alone, so that a packet can match any number of them.
    pub(crate) rules: Vec<FlatSet>,
    pub(crate) shapes: Vec<Shape>,
    /// Whether any measurement uses TCP sequence numbers, or ARP senders.
    pub(crate) tcp: bool,
    pub(crate) macs: bool,
    /// Measurements that can be made from sums of packets (`of_parts`), and measurements that are made from packets, in
    /// contrast to plug-in counters (`all`); one bit each.
    pub(crate) of_parts: u64,
    pub(crate) all: u64,
    /// Whether any measurement has the application protocol in its key.
    pub(crate) applications: bool,
    /// Packets that are buffered for recordings, if there are any.
    pub(crate) kept: Option<Kept>,
    /// Seed of the sketches.
    pub(crate) seed: u64,
    /// Switching state, shared by all plans that were derived from each other by changes.
    switched: Arc<Switched>,
    /// Identity shared by successive plans with the same intervals: their counts belong to one sum.
    line: Arc<()>,
    /// Number of the first plan that had these rules and recordings.
    origin: u64,
    /// Number of flushes of totals in this line.
    flushes: u64,
    /// Whether this plan has a successor in its line. Relaxed: it is set before the successor is published, and a
    /// reader of the flag has learned of the successor through a worker ([`Switches::change`]).
    followed: AtomicBool,
}

/// Switching state of a plan.
#[derive(Debug)]
struct Switched {
    /// Active measurements, one bit each. Written by the reader, and by the thread that changes a plan while the reader
    /// is idle; a worker reads it when it begins an interval. Relaxed: no other data depends on it.
    measurements: AtomicU64,
    /// Rules that are switched off, so that no packet matches them, one bit each. Same access as `measurements`.
    idle: AtomicU32,
    /// Active alarms. Used by the reader, and by the thread that changes a plan.
    alarms: Mutex<Vec<bool>>,
    /// Times of schedules that differ from the configuration. Same access as `alarms`.
    times: Mutex<Vec<Option<When>>>,
}

impl Plan {
    /// Compiles a configuration. `seed` is the seed of all sketches: a random one that cannot be predicted, or a fixed
    /// one for repeatable results from a file.
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

    /// Plan that results from changes to this one: the switching state stays, except for the parts that the changes
    /// set.
    fn changed(&self, changed: &Changed) -> Result<Plan, Error> {
        let mut plan = Plan::new(changed.config.clone(), self.seed)?;
        let set = changed.measurements;
        let measurements = self.active() & !set | plan.active() & set;
        // In one store, as one measurement may have been switched off in favour of another.
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

    /// Whether the counts of both plans belong to one sum.
    pub(crate) fn is_of_line(&self, other: &Plan) -> bool {
        Arc::ptr_eq(&self.line, &other.line)
    }

    /// Whether another plan continues this plan's intervals.
    pub(crate) fn is_followed(&self) -> bool {
        self.followed.load(Ordering::Relaxed)
    }

    /// Identity of the rules and recordings: equal in all plans that share them.
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

    /// Current times of a schedule.
    pub(crate) fn when(&self, place: usize) -> When {
        let given = self.times().get(place).copied().flatten();
        given.unwrap_or(self.config.schedules[place].when)
    }

    /// Sets other times of a schedule; `None`: those of the configuration.
    pub(crate) fn retime(&self, place: usize, when: Option<When>) {
        if let Some(given) = self.times().get_mut(place) {
            *given = when;
        }
    }

    /// Configuration of the plan.
    pub fn config(&self) -> &Config {
        &self.config
    }

    pub(crate) fn active(&self) -> u64 {
        self.switched.measurements.load(Ordering::Relaxed)
    }

    /// Rules that are switched off, one bit each.
    pub(crate) fn idle_rules(&self) -> u32 {
        self.switched.idle.load(Ordering::Relaxed)
    }

    /// For the reader, and for the thread that makes a successor plan while the reader is idle.
    pub(crate) fn set_rule_active(&self, place: usize, is_on: bool) {
        let bits = self.switched.idle.load(Ordering::Relaxed);
        let bits = if is_on { bits & !(1 << place) } else { bits | 1 << place };
        self.switched.idle.store(bits, Ordering::Relaxed);
    }

    /// For the reader, and for the thread that makes a successor plan while the reader is idle.
    pub(crate) fn set_active(&self, place: usize, is_on: bool) {
        let bits = self.switched.measurements.load(Ordering::Relaxed);
        let bits = if is_on { bits | 1 << place } else { bits & !(1 << place) };
        self.switched.measurements.store(bits, Ordering::Relaxed);
    }
}

/// The active plan, which workers adopt when they pause.
#[derive(Debug)]
pub struct Switches {
    /// Number of plans so far. Release when it is incremented, after the new plan is stored; the partner is the Acquire
    /// of a worker that checks whether its plan is still active.
    generation: AtomicU64,
    plan: Mutex<(u64, Arc<Plan>)>,
}

impl Switches {
    /// With the first plan.
    pub fn new(plan: Plan) -> Switches {
        Switches { generation: AtomicU64::new(0), plan: Mutex::new((0, Arc::new(plan))) }
    }

    /// Replaces the active plan. Each worker adopts the new one between two packets; its counts up to then are handed
    /// over as part of the old one.
    pub fn replace(&self, mut plan: Plan) {
        let mut now = self.plan.lock().unwrap_or_else(PoisonError::into_inner);
        plan.origin = now.0 + 1;
        *now = (now.0 + 1, Arc::new(plan));
        self.generation.store(now.0, Ordering::Release);
    }

    /// Changes the active plan: a successor takes its place, as with [`Switches::replace`]. Measurements, alarms and
    /// schedules that are not changed continue without a break: sums, including those of the current interval, raised
    /// alarms and the switching state. If the length of intervals changes, sums start anew. The reader must be idle
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

    /// The active plan with its number.
    pub fn now(&self) -> (u64, Arc<Plan>) {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether a plan other than this one is active.
    pub(crate) fn is_behind(&self, generation: u64) -> bool {
        self.generation.load(Ordering::Acquire) != generation
    }
}
