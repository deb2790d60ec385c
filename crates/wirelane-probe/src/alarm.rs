//! Alarms: raised after enough intervals beyond the threshold, cleared after enough intervals within it.

use std::collections::VecDeque;

use hashbrown::HashMap;
use serde::Serialize;

use crate::config::{Alarm, Threshold};
use crate::key::Key;

/// Maximum number of keys of one alarm that are raised or about to be.
const MOST_TRACKED: usize = 100_000;

/// State of an alarm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Raised.
    Raised,
    /// Cleared.
    Cleared,
}

impl State {
    /// Name for people.
    pub fn name(self) -> &'static str {
        match self {
            State::Raised => "raised",
            State::Cleared => "cleared",
        }
    }
}

/// An alarm that is raised or cleared.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AlarmEvent {
    /// Name of the alarm.
    pub alarm: String,
    /// Name of the measurement.
    pub measurement: String,
    /// New state.
    pub state: State,
    /// Key, as a map of its fields.
    pub key: serde_json::Map<String, serde_json::Value>,
    /// Key as one text.
    #[serde(skip)]
    pub key_text: String,
    /// Name of the observed value.
    pub value_name: String,
    /// Observed value.
    pub value: f64,
    /// The end of the interval, UTC seconds.
    pub time: String,
    /// End of the interval in nanoseconds.
    #[serde(skip)]
    pub end_ns: u64,
}

/// State of an alarm for one key.
#[derive(Clone, Copy, Debug, Default)]
struct Track {
    raised: bool,
    /// Number of consecutive intervals in favour of the other state.
    streak: u32,
}

/// Evaluation state of an alarm.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    tracks: HashMap<Key, Track, ahash::RandomState>,
    /// Values of previous intervals: the last one of each key, or several of a measurement without a key.
    last: Option<HashMap<Key, f64, ahash::RandomState>>,
    before: VecDeque<f64>,
    /// Number of times that a key could not be raised because the table was full.
    pub untracked: u64,
    pub raised: u64,
    pub cleared: u64,
}

impl Watch {
    /// Evaluates the values of an interval; returns the changes, in the order of the keys. `alone`: there is one value,
    /// without a key.
    pub fn look(&mut self, alarm: &Alarm, values: &[(Key, f64)], alone: bool) -> Vec<(Key, State, f64)> {
        let mut changes = Vec::new();
        let now: HashMap<Key, f64, ahash::RandomState> = values.iter().copied().collect();
        let silent: Vec<Key> = self.tracks.keys().filter(|key| !now.contains_key(*key)).copied().collect();
        for (key, value) in values.iter().copied().chain(silent.into_iter().map(|key| (key, 0.0))) {
            let mean = self.mean(&key, alone);
            let (exceeds, calm) = evaluated(alarm.threshold, value, mean);
            let known = self.tracks.get(&key).copied();
            let mut track = known.unwrap_or_default();
            let (speaks, times) =
                if track.raised { (calm, alarm.clear_after) } else { (exceeds, alarm.raise_after) };
            track.streak = if speaks { track.streak + 1 } else { 0 };
            if track.streak >= times {
                track = Track { raised: !track.raised, streak: 0 };
                if track.raised && known.is_none() && self.tracks.len() >= MOST_TRACKED {
                    self.untracked += 1;
                    continue;
                }
                let state = if track.raised { State::Raised } else { State::Cleared };
                *(if track.raised { &mut self.raised } else { &mut self.cleared }) += 1;
                changes.push((key, state, value));
            }
            if !track.raised && track.streak == 0 {
                self.tracks.remove(&key);
            } else if known.is_some() || self.tracks.len() < MOST_TRACKED {
                self.tracks.insert(key, track);
            } else {
                self.untracked += 1;
            }
        }
        if alone {
            self.before.push_back(values.first().map_or(0.0, |one| one.1));
            if self.before.len() > alarm.over {
                self.before.pop_front();
            }
        } else if matches!(alarm.threshold, Threshold::Rises(..)) {
            self.last = Some(now);
        }
        changes.sort_by_key(|change| change.0);
        changes
    }

    /// Mean of previous intervals; `None`: not known.
    fn mean(&self, key: &Key, alone: bool) -> Option<f64> {
        if alone {
            let number = self.before.len() as f64;
            (number > 0.0).then(|| self.before.iter().sum::<f64>() / number)
        } else {
            self.last.as_ref().map(|last| last.get(key).copied().unwrap_or(0.0))
        }
    }

    /// Keys for which it is raised, in order.
    pub fn raised_keys(&self) -> Vec<Key> {
        let raised = self.tracks.iter().filter(|(_, track)| track.raised);
        let mut raised: Vec<Key> = raised.map(|(key, _)| *key).collect();
        raised.sort_unstable();
        raised
    }

    /// Switches the alarm off: clears the raised keys, which it returns, and forgets previous values.
    pub fn off(&mut self) -> Vec<Key> {
        let mut raised: Vec<Key> =
            self.tracks.drain().filter(|(_, track)| track.raised).map(|(key, _)| key).collect();
        raised.sort_unstable();
        self.cleared += raised.len() as u64;
        (self.last, self.before) = (None, VecDeque::new());
        raised
    }
}

/// Whether a value is in favour of raising an alarm, and whether of clearing it.
fn evaluated(threshold: Threshold, value: f64, mean: Option<f64>) -> (bool, bool) {
    let change = |least: f64, beyond: &dyn Fn(f64) -> bool, level: f64| {
        let exceeds = level >= least && mean.is_some_and(beyond);
        (exceeds, !exceeds)
    };
    match threshold {
        Threshold::Above(above, clear) => (value > above, value <= clear),
        Threshold::Below(below, clear) => (value < below, value >= clear),
        Threshold::Rises(percent, least) => {
            change(least, &|mean| value > mean * (1.0 + percent / 100.0), value)
        }
        Threshold::Falls(percent, least) => {
            change(least, &|mean| value < mean * (1.0 - percent / 100.0), mean.unwrap_or(0.0))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::config::Value;

    fn alarm(threshold: Threshold, raise_after: u32, clear_after: u32, over: usize) -> Alarm {
        Alarm {
            name: "a".into(),
            measurement: 0,
            value: Value::Pps,
            counter: None,
            threshold,
            raise_after,
            clear_after,
            over,
            actions: Vec::new(),
            active: true,
        }
    }

    /// Reaction of an alarm to each value: `+` raised, `-` cleared, `.` nothing.
    fn timeline(alarm: &Alarm, values: &[f64]) -> String {
        let mut watch = Watch::default();
        let mut sign = |value: f64| match watch.look(alarm, &[(Key::default(), value)], true)[..] {
            [] => '.',
            [(_, State::Raised, _)] => '+',
            _ => '-',
        };
        values.iter().map(|value| sign(*value)).collect()
    }

    #[test]
    fn thresholds_have_hysteresis_and_patience() {
        let above = alarm(Threshold::Above(10.0, 5.0), 1, 1, 1);
        assert_eq!(timeline(&above, &[10.0, 11.0, 12.0, 8.0, 6.0, 5.0, 8.0, 11.0]), ".+...-.+");
        let patient = alarm(Threshold::Above(10.0, 5.0), 2, 3, 1);
        assert_eq!(timeline(&patient, &[11.0, 1.0, 11.0, 12.0, 1.0, 1.0, 7.0, 1.0, 1.0, 1.0]), "...+.....-");
        let below = alarm(Threshold::Below(3.0, 6.0), 1, 1, 1);
        assert_eq!(timeline(&below, &[3.0, 2.0, 5.0, 6.0, 0.0]), ".+.-+");
    }

    #[test]
    fn changes_are_against_the_mean_of_what_was_before() {
        let rises = alarm(Threshold::Rises(100.0, 50.0), 1, 1, 2);
        // The first value has no predecessor; 30 is below the minimum.
        assert_eq!(timeline(&rises, &[10.0, 30.0, 90.0, 60.0, 500.0, 500.0]), "..+-+-");
        let falls = alarm(Threshold::Falls(50.0, 10.0), 1, 1, 1);
        assert_eq!(timeline(&falls, &[100.0, 60.0, 20.0, 20.0, 9.0, 1.0]), "..+-+-");
    }

    #[test]
    fn keys_are_watched_each_for_itself_and_cleared_when_they_fall_silent() {
        let above = alarm(Threshold::Above(10.0, 5.0), 1, 1, 1);
        let key = |number| [number, 0, 0, 0, 0, 0];
        let mut watch = Watch::default();
        let changes = watch.look(&above, &[(key(2), 20.0), (key(1), 11.0), (key(3), 10.0)], false);
        assert_eq!(changes, [(key(1), State::Raised, 11.0), (key(2), State::Raised, 20.0)]);
        assert_eq!(watch.look(&above, &[(key(1), 9.0)], false), [(key(2), State::Cleared, 0.0)]);
        assert_eq!(watch.off(), [key(1)]);
        assert!(watch.tracks.is_empty());
        assert_eq!((watch.raised, watch.cleared, watch.untracked), (2, 2, 0));
    }

    /// Battery: L6
    #[test]
    fn memory_is_bounded_and_what_finds_no_room_is_counted() {
        let above = alarm(Threshold::Above(1.0, 1.0), 1, 10_000, 1);
        let mut watch = Watch::default();
        let values: Vec<(Key, f64)> = (0..150_000).map(|number| ([number, 0, 0, 0, 0, 0], 2.0)).collect();
        assert_eq!(watch.look(&above, &values, false).len(), MOST_TRACKED);
        assert_eq!((watch.tracks.len(), watch.untracked), (MOST_TRACKED, 50_000));
    }

    proptest! {
        /// Battery: L6
        #[test]
        fn nothing_is_held_once_all_keys_are_silent_or_the_alarm_is_off(
            intervals in prop::collection::vec(prop::collection::btree_map(0..9u64, 0..30u32, 0..9), 0..60),
            patience in (1..4u32, 1..4u32),
            kind in 0..4usize,
        ) {
            let threshold = [
                Threshold::Above(10.0, 5.0),
                Threshold::Rises(50.0, 5.0),
                Threshold::Falls(50.0, 5.0),
                Threshold::Below(10.0, 20.0),
            ][kind];
            let (alarm, mut watch) = (alarm(threshold, patience.0, patience.1, 2), Watch::default());
            for values in intervals {
                let values: Vec<(Key, f64)> =
                    values.into_iter().map(|(key, value)| ([key, 0, 0, 0, 0, 0], f64::from(value))).collect();
                watch.look(&alarm, &values, false);
                prop_assert!(watch.tracks.len() <= 9);
            }
            // Below a threshold of 10, silence is a reason to stay raised.
            if kind != 3 {
                (0..2 * (patience.0 + patience.1)).for_each(|_| drop(watch.look(&alarm, &[], false)));
                prop_assert!(watch.tracks.is_empty());
                prop_assert!(watch.last.as_ref().is_none_or(HashMap::is_empty));
            }
            watch.off();
            prop_assert!(watch.tracks.is_empty() && watch.last.is_none() && watch.before.is_empty());
            prop_assert_eq!(watch.raised, watch.cleared);
        }
    }
}
