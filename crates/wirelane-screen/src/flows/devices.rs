//! Rates and history of devices and their RX queues.

use std::collections::{BTreeMap, VecDeque};

use wirelane::Ledger;
use wirelane::ledger::Counters;

use super::view::{Line, Rates};

/// Maximum intervals in a sparkline.
const HISTORY: usize = 120;

/// State that is kept from one interval to the next.
#[derive(Default)]
pub struct Devices {
    before: Option<Ledger>,
    history: BTreeMap<(usize, Option<u32>), VecDeque<u64>>,
}

impl Devices {
    /// Rates of this many seconds up to the ledger: a line per device, each with its queues where there are several.
    pub fn lines(&mut self, ledger: &Ledger, seconds: f64) -> Vec<Line> {
        let mut devices: BTreeMap<usize, Device> = BTreeMap::new();
        for line in &ledger.virtual_devices {
            let since = |before: &Ledger| {
                let mut lines = before.virtual_devices.iter();
                let same = lines.find(|other| other.index == line.index && other.queue == line.queue);
                same.map_or(line.counters, |same| line.counters.since(&same.counters))
            };
            let since = self.before.as_ref().map_or(line.counters, since);
            let rates =
                Rates { pps: since.analysed as f64 / seconds, bps: since.bytes as f64 * 8.0 / seconds };
            let name = match line.egress {
                true => format!("{} tx", line.device),
                false => line.device.clone(),
            };
            let device = devices.entry(line.index).or_insert_with(|| Device { name, ..Device::default() });
            device.counters.lost += line.counters.lost;
            device.counters.shed += line.counters.shed;
            device.rates.pps += rates.pps;
            device.rates.bps += rates.bps;
            device.queues.push((line.queue, line.counters, rates));
        }
        let mut lines = Vec::new();
        for (index, Device { name, counters, rates, queues }) in devices {
            lines.push(self.line((index, None), name.clone(), rates, counters));
            if queues.len() > 1 {
                for (queue, counters, rates) in queues {
                    lines.push(self.line((index, Some(queue)), format!("{name}@{queue}"), rates, counters));
                }
            }
        }
        self.before = Some(ledger.clone());
        lines
    }

    fn line(&mut self, at: (usize, Option<u32>), name: String, rates: Rates, counters: Counters) -> Line {
        let history = self.history.entry(at).or_default();
        history.push_back(rates.pps.round() as u64);
        if history.len() > HISTORY {
            history.pop_front();
        }
        let history = history.iter().copied().collect();
        Line { name, is_queue: at.1.is_some(), rates, lost: counters.lost, shed: counters.shed, history }
    }
}

/// A device, or one direction of it, with its RX queues.
#[derive(Default)]
struct Device {
    name: String,
    counters: Counters,
    rates: Rates,
    queues: Vec<(u32, Counters, Rates)>,
}
