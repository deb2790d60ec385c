//! A capture on devices, by the `ring` engine.

mod arrivals;
mod opening;
mod part;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use self::opening::open_all;
use self::part::{Part, change_filters, flows_of};
use crate::active_rules::{ActiveRuleset, RulesCapacity, Target, Times};
use crate::backend::{Backend, no_kernel_flows};
use crate::balance::queues::{Counts, TableBalancer};
use crate::balance::{Balancer, Controller, Moved};
use crate::clock::Clock;
use crate::egress_devices::{self, EgressDevice, EgressLine};
use crate::engine::ring::bell::Bell;
use crate::engine::ring::group::{self, Membership, reap};
use crate::engine::ring::group_config::{GroupConfig, UserPrograms};
use crate::engine::ring::lane_end::{LaneEnd, Peer};
use crate::engine::ring::order::Merge;
use crate::engine::ring::plugins::Watches;
use crate::engine::ring::rules::KernelSets;
use crate::engine::ring::source::{RingSource, Shared, highest_watermark};
use crate::engine::ring::stamps;
use crate::engine::ring::streams::Streams;
use crate::flow_cache::{FlowCacheLine, KernelFlows};
use crate::hook::Hook;
use crate::hook::HookPoint;
use crate::http_heads::HttpOffload;
use crate::interfaces::{CaptureDevice, Interfaces, Slots};
use crate::ledger::{Counters, Ledger, PluginRecordsLine, WorkerLine};
use crate::maintenance::{self, Lookout, Maintenance};
use crate::meter::Meter;
use crate::record::DeviceNumber;
use crate::rules_startup;
use crate::settings::{Direction, Settings};
use crate::state::StateReader;
use crate::tally::DeviceTally;
use wirelane_control::Server;
use wirelane_filter::{self as filter, Filter};
use wirelane_netdev::{Missed, Monitor, Promiscuous, Selected, State, XdpMode};
use wirelane_tune::polling::PollingHold;

use crate::error::{Error, Result};
use crate::polling;
use crate::watch::{Attachment, Ending, MonitoredDevice, Whereabouts};
use crate::worker::Worker;
use wirelane_bpf::flow::Timeouts;
use wirelane_privsep::Sandbox;
use wirelane_privsep::broker::Broker;

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct LiveCapture {
    // Before the parts: polling threads end while the program that they run for is still there.
    _polling: Vec<PollingHold>,
    // Before the parts: the maintenance thread must not access a group slot that has been given up.
    _maintenance: Maintenance,
    // Before the parts: rules may be changed only in slots that are ours. With the control server that changes them.
    rules: Option<(Arc<ActiveRuleset>, Server)>,
    streams: Option<Arc<Streams>>,
    parts: Mutex<Vec<Part>>,
    kept: Arc<[MonitoredDevice]>,
    clock: Arc<Clock>,
    workers: Vec<Worker>,
    shared: Vec<Arc<Shared>>,
    cores: Vec<Option<usize>>,
    snap_len: usize,
    /// Devices that come later.
    slots: Option<Arc<Slots>>,
    /// Counts of moves for each part whose load moves.
    moved: Vec<Arc<Moved>>,
    egress_devices: Vec<EgressDevice>,
    plugins: Arc<Watches>,
    state: StateReader,
    stopped: AtomicBool,
    monitor: Mutex<Monitor>,
    /// Flows in the kernel, as the capture began.
    flows: Option<KernelFlows>,
}

impl LiveCapture {
    pub(crate) fn open(
        settings: &Settings,
        selected: Vec<Selected>,
        confinement: Option<&Sandbox>,
        broker: &Arc<Broker>,
    ) -> Result<LiveCapture> {
        crate::kernel::require_bpf()?;
        let programs = UserPrograms::read(settings)?;
        let room = rules_startup::room(settings)?;
        let with_sets = |room: RulesCapacity| {
            let maker = confinement.is_some().then_some(broker);
            Ok::<_, Error>((room, KernelSets::new(maker, room.set_bytes())?))
        };
        let room = room.map(with_sets);
        let room: Option<(RulesCapacity, Arc<KernelSets>)> = room.transpose()?;
        let streams = settings.streams.map(Streams::new).transpose()?.map(Arc::new);
        let egress_devices = egress_devices::look_up(&settings.egress_devices, &selected)?;
        let mut monitor = Monitor::open()?;
        let mut cards = Vec::new();
        let count = settings.workers;
        let shared: Vec<Arc<Shared>> = (0..count).map(|_| Arc::default()).collect();
        let mut ends: Vec<(Vec<LaneEnd>, Vec<Bell>)> = (0..count).map(|_| Default::default()).collect();
        let mut parts = Vec::new();
        let mut ring_size = u64::MAX;
        let later = settings.arrivals();
        let opened = open_all(settings, &programs, &selected, later.as_ref(), broker)?;
        let asked = opened.len();
        for (selected, hook, opened) in opened {
            let index = parts.len();
            let device = &selected.device;
            let (instance, needs) = match opened {
                // The user did not request transmitted packets explicitly.
                Err(Error::Unsupported { what, needs, .. })
                    if hook == Some(Hook::Egress) && settings.direction == Direction::Auto =>
                {
                    tracing::warn!("{what} needs {needs}: only received packets are captured");
                    continue;
                }
                opened => opened?,
            };
            let instance = Arc::new(instance);
            let is_many = instance.many().is_some();
            reap(&instance)?;
            cards.push(if is_many {
                None
            } else {
                stamps::card_clock(settings.clock, device, instance.hook)?
            });
            let size = (instance.lanes, instance.queues);
            let config = GroupConfig::of(settings, needs, selected, size, instance.hook);
            let (rules, egress_devices) = (room.clone(), egress_devices.clone());
            let many = asked > 1 || instance.lanes_of(&config.queues).len() > 1 || settings.across_workers;
            let ordered = settings.in_order && many;
            let streams = streams.clone();
            let flow_maps = confinement.map(|_| Arc::clone(broker));
            let config = GroupConfig { rules, egress_devices, streams, ordered, flow_maps, ..config };
            let number = match &later {
                Some((_, hooks)) if is_many => DeviceNumber::of_slots(index as u16, hooks.len() as u16),
                _ => (index as u16).into(),
            };
            ring_size = ring_size.min(config.ring_size as u64);
            let membership = Membership::join(&instance, device, &config)?;
            let mut tallies = Vec::new();
            for (worker, (lanes, _)) in ends.iter_mut().enumerate() {
                let tally = Arc::new(DeviceTally::new(instance.queues));
                for lane in instance.lanes_of(&config.queues) {
                    let (reader, memory) = membership.reader(lane, worker);
                    let peers = if settings.moves_buckets() {
                        shared
                            .iter()
                            .enumerate()
                            .map(|(peer, shared)| Peer {
                                tail: membership.tail(lane, peer),
                                shared: Arc::clone(shared),
                            })
                            .collect()
                    } else {
                        Vec::new()
                    };
                    let (device, tally) = (number, Arc::clone(&tally));
                    let flows = membership.lane_flows(lane, worker);
                    let mark = membership.mark(lane);
                    lanes.push(LaneEnd { reader, memory, device, tally, peers, barrier: None, flows, mark });
                }
                tallies.push(tally);
            }
            let own: Vec<Bell> = (0..count).map(|_| Bell::new()).collect::<Result<_>>()?;
            for ((_, bells), bell) in ends.iter_mut().zip(own) {
                bells.push(bell);
            }
            let promiscuous = (settings.promiscuous && !is_many).then(|| Promiscuous::enter(device.ifindex));
            let promiscuous = promiscuous.transpose()?;
            let counter = if is_many { 0 } else { monitor.statistics(device.ifindex)?.missed() };
            parts.push(Part {
                stray_before: instance.stray(),
                stray_after: None,
                missed: Missed::since(counter),
                membership,
                tallies,
                selected: selected.clone(),
                _promiscuous: promiscuous,
            });
        }
        let bells_of = |part: usize| ends.iter().map(move |(_, bells)| &bells[part]);
        group::hand_over(parts.iter().enumerate().map(|(at, part)| (&part.membership, bells_of(at))))?;
        let (cores, polling) = polling::for_capture(settings, &selected, broker)?;
        let kept: Arc<[MonitoredDevice]> = parts
            .iter()
            .filter(|part| !part.is_many())
            .map(|part| MonitoredDevice {
                name: part.selected.device.name.clone(),
                ifindex: part.selected.device.ifindex,
                hold: Attachment::Instance(Arc::clone(part.membership.instance())),
                native: part.membership.instance().hook == Hook::Xdp(XdpMode::Native),
                // One queue stands for all where the hook does not know the queue.
                known_queues: match part.membership.instance().queues {
                    1 if part.membership.instance().hook == Hook::Ingress => {
                        part.selected.device.max_rx_queues as usize
                    }
                    queues => queues,
                },
                queues: (!part.selected.is_whole_device()).then(|| part.selected.queues.clone()),
                first: State::of(&part.selected.device),
                driver: part.selected.device.driver.clone().unwrap_or_default(),
                may_lose_headers: part.membership.instance().hook == Hook::Ingress
                    && crate::kernel::generic_xdp_hides_headers(),
                whereabouts: Whereabouts::new(part.selected.device.ifindex),
            })
            .collect();
        let clock = Arc::new(Clock::new(cards));
        let (controllers, moved) = controllers(settings, &parts, broker)?;
        let (slots, attacher) = arrivals::register(&parts, kept.len(), settings, broker)?.unzip();
        let newcomers = attacher.zip(slots.clone());
        let lookout = Lookout::open(&settings.patterns, newcomers)?;
        let rules = parts.iter().filter_map(|part| part.membership.rules().cloned());
        let targets = rules.map(|rules| -> Arc<dyn Target> { rules }).collect();
        let ruled = rules_startup::start(
            settings,
            "ring",
            targets,
            Times::Monotonic,
            broker,
            programs.observers.clone(),
        )?;
        broker.seal(confinement.is_some());
        // All privileged work is done, and no thread that would keep the privileges exists yet.
        rules_startup::confine(confinement, ruled.as_ref())?;
        let plugins = parts.iter().filter_map(|part| part.membership.rules().cloned());
        let plugins = Arc::new(Watches::of(plugins));
        let (watched, time, looked, told) = (kept.clone(), clock.clone(), plugins.clone(), shared.clone());
        let maintenance =
            Maintenance::start(lookout, watched, time, told, controllers, looked, flows_of(&parts))?;
        let state = StateReader::of(&programs);
        let rules = ruled.map(|ruled| ruled.serve(state.clone())).transpose()?;
        let below = HttpOffload::of(parts.iter().filter_map(|part| part.membership.http()));
        let workers = ends
            .into_iter()
            .enumerate()
            .map(|(worker, (lanes, bells))| {
                let ordered = settings.in_order && (lanes.len() > 1 || settings.across_workers);
                let merge = ordered.then(|| Merge::new(lanes.len(), settings.clock, &clock));
                let source = RingSource::new(
                    lanes,
                    bells,
                    Arc::clone(&shared[worker]),
                    highest_watermark(ring_size, settings.immediate),
                    settings.workers as u32,
                    merge,
                    settings.patience,
                )
                .spinning(settings.exclusive);
                Worker::new(worker, cores[worker], Box::new(source), Some(clock.clone())).over(below.clone())
            })
            .collect();
        // Last, so that a failure above does not leave a half-filled ledger behind.
        parts.iter().for_each(|part| part.membership.activate());
        Ok(LiveCapture {
            _polling: polling,
            _maintenance: maintenance,
            rules,
            streams,
            parts: Mutex::new(parts),
            kept,
            clock,
            workers,
            shared,
            cores,
            snap_len: settings.snap_len,
            slots,
            moved,
            egress_devices,
            plugins,
            state,
            stopped: AtomicBool::new(false),
            monitor: Mutex::new(monitor),
            flows: settings.flows,
        })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Part>> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The devices of the start.
    fn first_devices(&self) -> Vec<CaptureDevice> {
        self.lock()
            .iter()
            .filter(|part| !part.is_many())
            .map(|part| CaptureDevice {
                name: part.selected.device.name.clone(),
                queues: part.queues(),
                hook: Some(HookPoint::of(part.membership.instance().hook)),
                link_type: part.selected.device.link_type,
                mac: part.selected.device.mac,
                speed_mbps: part.selected.device.speed_mbps,
                zero_copy: None,
            })
            .collect()
    }
}

impl Backend for LiveCapture {
    fn devices(&self) -> Vec<CaptureDevice> {
        let mut devices = self.first_devices();
        devices.extend(self.slots.iter().flat_map(|slots| slots.devices()));
        devices
    }

    fn interfaces(&self) -> Interfaces {
        Interfaces::live(self.first_devices(), self.snap_len, self.slots.clone())
    }

    fn workers(&mut self) -> Vec<Worker> {
        std::mem::take(&mut self.workers)
    }

    fn ended(&self) -> Vec<(String, Ending)> {
        maintenance::ended(&self.kept)
    }

    fn set_filter(&self, expression: &str) -> Result<()> {
        let mut parts = self.lock();
        // Compile all filters before one is changed.
        let filters: Vec<_> = parts
            .iter()
            .map(|part| {
                let device = &part.selected.device;
                filter::for_device(expression, device.link_type, &device.name)
            })
            .collect::<wirelane_filter::Result<_>>()?;
        change_filters(parts.iter_mut().zip(filters.iter().map(Option::as_ref)))
    }

    /// Sets the same filter on all devices.
    fn set_compiled_filter(&self, filter: &Filter) -> Result<()> {
        change_filters(self.lock().iter_mut().map(|part| (part, Some(filter))))
    }

    fn change_flows(&self, entries: usize, timeouts: Timeouts) -> Result<()> {
        let wish = self.flows.ok_or_else(no_kernel_flows)?;
        let wish = KernelFlows { entries, timeouts, ..wish };
        wish.check_entries()?;
        self.lock()
            .iter()
            .filter_map(|part| part.membership.flows())
            .try_for_each(|flows| flows.change(&wish))
    }

    fn rules(&self) -> Option<&Arc<ActiveRuleset>> {
        self.rules.as_ref().map(|(rules, _)| rules)
    }

    fn meter(&self) -> Option<Meter> {
        Some(Meter::new(Arc::clone(self.streams.as_ref()?), Arc::clone(self.rules()?)))
    }

    fn state(&self) -> Option<&StateReader> {
        Some(&self.state)
    }

    fn adopt(&mut self) -> Result<()> {
        let maintenance = Maintenance::start(
            Lookout::open(&[], None)?,
            Arc::clone(&self.kept),
            Arc::clone(&self.clock),
            self.shared.clone(),
            Vec::new(),
            Arc::clone(&self.plugins),
            flows_of(&self.lock()),
        )?;
        // After a fork the old maintenance thread does not exist in this process, so do not join it.
        std::mem::forget(std::mem::replace(&mut self._maintenance, maintenance));
        Ok(())
    }

    fn stop(&self) -> Result<()> {
        let mut parts = self.lock();
        // Leave on all devices, even if one of them fails: a remaining part would keep writing.
        let left: Vec<Result<()>> = parts.iter_mut().map(|part| part.membership.leave()).collect();
        left.into_iter().collect::<Result<()>>()?;
        self.plugins.look();
        for part in parts.iter_mut() {
            part.stray_after.get_or_insert_with(|| part.membership.instance().stray());
        }
        self.stopped.store(true, Ordering::Relaxed); // read under the same lock
        // Release: pairs with the workers' Acquire; the lanes have stopped (leave() waited for them).
        self.shared.iter().for_each(|worker| worker.closed.store(true, Ordering::Release));
        Ok(())
    }

    fn ledger(&self) -> Result<Ledger> {
        let mut parts = self.lock();
        let exact = self.stopped.load(Ordering::Relaxed);
        let mut monitor = self.monitor.lock().unwrap_or_else(PoisonError::into_inner);
        let mut total = Counters::default();
        let mut virtual_devices = Vec::new();
        let mut workers: Vec<WorkerLine> = self
            .shared
            .iter()
            .enumerate()
            .map(|(worker, shared)| WorkerLine {
                worker,
                core: self.cores[worker],
                counters: Counters::default(),
                sleeps: shared.sleeps.load(Ordering::Relaxed),
                wakes: shared.wakes.load(Ordering::Relaxed),
            })
            .collect();
        for (index, part) in parts.iter_mut().enumerate() {
            if let Some(ifindex) = self.kept.get(index).and_then(|kept| kept.whereabouts.index_here()) {
                match monitor.statistics(ifindex) {
                    Ok(statistics) => part.missed.add(statistics.missed()),
                    Err(wirelane_netdev::Error::DeviceGone { .. }) => {}
                    Err(e) => return Err(e.into()),
                }
            }
            // Count the card's missed packets once, even if both directions are captured.
            let counts = !part.egress() && !part.is_many();
            let missed = counts.then(|| part.missed.total());
            let mut device = Counters { nic_missed: missed, ..Counters::default() };
            let slots = self.slots.as_deref().filter(|_| part.is_many());
            let lines = part.lines(index, slots.map(|slots| (slots, index - self.kept.len())), exact);
            lines.iter().for_each(|line| device += line.counters);
            virtual_devices.extend(lines);
            total += device;
            for (worker, line) in workers.iter_mut().enumerate() {
                line.counters += part.worker_line(worker);
            }
        }
        let balance = Moved::report(&self.moved);
        let egress_devices = self.egress_devices.iter().enumerate().map(|(at, device)| {
            let (sent, unsent): (Vec<u64>, Vec<u64>) =
                parts.iter().map(|part| part.membership.sent(at)).unzip();
            EgressLine { device: device.name.clone(), sent: sent.iter().sum(), unsent: unsent.iter().sum() }
        });
        let egress_devices = egress_devices.collect();
        let mut flow_cache: Option<FlowCacheLine> = None;
        for line in parts.iter().filter_map(Part::flow_line) {
            *flow_cache.get_or_insert_default() += line;
        }
        let plugins = self.rules.as_ref().map(|(rules, _)| rules.plugin_lines()).unwrap_or_default();
        let read = parts.iter().flat_map(|part| &part.tallies).map(|tally| tally.plugin_records()).sum();
        let plugin_records = (!plugins.is_empty()).then(|| PluginRecordsLine::new(&plugins, read));
        Ok(Ledger {
            total,
            virtual_devices,
            workers,
            balance,
            lost_by: BTreeMap::new(),
            egress_devices,
            flow_cache,
            plugins,
            plugin_records,
        })
    }

    fn engine(&self) -> &'static str {
        "ring"
    }
}

impl Drop for LiveCapture {
    fn drop(&mut self) {
        // Workers may outlive the capture: they yield the records in their rings, and then end.
        if let Err(e) = self.stop() {
            tracing::warn!("stopping the capture: {e}");
        }
    }
}

/// Load controllers of these parts, and their counts of moves.
fn controllers(
    settings: &Settings,
    parts: &[Part],
    broker: &Arc<Broker>,
) -> Result<(Vec<Controller>, Vec<Arc<Moved>>)> {
    let mut all = Vec::new();
    for part in parts {
        let (instance, group) = (Arc::clone(part.membership.instance()), part.membership.group());
        if settings.moves_buckets() {
            let moved = Arc::default();
            let balancer = Balancer::new(instance, group, settings.workers, Arc::clone(&moved));
            all.push((Controller::Buckets(balancer), moved));
        } else if !part.egress() && !part.is_many() {
            let table = TableBalancer::of(settings, &part.selected, Counts::Ring(instance, group), broker)?;
            all.extend(table.map(|(balancer, moved)| (Controller::Table(Box::new(balancer)), moved)));
        }
    }
    Ok(all.into_iter().unzip())
}
