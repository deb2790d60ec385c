//! A capture on devices by a socket engine, `packet` or `xsk`: the parts that both share, which are the ledger,
//! stopping, and device monitoring.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::active_rules::{ActiveRuleset, Target, Times};
use crate::backend::Backend;
use crate::balance::queues::{Counts, TableBalancer};
use crate::balance::{Controller, Moved};
use crate::clock::Clock;
use crate::engine::fence::Fence;
use crate::engine::ring::source::Shared;
use crate::engine::sockets::{Opened, Started};
use crate::error::Result;
use crate::hook::HookPoint;
use crate::interfaces::{CaptureDevice, Interfaces};
use crate::ledger::{Counters, Ledger, VirtualDeviceLine, WorkerLine};
use crate::maintenance::{self, Lookout, Maintenance};
use crate::rules_startup;
use crate::settings::Settings;
use crate::state::StateReader;
use wirelane_control::Server;
use wirelane_filter::{self as filter, Filter};
use wirelane_netdev::{Missed, Monitor, Promiscuous, Selected, State};
use wirelane_tune::polling::PollingHold;

use crate::polling;
use crate::watch::{Attachment, Ending, MonitoredDevice, Whereabouts};
use crate::worker::Worker;
use wirelane_privsep::Sandbox;
use wirelane_privsep::broker::Broker;

#[derive(Debug)]
struct Device {
    opened: Opened,
    /// The card's missed packets until the last query, which is the result when the device has disappeared.
    missed: Missed,
    _promiscuous: Option<Promiscuous>,
}

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct SocketCapture {
    // Before the sockets: polling threads end while what they run for is still there.
    _polling: Vec<PollingHold>,
    _maintenance: Maintenance,
    /// The active rules, with the control server that changes them.
    rules: Option<(Arc<ActiveRuleset>, Server)>,
    engine: &'static str,
    /// The reason for this engine; `None` if the user chose it.
    reason: Option<String>,
    devices: Mutex<Vec<Device>>,
    kept: Arc<[MonitoredDevice]>,
    clock: Arc<Clock>,
    workers: Vec<Worker>,
    shared: Vec<Arc<Shared>>,
    cores: Vec<Option<usize>>,
    snap_len: usize,
    /// Counts of moves for each device whose RSS table entries move.
    moved: Vec<Arc<Moved>>,
    fence: Mutex<Option<Fence>>,
    closed: AtomicBool,
    monitor: Mutex<Monitor>,
}

impl SocketCapture {
    /// Starts a capture with the sockets that an engine has opened. `reason`: why this engine, where the user did not
    /// choose it. On return, packets are accepted.
    pub(crate) fn start(
        started: Started,
        reason: Option<String>,
        settings: &Settings,
        confinement: Option<&Sandbox>,
        broker: &Arc<Broker>,
    ) -> Result<SocketCapture> {
        let Started { engine, parts, sources, stamps_utc } = started;
        let mut monitor = Monitor::open()?;
        let fence = Fence::new()?;
        let mut devices = Vec::new();
        for opened in parts {
            let ifindex = opened.selected.device.ifindex;
            let promiscuous = settings.promiscuous.then(|| Promiscuous::enter(ifindex)).transpose()?;
            let missed = Missed::since(monitor.statistics(ifindex)?.missed());
            devices.push(Device { opened, missed, _promiscuous: promiscuous });
        }
        let selected: Vec<Selected> = devices.iter().map(|device| device.opened.selected.clone()).collect();
        let (cores, polling) = polling::for_capture(settings, &selected, broker)?;
        let kept: Arc<[MonitoredDevice]> = devices.iter().map(|device| monitored(&device.opened)).collect();
        let clock = Arc::new(Clock::new(Vec::new()));
        let shared: Vec<Arc<Shared>> = sources.iter().map(|(_, shared)| Arc::clone(shared)).collect();
        let mut controllers = Vec::new();
        let mut moved = Vec::new();
        for Device { opened, .. } in devices.iter().filter(|device| !device.opened.part.hook().is_egress()) {
            let counts = Counts::Sockets(Arc::clone(&opened.part));
            if let Some((balancer, its)) = TableBalancer::of(settings, &opened.selected, counts, broker)? {
                controllers.push(Controller::Table(Box::new(balancer)));
                moved.push(its);
            }
        }
        let lookout = Lookout::open(&settings.patterns, None)?;
        let rules = devices.iter().filter_map(|device| device.opened.rules.clone());
        let targets = rules.map(|rules| -> Arc<dyn Target> { rules }).collect();
        let ruled = rules_startup::start(settings, engine, targets, Times::Monotonic, broker, Vec::new())?;
        broker.seal(confinement.is_some());
        // All privileged work is done, and no thread that would keep the privileges exists yet.
        rules_startup::confine(confinement, ruled.as_ref())?;
        let maintenance = Maintenance::start(
            lookout,
            Arc::clone(&kept),
            Arc::clone(&clock),
            shared.clone(),
            controllers,
            Arc::default(),
            Vec::new(),
        )?;
        let rules = ruled.map(|ruled| ruled.serve(StateReader::default())).transpose()?;
        let workers = sources
            .into_iter()
            .enumerate()
            .map(|(worker, (source, _))| {
                let clock = (!stamps_utc).then(|| Arc::clone(&clock));
                Worker::new(worker, cores[worker], source, clock)
            })
            .collect();
        // Last, so that a failure above does not leave a half-filled ledger behind.
        devices.iter().try_for_each(|device| device.opened.part.accept())?;
        Ok(SocketCapture {
            _polling: polling,
            _maintenance: maintenance,
            rules,
            engine,
            reason,
            devices: Mutex::new(devices),
            kept,
            clock,
            workers,
            shared,
            cores,
            snap_len: settings.snap_len,
            moved,
            fence: Mutex::new(Some(fence)),
            closed: AtomicBool::new(false),
            monitor: Mutex::new(monitor),
        })
    }

    fn worker_lines(&self) -> Vec<WorkerLine> {
        let lines = self.shared.iter().zip(&self.cores).enumerate();
        lines
            .map(|(worker, (shared, core))| WorkerLine {
                worker,
                core: *core,
                counters: Counters::default(),
                sleeps: shared.sleeps.load(Ordering::Relaxed),
                wakes: shared.wakes.load(Ordering::Relaxed),
            })
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Device>> {
        self.devices.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Backend for SocketCapture {
    fn engine(&self) -> &'static str {
        self.engine
    }

    fn devices(&self) -> Vec<CaptureDevice> {
        self.lock()
            .iter()
            .map(|Device { opened: Opened { selected, part, .. }, .. }| CaptureDevice {
                name: selected.device.name.clone(),
                queues: part.queues().to_vec(),
                hook: Some(part.hook()),
                link_type: selected.device.link_type,
                mac: selected.device.mac,
                speed_mbps: selected.device.speed_mbps,
                zero_copy: part.zero_copy(),
            })
            .collect()
    }

    fn interfaces(&self) -> Interfaces {
        Interfaces::live(self.devices(), self.snap_len, None)
    }

    fn workers(&mut self) -> Vec<Worker> {
        std::mem::take(&mut self.workers)
    }

    fn ended(&self) -> Vec<(String, Ending)> {
        maintenance::ended(&self.kept)
    }

    fn set_filter(&self, expression: &str) -> Result<()> {
        let devices = self.lock();
        // Compile all filters before one is changed.
        let filters: Vec<_> = devices
            .iter()
            .map(|device| {
                let device = &device.opened.selected.device;
                filter::for_device(expression, device.link_type, &device.name)
            })
            .collect::<wirelane_filter::Result<_>>()?;
        devices.iter().zip(filters).try_for_each(|(device, filter)| device.opened.part.set_filter(filter))
    }

    /// Sets the same filter on all devices.
    fn set_compiled_filter(&self, filter: &Filter) -> Result<()> {
        self.lock().iter().try_for_each(|device| device.opened.part.set_filter(Some(filter.clone())))
    }

    fn rules(&self) -> Option<&Arc<ActiveRuleset>> {
        self.rules.as_ref().map(|(rules, _)| rules)
    }

    fn adopt(&mut self) -> Result<()> {
        let maintenance = Maintenance::start(
            Lookout::open(&[], None)?,
            Arc::clone(&self.kept),
            Arc::clone(&self.clock),
            self.shared.clone(),
            Vec::new(),
            Arc::default(),
            Vec::new(),
        )?;
        // After a fork the old maintenance thread does not exist in this process, so do not join it.
        std::mem::forget(std::mem::replace(&mut self._maintenance, maintenance));
        Ok(())
    }

    fn stop(&self) -> Result<()> {
        let devices = self.lock();
        // Refuse on all devices, even if one of them fails.
        let refused: Vec<Result<()>> = devices.iter().map(|device| device.opened.part.refuse()).collect();
        refused.into_iter().collect::<Result<()>>()?;
        if let Some(fence) = self.fence.lock().unwrap_or_else(PoisonError::into_inner).take() {
            fence.pass();
        }
        self.closed.store(true, Ordering::Relaxed); // read under the same lock
        // Release: pairs with the workers' Acquire. Nothing more is accepted now.
        self.shared.iter().for_each(|worker| worker.closed.store(true, Ordering::Release));
        Ok(())
    }

    fn ledger(&self) -> Result<Ledger> {
        let mut devices = self.lock();
        let closed = self.closed.load(Ordering::Relaxed);
        let mut monitor = self.monitor.lock().unwrap_or_else(PoisonError::into_inner);
        let mut ledger = Ledger {
            total: Counters::default(),
            virtual_devices: Vec::new(),
            workers: self.worker_lines(),
            balance: Moved::report(&self.moved),
            lost_by: BTreeMap::new(),
            flow_cache: None,
            plugins: Vec::new(),
            plugin_records: None,
            egress_devices: Vec::new(),
        };
        for (index, device) in devices.iter_mut().enumerate() {
            if let Some(ifindex) = self.kept[index].whereabouts.index_here() {
                match monitor.statistics(ifindex) {
                    Ok(statistics) => device.missed.add(statistics.missed()),
                    Err(wirelane_netdev::Error::DeviceGone { .. }) => {}
                    Err(e) => return Err(e.into()),
                }
            }
            device.enter(index, closed, &mut ledger)?;
        }
        Ok(ledger)
    }

    fn engine_reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }
}

/// The entry of a device for the maintenance thread.
fn monitored(opened: &Opened) -> MonitoredDevice {
    let Selected { device, queues, .. } = &opened.selected;
    MonitoredDevice {
        name: device.name.clone(),
        ifindex: device.ifindex,
        hold: Attachment::Sockets(Arc::clone(&opened.part)),
        native: opened.part.hook() == HookPoint::XdpSocket,
        known_queues: opened.part.known_queues(),
        queues: (!opened.selected.is_whole_device()).then(|| queues.clone()),
        first: State::of(device),
        driver: device.driver.clone().unwrap_or_default(),
        may_lose_headers: false,
        whereabouts: Whereabouts::new(device.ifindex),
    }
}

impl Device {
    /// Adds this device's part to the ledger.
    fn enter(&self, index: usize, closed: bool, ledger: &mut Ledger) -> Result<()> {
        let Opened { selected, part, tallies, .. } = &self.opened;
        let egress = part.hook().is_egress();
        let mut queues: BTreeMap<u32, Counters> =
            part.queues().iter().map(|queue| (*queue, Counters::default())).collect();
        // Read what is analysed first: it follows what is delivered.
        let analysed: Vec<Vec<[u64; 4]>> = tallies
            .iter()
            .map(|tally| {
                let of = |queue: usize| {
                    let (packets, bytes) = tally.of(queue);
                    [packets, bytes, tally.filtered(queue), tally.absorbed(queue)]
                };
                part.queues().iter().map(|queue| of(*queue as usize)).collect()
            })
            .collect();
        // Read this after the analysed counts: packets taken from a socket include the analysed ones.
        let aggregates: Vec<Vec<(u64, u64)>> = tallies
            .iter()
            .map(|tally| part.queues().iter().map(|queue| tally.aggregates(*queue as usize)).collect())
            .collect();
        let account = part.account(closed)?;
        for line in account.lines {
            let at = part.queues().iter().position(|queue| *queue == line.queue);
            let [packets, bytes, refused, absorbed] = at.map_or([0; 4], |at| analysed[line.worker][at]);
            // A socket counts an aggregate once.
            let (further, aggregates) = at.map_or((0, 0), |at| aggregates[line.worker][at]);
            // While packets flow the counts are read one after the other.
            let delivered = (line.delivered + further).saturating_sub(refused + absorbed);
            let delivered = if closed { delivered } else { delivered.max(packets) };
            let filtered = line.filtered + refused;
            let counters = Counters {
                seen: if closed { line.seen + further } else { filtered + absorbed + line.lost + delivered },
                filtered,
                absorbed,
                lost: line.lost,
                delivered,
                analysed: packets,
                in_flight: delivered.saturating_sub(packets),
                bytes,
                aggregates,
                ..Counters::default()
            };
            *queues.entry(line.queue).or_default() += counters;
            ledger.workers[line.worker].counters += counters;
        }
        // Count the card's missed packets once, even if both directions are captured.
        let missed = (!egress).then(|| self.missed.total());
        ledger.total += Counters { nic_missed: missed, ..Counters::default() };
        for (queue, counters) in queues {
            ledger.total += counters;
            ledger.virtual_devices.push(VirtualDeviceLine {
                device: selected.device.name.clone(),
                queue,
                egress,
                index,
                counters,
            });
        }
        for (cause, packets) in account.causes {
            *ledger.lost_by.entry(cause).or_default() += packets;
        }
        Ok(())
    }
}

impl Drop for SocketCapture {
    fn drop(&mut self) {
        // Workers may outlive the capture: they yield the packets in their sockets, and then end.
        if let Err(e) = self.stop() {
            tracing::warn!("stopping the capture: {e}");
        }
    }
}
