//! State that the probe shares with the live view.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use wirelane_probe::{AlarmEvent, Config, Event, Shown, State};

use crate::terminal::{self, Controls, Effect, Key};

/// Maximum remembered intervals: as many as the largest screen has columns.
const PAST: usize = 200;
/// Maximum remembered measurements: as many as a configuration has, and some earlier ones.
const MEASUREMENTS: usize = 200;
/// Maximum listed alarms.
const RAISED: usize = 200;

/// A measurement.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Name of the measurement.
    pub name: String,
    /// The last interval; `None` if it was never active.
    pub last: Option<Shown>,
    /// Packets of past intervals, the latest at the end.
    pub past: VecDeque<u64>,
}

/// Current results.
#[derive(Clone, Debug, Default)]
pub struct Now {
    /// Measurements in the order of the configuration.
    pub measurements: Vec<Measured>,
    /// Raised alarms by alarm and key, with the time and value.
    pub raised: BTreeMap<(String, String), AlarmEvent>,
    /// Number of raised alarms, including those that are not listed.
    pub all_raised: u64,
    /// End of the last interval in UTC nanoseconds.
    pub end_ns: u64,
}

/// State of the view.
#[derive(Debug, Default)]
pub struct Told {
    live: Now,
    /// Snapshot that is shown while the view is paused.
    still: Option<Now>,
    /// Name of the selected measurement, whose rows are shown; `None`: the first.
    looked_at: Option<String>,
    /// Help and filter.
    pub controls: Controls,
    /// Index of the column by which rows are sorted; `None`: as delivered, by the first configured value.
    pub sort: Option<usize>,
}

/// The shared state; see the module documentation.
#[derive(Debug)]
pub struct TopModel(Mutex<Told>);

impl TopModel {
    /// Creates the state for a probe with this configuration.
    pub fn new(config: &Config) -> TopModel {
        let none = |name: &String| Measured { name: name.clone(), last: None, past: VecDeque::new() };
        let measurements = config.measurements.iter().map(|one| none(&one.name)).collect();
        let live = Now { measurements, ..Now::default() };
        TopModel(Mutex::new(Told { live, ..Told::default() }))
    }

    /// Locks the state.
    pub fn told(&self) -> MutexGuard<'_, Told> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Processes results, for the controller.
    pub fn take(&self, events: &[Event]) {
        let mut told = self.told();
        for event in events {
            match event {
                Event::Shown(shown) if !shown.total => told.live.measured(shown),
                Event::Alarm(alarm) => told.live.alarm(alarm),
                _ => {}
            }
        }
    }
}

impl terminal::TopModel for TopModel {
    fn typed(&self, key: Key) -> Effect {
        let mut told = self.told();
        if let Some(effect) = told.controls.typed(key) {
            return effect;
        }
        match key {
            Key::Down | Key::Letter('j') => told.step_by(1),
            Key::Up | Key::Letter('k') => told.step_by(-1),
            Key::Letter('s') => told.sort_by_next(),
            Key::Letter('p') => {
                told.still = if told.still.is_some() { None } else { Some(told.live.clone()) }
            }
            _ => return Effect::Nothing,
        }
        Effect::Redraw
    }
}

impl Now {
    fn measured(&mut self, shown: &Shown) {
        self.end_ns = self.end_ns.max(shown.interval.end_ns);
        let place = self.measurements.iter().position(|one| one.name == shown.measurement);
        let place = place.unwrap_or_else(|| {
            // A new configuration has other measurements; the oldest ones are removed.
            if self.measurements.len() >= MEASUREMENTS {
                self.measurements.remove(0);
            }
            self.measurements.push(Measured {
                name: shown.measurement.clone(),
                last: None,
                past: VecDeque::new(),
            });
            self.measurements.len() - 1
        });
        let Some(one) = self.measurements.get_mut(place) else { return };
        one.past.push_back(shown.packets);
        if one.past.len() > PAST {
            one.past.pop_front();
        }
        one.last = Some(shown.clone());
    }

    fn alarm(&mut self, alarm: &AlarmEvent) {
        let of = (alarm.alarm.clone(), alarm.key_text.clone());
        match alarm.state {
            State::Raised => {
                self.all_raised += 1;
                if self.raised.len() < RAISED {
                    self.raised.insert(of, alarm.clone());
                }
            }
            State::Cleared => {
                self.all_raised = self.all_raised.saturating_sub(1);
                self.raised.remove(&of);
            }
        }
    }

    /// Whether a measurement was active in the last interval.
    pub fn is_active(&self, one: &Measured) -> bool {
        one.last.as_ref().is_some_and(|last| last.interval.end_ns >= self.end_ns)
    }
}

impl Told {
    /// The results that are shown.
    pub fn now(&self) -> &Now {
        self.still.as_ref().unwrap_or(&self.live)
    }

    /// Whether the view is paused.
    pub fn stands_still(&self) -> bool {
        self.still.is_some()
    }

    /// Index of the selected measurement.
    pub fn looked_at(&self) -> usize {
        let name = self.looked_at.as_ref();
        let mut all = self.now().measurements.iter();
        name.and_then(|name| all.position(|one| one.name == *name)).unwrap_or(0)
    }

    fn step_by(&mut self, rows: isize) {
        let last = self.now().measurements.len().saturating_sub(1);
        let at = self.looked_at().saturating_add_signed(rows).min(last);
        self.looked_at = self.now().measurements.get(at).map(|one| one.name.clone());
        self.sort = None;
    }

    fn sort_by_next(&mut self) {
        let last = self.now().measurements.get(self.looked_at()).and_then(|one| one.last.as_ref());
        let columns = last.map_or(0, |last| last.columns.len());
        let next = self.sort.map_or(0, |column| column + 1);
        self.sort = (next < columns).then_some(next);
    }
}
