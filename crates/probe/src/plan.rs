//! A configuration made ready: compiled once, and read by all workers and the reader.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use wirelane::Error;
use wirelane::rules::{Room, RuleSet};
use wirelane_datapath::rules::FlatSet;

use crate::cell::Shape;
use crate::config::{Config, Field};

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
    /// Whether any is by what speaks.
    pub(crate) speaking: bool,
    /// What is kept of packets for recordings, where there are any.
    pub(crate) kept: Option<Kept>,
    /// Of sketches.
    pub(crate) seed: u64,
    /// A bit for each measurement that is active. Written by the reader alone; a worker looks at it when it begins an
    /// interval. Relaxed: nothing else is read by what it says.
    active: AtomicU64,
    /// The same of rules that are not.
    idle: AtomicU32,
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
        let active = config.measurements.iter().enumerate().filter(|(_, one)| one.active);
        let active = active.fold(0, |bits, (place, _)| bits | 1 << place);
        Ok(Plan {
            rules,
            tcp: shapes.iter().any(|shape| shape.tcp),
            macs: shapes.iter().any(|shape| shape.macs),
            speaking: config.measurements.iter().any(|one| one.key.contains(&Field::Application)),
            shapes,
            kept: Kept::of(&config),
            config,
            seed,
            active: AtomicU64::new(active),
            idle: AtomicU32::new(0),
        })
    }

    /// What it is made of.
    pub fn config(&self) -> &Config {
        &self.config
    }

    pub(crate) fn active(&self) -> u64 {
        self.active.load(Ordering::Relaxed)
    }

    /// Rules that no packet fits, a bit each.
    pub(crate) fn idle_rules(&self) -> u32 {
        self.idle.load(Ordering::Relaxed)
    }

    /// For the reader alone.
    pub(crate) fn set_rule_active(&self, place: usize, is_on: bool) {
        let bits = self.idle.load(Ordering::Relaxed);
        let bits = if is_on { bits & !(1 << place) } else { bits | 1 << place };
        self.idle.store(bits, Ordering::Relaxed);
    }

    /// For the reader alone.
    pub(crate) fn set_active(&self, place: usize, is_on: bool) {
        let bits = self.active.load(Ordering::Relaxed);
        let bits = if is_on { bits | 1 << place } else { bits & !(1 << place) };
        self.active.store(bits, Ordering::Relaxed);
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
    pub fn replace(&self, plan: Plan) {
        let mut now = self.plan.lock().unwrap_or_else(PoisonError::into_inner);
        *now = (now.0 + 1, Arc::new(plan));
        self.generation.store(now.0, Ordering::Release);
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
