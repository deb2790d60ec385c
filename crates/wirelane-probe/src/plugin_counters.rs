//! Deltas of plug-in counters per interval.

use std::collections::BTreeMap;

use wirelane::PluginLine;

use crate::config::Config;

/// Counters that each plug-in has: the packets that it examined, and those that it matched.
pub(crate) const ASKED: &str = "asked";
const MATCHED: &str = "matched";

/// Previous readings. The kernel counts from the start of the capture, and counters never decrease.
#[derive(Debug, Default)]
pub(crate) struct PluginCounterDeltas {
    before: Vec<BTreeMap<String, u64>>,
}

/// All counters of a plug-in.
fn numbers(line: &PluginLine) -> BTreeMap<String, u64> {
    let own = line.counters.iter().map(|(name, number)| (name.clone(), *number));
    own.chain([(ASKED.to_owned(), line.asked), (MATCHED.to_owned(), line.matched)]).collect()
}

/// Keeps the later of two readings, which has higher counts: each worker reads the sums of all lanes when it ends its
/// interval.
pub(crate) fn later(counted: &mut Vec<PluginLine>, other: Vec<PluginLine>) {
    let sum =
        |lines: &[PluginLine]| -> u64 { lines.iter().flat_map(|line| numbers(line).into_values()).sum() };
    if sum(&other) > sum(counted) {
        *counted = other;
    }
}

impl PluginCounterDeltas {
    /// Increments of each plug-in's counters, in the order of the configuration, since the last call.
    pub fn of(&mut self, counted: &[PluginLine]) -> Vec<BTreeMap<String, u64>> {
        let now: Vec<BTreeMap<String, u64>> = counted.iter().map(numbers).collect();
        let mut growth = now.clone();
        for (grown, before) in growth.iter_mut().zip(&self.before) {
            for (name, number) in grown {
                *number = number.saturating_sub(before.get(name).copied().unwrap_or(0));
            }
        }
        if !now.is_empty() {
            self.before = now;
        }
        growth
    }
}

impl Config {
    /// Checks that the plug-ins of a capture, in the order of the configuration, have the configured counters.
    ///
    /// # Errors
    /// The first counter that a plug-in does not have.
    pub fn check_counters(&self, plugins: &[PluginLine]) -> Result<(), String> {
        for (place, measurement) in self.measurements.iter().enumerate() {
            let Some(line) = measurement.plugin.and_then(|plugin| plugins.get(plugin)) else { continue };
            let known = numbers(line);
            let of_alarms = self.alarms.iter().filter(|alarm| alarm.measurement == place);
            let mut asked =
                measurement.counters.iter().chain(of_alarms.filter_map(|alarm| alarm.counter.as_ref()));
            if let Some(unknown) = asked.find(|name| !known.contains_key(*name)) {
                let names: Vec<&str> = known.keys().map(String::as_str).collect();
                return Err(format!(
                    "the measurement {} asks for '{unknown}', and the plug-in {} counts {}",
                    measurement.name,
                    line.name,
                    names.join(", ")
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(asked: u64, queries: u64) -> PluginLine {
        let counters = [("queries".to_owned(), queries)].into();
        PluginLine { name: "dns".into(), asked, counters, ..PluginLine::default() }
    }

    #[test]
    fn growth_adds_up_to_what_was_counted_and_silence_is_none() {
        let mut deltas = PluginCounterDeltas::default();
        let mut sum = (0, 0);
        for (asked, queries) in [(5, 2), (5, 2), (9, 7)] {
            let growth = deltas.of(&[line(asked, queries)]);
            let [one] = &growth[..] else { panic!() };
            sum = (sum.0 + one[ASKED], sum.1 + one["queries"]);
            assert_eq!(sum, (asked, queries));
        }
        assert!(deltas.of(&[]).is_empty(), "not read");
        assert_eq!(deltas.of(&[line(10, 7)])[0][ASKED], 1);
    }

    #[test]
    fn of_several_workers_the_later_reading_counts() {
        let mut counted = vec![line(5, 1)];
        later(&mut counted, vec![line(4, 1)]);
        assert_eq!(counted, [line(5, 1)]);
        later(&mut counted, vec![line(5, 2)]);
        assert_eq!(counted, [line(5, 2)]);
    }
}
