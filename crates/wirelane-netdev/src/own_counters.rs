//! Counters of drivers (`ethtool -S`) that the kernel's common counters leave out.
//!
//! Drivers should count packets that a card dropped for lack of buffers in `rx_missed_errors` (linux/if_link.h). Those of
//! [`COUNTERS`] only have a counter of their own for them.

use super::ethtool::Ethtool;

/// Drivers, and the name of the counter that each RX queue has. `vmxnet3_get_stats64()` has errors and the packets that
/// the driver drops, not those for which the card had no buffer (drivers/net/vmxnet3/vmxnet3_ethtool.c).
const COUNTERS: [(&str, &str); 1] = [("vmxnet3", "pkts rx OOB")];

/// The counter of one driver, and its places among the driver's counters.
#[derive(Clone, Debug)]
pub(super) struct OwnCounter {
    name: &'static str,
    /// Number of all counters, and the places among them of those with this name. They change with the number of queues.
    places: (usize, Vec<usize>),
}

impl OwnCounter {
    /// The counter of this driver; `None` if the common counters suffice.
    pub(super) fn of(driver: &str) -> Option<OwnCounter> {
        let (_, name) = COUNTERS.into_iter().find(|(of, _)| *of == driver)?;
        Some(OwnCounter { name, places: (0, Vec::new()) })
    }

    /// The sum over all RX queues; 0 if the driver does not answer.
    pub(super) fn read(&mut self, ethtool: &Ethtool, device: &str) -> u64 {
        let Some(values) = ethtool.own_counters(device) else { return 0 };
        if self.places.0 != values.len() {
            let Some(names) = ethtool.names_of_own_counters(device) else { return 0 };
            self.places = (values.len(), places(&names, self.name));
        }
        self.places.1.iter().filter_map(|place| values.get(*place)).sum()
    }
}

/// Names are indented by drivers that list their queues.
fn places(names: &[String], name: &str) -> Vec<usize> {
    names.iter().enumerate().filter(|(_, one)| one.trim() == name).map(|(place, _)| place).collect()
}

/// Packets that a card has missed, from a counter that a reset of the card may set to zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Missed {
    last: u64,
    total: u64,
}

impl Missed {
    /// Counts from this value of the counter.
    pub fn since(counter: u64) -> Missed {
        Missed { last: counter, total: 0 }
    }

    /// Adds what came since the previous value.
    pub fn add(&mut self, counter: u64) {
        self.total += counter.checked_sub(self.last).unwrap_or(counter);
        self.last = counter;
    }

    /// Packets so far.
    pub fn total(self) -> u64 {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_queue_has_the_counter() {
        let names: Vec<String> =
            ["Rx Queue#", "  pkts rx OOB", "  pkts rx err", "Rx Queue#", "  pkts rx OOB", "pkts rx OOBx"]
                .map(String::from)
                .into();
        assert_eq!(places(&names, "pkts rx OOB"), [1, 4]);
        assert!(OwnCounter::of("igb").is_none());
        assert_eq!(OwnCounter::of("vmxnet3").unwrap().name, "pkts rx OOB");
    }

    #[test]
    fn a_counter_that_begins_anew_goes_on() {
        let mut missed = Missed::since(70);
        for (counter, total) in [(70, 0), (75, 5), (0, 5), (3, 8), (3, 8), (2, 10)] {
            missed.add(counter);
            assert_eq!(missed.total(), total, "{counter}");
        }
    }
}
