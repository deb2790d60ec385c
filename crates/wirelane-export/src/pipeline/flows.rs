//! Pipeline of flows: packets to flows, and ended flows to exports.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use wirelane::{Interfaces, Ledger, Record, Timebase, Worker};
use wirelane_analysis::flows::{CacheSettings, FlowCache, FlowKey, FlowReader, FlowRecord, Timeouts, Totals};

use super::{Handler, ON_ITS_WAY_NS, Sink, ended};
use crate::flows::Exporters;
use crate::{Error, Result};

/// Number of flows that are sent together.
const TOGETHER: usize = 256;
/// Time that the exporting thread waits for flows, if it has nothing else to do.
const REST: Duration = Duration::from_millis(100);

/// Totals of all workers.
#[derive(Debug, Default)]
pub struct SharedTotals(Mutex<WorkersTotals>);

/// Totals of packets.
#[derive(Clone, Copy, Debug, Default)]
pub struct WorkersTotals {
    /// Totals of the flows.
    pub flows: Totals,
    /// Packets that sampling has skipped, and their bytes on the wire.
    pub unsampled_packets: u64,
    /// See [`WorkersTotals::unsampled_packets`].
    pub unsampled_bytes: u64,
}

impl WorkersTotals {
    /// Adds the packets that sampling has skipped in the kernel.
    pub fn with_kernels(mut self, ledger: &Ledger) -> WorkersTotals {
        if let Some(cache) = &ledger.flow_cache {
            self.unsampled_packets += cache.unsampled;
            self.unsampled_bytes += cache.unsampled_bytes;
        }
        self
    }

    /// Whether every packet is in a flow, or was skipped by sampling: each that was analysed, or, where the kernel makes
    /// the flows, each in its caches.
    pub fn are_those_of(&self, ledger: &Ledger) -> bool {
        let (packets, bytes) = match &ledger.flow_cache {
            Some(cache) => (cache.packets, cache.bytes),
            None => (ledger.total.analysed, ledger.total.bytes),
        };
        self.flows.packets + self.unsampled_packets == packets
            && self.flows.wire_bytes + self.unsampled_bytes == bytes
    }
}

impl SharedTotals {
    /// The sums, once all workers have ended.
    pub fn totals(&self) -> WorkersTotals {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, totals: &Totals, unsampled_packets: u64, unsampled_bytes: u64) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.flows.flows += totals.flows;
        all.flows.packets += totals.packets;
        all.flows.bytes += totals.bytes;
        all.flows.wire_bytes += totals.wire_bytes;
        for (sum, more) in all.flows.by_reason.iter_mut().zip(totals.by_reason) {
            *sum += more;
        }
        all.unsampled_packets += unsampled_packets;
        all.unsampled_bytes += unsampled_bytes;
    }
}

/// Maps interfaces to devices. The interfaces of a file may be RX queues of one device, as in our recordings: its flows
/// are those of a live capture of the device.
struct Devices {
    interfaces: Interfaces,
    /// By the index of a file's interface: the index of the first interface of the same device.
    known: Vec<u16>,
}

impl Devices {
    fn of(&mut self, record: &Record<'_>) -> u16 {
        match self.known.get(record.device()) {
            Some(device) => *device,
            None => self.learn(record.device()),
        }
    }

    #[cold]
    fn learn(&mut self, upto: usize) -> u16 {
        for at in self.known.len()..=upto {
            let device = self
                .name(at)
                .and_then(|name| (0..at).find(|other| self.name(*other).as_ref() == Some(&name)));
            self.known.push(device.unwrap_or(at) as u16);
        }
        self.known[upto]
    }

    /// The device of an interface that is one of its queues, or its transmitted packets.
    fn name(&self, at: usize) -> Option<String> {
        let name = self.interfaces.get(at, 0)?.name;
        let (device, queue) = name.rsplit_once('@')?;
        (queue == "tx" || queue.parse::<u16>().is_ok()).then(|| device.to_owned())
    }
}

/// Timeouts that change while the workers run.
#[derive(Debug, Default)]
pub struct LiveTimeouts {
    /// Number of changes. A worker that finds one of them finds its timeouts, or later ones: the mutex orders them.
    changes: AtomicU64,
    latest: Mutex<Option<Timeouts>>,
}

impl LiveTimeouts {
    /// Has all workers use these timeouts from their next batch of packets on.
    pub fn set(&self, timeouts: Timeouts) {
        *self.latest.lock().unwrap_or_else(PoisonError::into_inner) = Some(timeouts);
        self.changes.fetch_add(1, Ordering::Relaxed);
    }

    /// The timeouts, if there are more changes than `seen`.
    fn newer(&self, seen: &mut u64) -> Option<Timeouts> {
        let changes = self.changes.load(Ordering::Relaxed);
        if changes == *seen {
            return None;
        }
        *seen = changes;
        *self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Settings of the workers' flows.
#[derive(Clone, Debug)]
pub struct FlowSettings {
    /// Timeouts, memory limit and directions.
    pub cache: CacheSettings,
    /// Whether to use the headers inside tunnels.
    pub inner: bool,
    /// Sampling interval: one of this many packets.
    pub sampling: u32,
    /// Whether the input is live.
    pub live: bool,
    /// Whether flows come from the kernel's caches, and not from packets.
    pub kernel: bool,
    /// Timeouts that take the place of those in `cache`.
    pub timeouts: Arc<LiveTimeouts>,
}

/// Callback for a worker's active flows: the cache, and the number of packets skipped by sampling.
pub type Watcher = Box<dyn FnMut(&mut FlowCache, u64) + Send>;

/// One worker's flows.
pub struct FlowWorker {
    cache: FlowCache,
    reader: FlowReader,
    devices: Devices,
    time: Timebase,
    /// For flows made by the kernel: the time up to which all of them have arrived.
    settled: Option<Arc<AtomicU64>>,
    ticked: u64,
    timeouts: Arc<LiveTimeouts>,
    /// Number of changes of the timeouts so far.
    changes: u64,
    sender: SyncSender<Vec<FlowRecord>>,
    totals: Arc<SharedTotals>,
    live: bool,
    sampling: u32,
    /// Packets to skip before the next sampled one.
    skip: u32,
    unsampled_packets: u64,
    unsampled_bytes: u64,
    /// Callback for the active flows.
    watcher: Option<Watcher>,
}

impl FlowWorker {
    /// A worker without flows, for a capture with these interfaces.
    pub fn new(
        how: FlowSettings,
        interfaces: Interfaces,
        worker: &Worker,
        sender: SyncSender<Vec<FlowRecord>>,
        totals: &Arc<SharedTotals>,
    ) -> FlowWorker {
        FlowWorker {
            cache: FlowCache::new(how.cache),
            reader: FlowReader::new(how.inner),
            devices: Devices { interfaces, known: Vec::new() },
            time: worker.timebase(),
            settled: worker.settled(),
            ticked: 0,
            timeouts: how.timeouts,
            changes: 0,
            sender,
            totals: Arc::clone(totals),
            live: how.live,
            sampling: how.sampling,
            skip: 0,
            unsampled_packets: 0,
            unsampled_bytes: 0,
            watcher: None,
        }
    }

    /// Sets a callback that is called at the end of each batch. The cache counts the busiest flows from then on.
    #[must_use]
    pub fn watched(mut self, watcher: Option<Watcher>) -> FlowWorker {
        if watcher.is_some() {
            self.cache.watch();
        }
        self.watcher = watcher;
        self
    }

    /// Ends due flows and sends them; `idle`: no packets came for a while.
    fn tick(&mut self, idle: bool) -> Result<()> {
        let now_ns = match &self.settled {
            Some(settled) => {
                let settled = settled.load(Ordering::Relaxed);
                if settled == self.ticked {
                    return Ok(());
                }
                self.ticked = settled;
                settled
            }
            // While packets come, their time stamps are the current time.
            None if self.live && idle => self.time.steady_now_ns().saturating_sub(ON_ITS_WAY_NS),
            None => return Ok(()),
        };
        while self.cache.tick(now_ns) {
            self.hand_on()?;
        }
        Ok(())
    }

    /// Sends ended flows. If the exports do not keep up, the worker waits for them, and its rings fill: packets lost
    /// then are in the ledger.
    fn hand_on(&mut self) -> Result<()> {
        if self.cache.finished().is_empty() {
            return Ok(());
        }
        let mut finished = std::mem::take(self.cache.finished());
        // Timeouts use a monotonic clock.
        for record in &mut finished {
            *record = record.in_time(|ns| self.time.utc_of_steady_ns(ns));
        }
        self.sender.send(finished).map_err(|_| ended("the exports"))
    }
}

impl Handler for FlowWorker {
    type Error = Error;

    #[inline]
    fn record(&mut self, record: &Record<'_>) -> Result<()> {
        if let Some(part) = record.flow() {
            let key = FlowKey { device: self.devices.of(record), ..part.key };
            self.cache.part(&key, &part.flow);
            return if self.cache.finished().len() >= TOGETHER { self.hand_on() } else { Ok(()) };
        }
        if self.skip > 0 {
            self.skip -= 1;
            self.unsampled_packets += u64::from(record.segments());
            self.unsampled_bytes += record.wire_bytes();
            return Ok(());
        }
        self.skip = self.sampling - 1;
        let (ip, mut packet) = self.reader.read(record, self.time.steady_ns(record));
        packet.device = self.devices.of(record);
        self.cache.packet(ip, &packet);
        if self.cache.finished().len() >= TOGETHER { self.hand_on() } else { Ok(()) }
    }

    fn pause(&mut self, idle: bool) -> Result<()> {
        if let Some(timeouts) = self.timeouts.newer(&mut self.changes) {
            self.cache.set_timeouts(timeouts);
        }
        self.tick(idle)?;
        if let Some(watcher) = &mut self.watcher {
            watcher(&mut self.cache, self.unsampled_packets);
        }
        // For a file, sending at each batch would send single flows.
        if self.live { self.hand_on() } else { Ok(()) }
    }

    fn finish(&mut self) -> Result<()> {
        self.tick(false)?;
        while self.cache.flush() {
            self.hand_on()?;
        }
        self.hand_on()
    }
}

impl Drop for FlowWorker {
    fn drop(&mut self) {
        self.totals.add(self.cache.totals(), self.unsampled_packets, self.unsampled_bytes);
    }
}

/// Exports flows until the channel ends or `sink` returns an error. The results are in the exporters.
/// # Errors
/// The error of `sink`; all earlier flows have been exported.
pub fn export<S: Sink<FlowRecord>>(
    exporters: &mut Exporters,
    sink: &mut S,
    inbox: &Receiver<Vec<FlowRecord>>,
) -> std::result::Result<(), S::Error> {
    let mut result = Ok(());
    loop {
        sink.look(&|| exporters.counts());
        sink.told(&|| exporters.states());
        if exporters.is_full() {
            exporters.wait(REST);
            exporters.pump();
            continue;
        }
        match inbox.recv_timeout(exporters.rest(REST)) {
            Ok(flows) => {
                exporters.flows(&flows);
                result = sink.take(flows);
                // Closing this end of the channel ends the workers.
                if result.is_err() {
                    break;
                }
            }
            Err(RecvTimeoutError::Timeout) => exporters.pump(),
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    let result = result.and_then(|()| sink.finish());
    exporters.finish();
    result
}
