//! `wirelane flows --top`: a live view on a terminal's screen.
//!
//! ```text
//! workers  -> Shared (their busiest flows, how many they hold) -> Top -> View -> Screen
//! exports  -> Shared (what became of flows at the outputs)        |
//! ledger   ------------------------------------------------------>
//! ```
//! Once per interval, the main thread makes a [`view::View`] of all that, and the terminal shows it as keys say
//! ([`Model`]). Workers scan their flows once per interval too, only those with packets since the last scan.

mod model;
mod names;
mod shared;
mod sums;
mod view;

use std::collections::{BTreeMap, VecDeque};
use std::io::Result;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use wirelane::ledger::Counters;
use wirelane::{Capture, Ledger};
use wirelane_analysis::flows::FlowRecord;

use model::Model;
pub use names::Names;
pub use shared::{Shared, Watcher};
use view::{Line, Rates, View};

use crate::terminal::{self, Taken, title};

/// Maximum intervals in a sparkline.
const HISTORY: usize = 120;

/// The screen, and state that is kept from one interval to the next.
pub struct Top {
    terminal: Taken,
    shared: Arc<Shared>,
    model: Arc<Model>,
    title: String,
    before: Option<Ledger>,
    last: Duration,
    outputs_before: BTreeMap<String, u64>,
    flows_before: u64,
    history: BTreeMap<(usize, Option<u32>), VecDeque<u64>>,
}

impl Top {
    /// Takes the terminal over; it is restored on drop. `names`: names of hosts and ports, if they are shown.
    ///
    /// # Errors
    /// An error of the terminal.
    pub fn begin(capture: &Capture, shared: &Arc<Shared>, names: Option<Arc<Names>>) -> Result<Top> {
        let model = Arc::new(Model::new(names));
        let told = Arc::clone(&model);
        let top = Top {
            terminal: Taken::over(move |key| terminal::TopModel::typed(&*told, key))?,
            shared: Arc::clone(shared),
            model,
            title: title(capture),
            before: None,
            last: Duration::ZERO,
            outputs_before: BTreeMap::new(),
            flows_before: 0,
            history: BTreeMap::new(),
        };
        top.show(View { title: top.title.clone(), balances: true, ..View::default() })?;
        Ok(top)
    }

    /// Called at the end of an interval.
    ///
    /// # Errors
    /// An error of the terminal.
    pub fn interval(&mut self, ledger: &Ledger, elapsed: Duration) -> Result<()> {
        let seconds = elapsed.saturating_sub(self.last).as_secs_f64().max(1e-9);
        let lines = self.lines(ledger, seconds);
        let now = self.shared.now(elapsed);
        let outputs = now.outputs.into_iter().map(|counts| {
            let before = self.outputs_before.insert(counts.target.clone(), counts.flows).unwrap_or(0);
            (counts.flows.saturating_sub(before) as f64 / seconds, counts)
        });
        let outputs = outputs.collect();
        let ended = now.ended.flows;
        let view = View {
            title: self.title.clone(),
            elapsed,
            lines,
            ledger: ledger.total,
            balances: ledger.balances(),
            live: now.live,
            room: now.room,
            ended: now.ended,
            ended_per_s: ended.saturating_sub(self.flows_before) as f64 / seconds,
            unsampled: now.unsampled,
            rows: now.rows,
            outputs,
            message: crate::warnings::last_held(),
        };
        self.flows_before = ended;
        self.before = Some(ledger.clone());
        self.last = elapsed;
        self.show(view)
    }

    fn show(&self, view: View) -> Result<()> {
        self.model.told().live = view;
        self.terminal.show(model::Shown(Arc::clone(&self.model)))
    }

    /// The devices, each with its queues where there are several.
    fn lines(&mut self, ledger: &Ledger, seconds: f64) -> Vec<Line> {
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

/// Source and destination, as a row has them.
pub fn ends(record: &FlowRecord) -> (String, String) {
    match (record.source(), record.destination(), record.icmp()) {
        (Some(source), Some(destination), Some((kind, code))) => {
            (source.to_string(), format!("{destination} {kind}.{code}"))
        }
        (Some(source), Some(destination), None) => {
            (end(source, record.source_port()), end(destination, record.destination_port()))
        }
        _ => (format!("EtherType 0x{:04x}", record.key.eth_type), "-".to_owned()),
    }
}

fn end(address: IpAddr, port: u16) -> String {
    match (address, port) {
        (_, 0) => address.to_string(),
        (IpAddr::V4(address), port) => format!("{address}:{port}"),
        (IpAddr::V6(address), port) => format!("[{address}]:{port}"),
    }
}
