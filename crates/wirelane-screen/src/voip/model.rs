//! State that the threads of a run share with the live view.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use wirelane_analysis::voip::{CallRecord, Counts, Finished, Monitor, Signal, sip};

use crate::terminal;

/// Calls that are listed: as many as the largest screen has rows.
const LISTED: usize = 200;
/// Calls whose messages are remembered.
const LADDERS: usize = 2000;
/// Messages of a call that are.
const STEPS: usize = 100;

/// A message of a ladder.
#[derive(Clone, Debug)]
pub struct Step {
    /// When, in UTC nanoseconds.
    pub ts_ns: u64,
    /// From where.
    pub from: SocketAddr,
    /// To where.
    pub to: SocketAddr,
    /// Its method or status, as somebody else has written it.
    pub what: String,
}

/// What everybody has told last.
#[derive(Default)]
pub struct Told {
    /// Calls that go on, those that began last first.
    pub live: Vec<CallRecord>,
    /// Calls that have ended, the last first.
    pub ended: VecDeque<CallRecord>,
    /// What was counted.
    pub counts: Counts,
    /// Calls that go on, also those that are not listed.
    pub active: u64,
    /// [`wirelane_analysis::voip::Call::serial`] of the call that is looked at; `None`: the first.
    looked_at: Option<u64>,
    ladders: HashMap<Box<str>, Vec<Step>>,
    order: VecDeque<Box<str>>,
}

/// See the head of this file.
pub struct TopModel {
    interval: Duration,
    told: Mutex<Told>,
    looked: Mutex<Option<Instant>>,
}

impl TopModel {
    /// For a screen that is drawn at this interval.
    pub fn new(interval: Duration) -> TopModel {
        TopModel { interval, told: Mutex::default(), looked: Mutex::default() }
    }

    /// All of it.
    pub fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The worker's side: what goes on, if an interval has passed since it was told last.
    pub fn look(&self, monitor: &Monitor) {
        let mut looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
        if looked.is_some_and(|looked| looked.elapsed() < self.interval) {
            return;
        }
        *looked = Some(Instant::now());
        let (live, counts, active) = (monitor.going_on(LISTED), monitor.counts(), monitor.active());
        let mut told = self.told();
        (told.live, told.counts, told.active) = (live, counts, active);
    }

    /// The exporting thread's side: messages, and calls that are over.
    pub fn take(&self, finished: &[Finished]) {
        let mut told = self.told();
        for one in finished {
            match one {
                Finished::Signal(signal) => told.step(signal),
                Finished::Call(record) => {
                    told.live.retain(|live| live.call.serial != record.call.serial);
                    told.ended.push_front((**record).clone());
                    told.ended.truncate(LISTED);
                }
                Finished::Stream(..) | Finished::Kept(_) => {}
            }
        }
    }
}

impl terminal::TopModel for TopModel {
    fn typed(&self, keys: &str) -> bool {
        let count = |letter: char| keys.matches(letter).count() as isize;
        let rows = count('j') - count('k');
        if rows != 0 {
            self.told().step_by(rows);
        }
        rows != 0
    }
}

impl Told {
    fn step(&mut self, signal: &Signal) {
        let step = Step {
            ts_ns: signal.way.ts_ns,
            from: signal.way.from.into(),
            to: signal.way.to.into(),
            what: sip::title(&signal.bytes),
        };
        if let Some(steps) = self.ladders.get_mut(&signal.call_id) {
            if steps.len() < STEPS {
                steps.push(step);
            }
            return;
        }
        self.ladders.insert(signal.call_id.clone(), vec![step]);
        self.order.push_back(signal.call_id.clone());
        if self.order.len() > LADDERS
            && let Some(oldest) = self.order.pop_front()
        {
            self.ladders.remove(&oldest);
        }
    }

    /// Calls as they are listed: those that go on, then the others.
    pub fn calls(&self) -> impl Iterator<Item = &CallRecord> {
        self.live.iter().chain(&self.ended).take(LISTED)
    }

    /// Which of them is looked at.
    pub fn looked_at(&self) -> usize {
        let its = |record: &CallRecord| Some(record.call.serial) == self.looked_at;
        self.calls().position(its).unwrap_or(0)
    }

    /// Looks at another one, so many rows below.
    pub fn step_by(&mut self, rows: isize) {
        let at = self.looked_at().saturating_add_signed(rows);
        let last = self.calls().count().saturating_sub(1);
        let serial = self.calls().nth(at.min(last)).map(|record| record.call.serial);
        self.looked_at = serial;
    }

    /// The messages of a call, by its Call-ID.
    pub fn ladder(&self, call_id: &str) -> &[Step] {
        self.ladders.get(call_id).map_or(&[][..], |steps| steps)
    }
}
