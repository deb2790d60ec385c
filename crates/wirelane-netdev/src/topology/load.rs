//! CPU load, from two samples of `/proc/stat` (proc_stat(5)).

use std::collections::BTreeMap;

/// Jiffies of each CPU since boot: busy and total.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadSample(BTreeMap<usize, (u64, u64)>);

impl LoadSample {
    /// Parses the text of `/proc/stat`; malformed lines are skipped.
    pub fn parse(stat: &str) -> LoadSample {
        LoadSample(stat.lines().filter_map(line).collect())
    }

    /// The share of its time, from 0 to 1, that each CPU was busy since `earlier`. CPUs for which no time has passed
    /// are omitted.
    pub fn busy_since(&self, earlier: &LoadSample) -> BTreeMap<usize, f64> {
        let share = |(cpu, (busy, all)): (&usize, &(u64, u64))| {
            let (busy_then, all_then) = earlier.0.get(cpu)?;
            let passed = all.checked_sub(*all_then).filter(|passed| *passed > 0)?;
            // Idle time may decrease by a few jiffies (proc_stat(5), iowait).
            Some((*cpu, (busy.saturating_sub(*busy_then) as f64 / passed as f64).min(1.0)))
        };
        self.0.iter().filter_map(share).collect()
    }
}

/// `cpu3 user nice system idle iowait irq softirq steal guest guest_nice`: guest time is part of user's.
fn line(line: &str) -> Option<(usize, (u64, u64))> {
    let (cpu, rest) = line.strip_prefix("cpu")?.split_once(' ')?;
    let times: Vec<u64> = rest.split_whitespace().take(8).map(str::parse).collect::<Result<_, _>>().ok()?;
    let idle = times.get(3)?.saturating_add(*times.get(4)?);
    let all = times.iter().fold(0u64, |sum, time| sum.saturating_add(*time));
    Some((cpu.parse().ok()?, (all - idle.min(all), all)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_of_the_time_between_two_looks() {
        let first =
            LoadSample::parse("cpu  9 9 9 9 9\ncpu0 10 0 0 100 0 0 0 0 0 0\ncpu1 0 0 0 5 5\nintr 1 2\n");
        let then = LoadSample::parse("cpu0 20 0 5 115 10 0 10 0 10 0\ncpu1 0 0 0 5 5 0\ncpu2 1 1 1 1 1\n");
        let busy = then.busy_since(&first);
        assert_eq!(busy.get(&0), Some(&0.5));
        assert_eq!((busy.get(&1), busy.get(&2)), (None, None), "no time passed, not seen before");
    }
}
