//! State that the threads of a run share with the live view.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use wirelane_analysis::voip::{CallRecord, Counts, Finished, Monitor, Signal, sip};

use crate::terminal;

/// Maximum listed calls: as many as the largest screen has rows.
const LISTED: usize = 200;
/// Maximum calls whose messages are remembered.
const LADDERS: usize = 2000;
/// Maximum remembered messages of a call.
const STEPS: usize = 100;

/// A message in a ladder diagram.
#[derive(Clone, Debug)]
pub struct Step {
    /// Time in UTC nanoseconds.
    pub ts_ns: u64,
    /// Source.
    pub from: SocketAddr,
    /// Destination.
    pub to: SocketAddr,
    /// Method or status, as in the packet (unescaped).
    pub what: String,
}

/// The last reports of all threads.
#[derive(Default)]
pub struct Told {
    /// Active calls, the latest first.
    pub live: Vec<CallRecord>,
    /// Ended calls, the latest first.
    pub ended: VecDeque<CallRecord>,
    /// Counters.
    pub counts: Counts,
    /// Number of active calls, including those that are not listed.
    pub active: u64,
    /// [`wirelane_analysis::voip::Call::serial`] of the selected call; `None`: the first.
    looked_at: Option<u64>,
    ladders: HashMap<Box<str>, Vec<Step>>,
    order: VecDeque<Box<str>>,
}

/// The shared state; see the module documentation.
pub struct TopModel {
    interval: Duration,
    told: Mutex<Told>,
    looked: Mutex<Option<Instant>>,
}

impl TopModel {
    /// For a live view with this interval.
    pub fn new(interval: Duration) -> TopModel {
        TopModel { interval, told: Mutex::default(), looked: Mutex::default() }
    }

    /// Locks the state.
    pub fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The worker's side: updates active calls, if an interval has passed since the last update.
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

    /// The exporting thread's side: adds messages, and ended calls.
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

    /// The listed calls: active ones, then ended ones.
    pub fn calls(&self) -> impl Iterator<Item = &CallRecord> {
        self.live.iter().chain(&self.ended).take(LISTED)
    }

    /// Index of the selected call.
    pub fn looked_at(&self) -> usize {
        let its = |record: &CallRecord| Some(record.call.serial) == self.looked_at;
        self.calls().position(its).unwrap_or(0)
    }

    /// Moves the selection by this many rows.
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
