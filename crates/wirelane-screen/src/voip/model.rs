//! State that the threads of a run share with the live view.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use wirelane_analysis::voip::{
    CallRecord, Captured, Counts, Ending, Finished, Kept, MediaAddress, Monitor, Signal, Way, sip,
};
use wirelane_export::voip::SavedCalls;

use crate::table::counted;
use crate::terminal::{self, Controls, Effect, Key};

/// Maximum listed calls: as many as the largest screen has rows.
const LISTED: usize = 200;
/// Maximum calls whose messages are remembered.
const LADDERS: usize = 2000;
/// Maximum remembered messages of a call.
const STEPS: usize = 100;

/// Maximum bytes of remembered messages, of all calls.
const MOST_BYTES: usize = 32 << 20;

/// A message in a ladder diagram.
#[derive(Clone, Debug)]
pub struct Step {
    /// Path and time.
    pub way: Way,
    /// Method or status, as in the packet (unescaped).
    pub what: String,
    /// The message.
    pub bytes: Vec<u8>,
}

impl Step {
    /// Source and destination.
    pub fn ends(&self) -> [MediaAddress; 2] {
        [self.way.from, self.way.to]
    }
}

/// The last reports of all threads.
#[derive(Default)]
pub struct Told {
    /// Calls of the monitor: active ones, then those that are over, the latest first.
    pub live: Vec<CallRecord>,
    /// Calls that the monitor has handed out, the latest first.
    pub ended: VecDeque<CallRecord>,
    /// Counters.
    pub counts: Counts,
    /// Number of active calls, including those that are not listed.
    pub active: u64,
    /// Number of ended calls, also of those that the monitor has not handed out.
    pub over: u64,
    /// Time of the last update, in nanoseconds since 1970.
    now_ns: u64,
    /// [`wirelane_analysis::voip::Call::serial`] of the selected call; `None`: the first.
    looked_at: Option<u64>,
    ladders: HashMap<Box<str>, Vec<Step>>,
    order: VecDeque<Box<str>>,
    /// Bytes of all messages in the ladders.
    bytes: usize,
    /// Index of the message that is shown; `None`: the list of calls is shown.
    pub opened: Option<usize>,
    /// Rows of the shown message that are above the screen.
    pub scrolled: usize,
    /// Help and filter.
    pub controls: Controls,
}

/// The shared state; see the module documentation.
pub struct TopModel {
    interval: Duration,
    told: Mutex<Told>,
    looked: Mutex<Option<Instant>>,
    /// Folder for saved calls, if one was given.
    folder: Option<Mutex<SavedCalls>>,
}

impl TopModel {
    /// For a live view with this interval. `folder`: where the selected call is saved.
    pub fn new(interval: Duration, folder: Option<SavedCalls>) -> TopModel {
        TopModel {
            interval,
            told: Mutex::default(),
            looked: Mutex::default(),
            folder: folder.map(Mutex::new),
        }
    }

    /// Locks the state.
    pub fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The worker's side: updates the calls of the monitor, if an interval has passed since the last update.
    pub fn look(&self, monitor: &Monitor) {
        let mut looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
        if looked.is_some_and(|looked| looked.elapsed() < self.interval) {
            return;
        }
        *looked = Some(Instant::now());
        let (live, counts, lingering) = (monitor.at_hand(LISTED), monitor.counts(), monitor.lingering());
        let mut told = self.told();
        (told.active, told.over, told.now_ns) =
            (monitor.active(), counts.calls + lingering, monitor.now_ns());
        (told.live, told.counts) = (live, counts);
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

impl TopModel {
    /// Saves the messages of the selected call so far. Returns the text for the user.
    fn save(&self, told: &Told) -> String {
        let Some(record) = told.selected() else { return "there is no call to save".to_owned() };
        let Some(folder) = &self.folder else {
            return "to save calls, start with --save-selected DIR".to_owned();
        };
        let steps = told.ladder(&record.call.call_id);
        if steps.is_empty() {
            return "the messages of this call are not remembered any more".to_owned();
        }
        let kept = |step: &Step| {
            let packet = Captured::Payload(step.bytes.clone());
            Finished::Kept(Kept { call: record.call.serial, way: step.way, packet })
        };
        let packets: Vec<Finished> = steps.iter().map(kept).collect();
        let mut folder = folder.lock().unwrap_or_else(PoisonError::into_inner);
        match folder.save(&record.call, &packets) {
            Ok(path) => format!("saved {} to {}", counted(steps.len() as u64, "message"), path.display()),
            Err(error) => format!("not saved: {error}"),
        }
    }
}

impl terminal::TopModel for TopModel {
    fn typed(&self, key: Key) -> Effect {
        let mut told = self.told();
        if let Some(effect) = told.controls.typed(key) {
            return effect;
        }
        let rows = key.rows();
        match (key, told.opened) {
            (Key::Letter('s'), _) => {
                let said = self.save(&told);
                told.controls.said = Some(said);
            }
            (Key::Enter, None) if !told.steps().is_empty() => (told.opened, told.scrolled) = (Some(0), 0),
            (Key::Escape | Key::Enter, Some(_)) => told.opened = None,
            (Key::PageUp | Key::PageDown | Key::Letter(' '), Some(_)) => {
                told.scrolled = told.scrolled.saturating_add_signed(rows);
            }
            (_, Some(at)) if rows != 0 => {
                let last = told.steps().len().saturating_sub(1);
                (told.opened, told.scrolled) = (Some(at.saturating_add_signed(rows).min(last)), 0);
            }
            (_, None) if rows != 0 => told.step_by(rows),
            _ => return Effect::Nothing,
        }
        Effect::Redraw
    }
}

impl Told {
    /// Adds a message to its ladder, in the order of time: one from another device or direction may be delivered later
    /// than those that came after it.
    fn step(&mut self, signal: &Signal) {
        let step = Step { way: signal.way, what: sip::title(&signal.bytes), bytes: signal.bytes.clone() };
        let size = step.bytes.len();
        match self.ladders.get_mut(&signal.call_id) {
            Some(steps) if steps.len() >= STEPS => return,
            Some(steps) => {
                let at = steps.partition_point(|other| other.way.ts_ns <= step.way.ts_ns);
                steps.insert(at, step);
            }
            None => {
                self.ladders.insert(signal.call_id.clone(), vec![step]);
                self.order.push_back(signal.call_id.clone());
            }
        }
        self.bytes += size;
        while self.order.len() > LADDERS || (self.bytes > MOST_BYTES && self.order.len() > 1) {
            let Some(oldest) = self.order.pop_front() else { break };
            let steps = self.ladders.remove(&oldest).unwrap_or_default();
            self.bytes -= steps.iter().map(|step| step.bytes.len()).sum::<usize>();
        }
    }

    /// The listed calls: active ones, then ended ones, of those with the filter's text.
    pub fn calls(&self) -> impl Iterator<Item = &CallRecord> {
        let admitted = |record: &&CallRecord| {
            let call = &record.call;
            let status = call.status.to_string();
            let texts = [&*call.from_uri, &*call.to_uri, &*call.call_id, call.state.name(), &status];
            self.controls.admits(texts)
        };
        self.live.iter().chain(&self.ended).filter(admitted).take(LISTED)
    }

    /// The end of a call, or the current time of one that goes on, in nanoseconds since 1970.
    pub fn end_ns(&self, record: &CallRecord) -> u64 {
        let call = &record.call;
        let goes_on = record.ending == Ending::Forced && !call.state.is_over();
        let last_ns = if goes_on { call.last_ns.max(self.now_ns) } else { call.last_ns };
        call.end_ns.unwrap_or(last_ns)
    }

    /// The selected call.
    pub fn selected(&self) -> Option<&CallRecord> {
        self.calls().nth(self.looked_at())
    }

    /// The messages of the selected call.
    pub fn steps(&self) -> &[Step] {
        self.selected().map_or(&[][..], |record| self.ladder(&record.call.call_id))
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
