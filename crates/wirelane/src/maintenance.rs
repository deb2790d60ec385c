//! Maintenance thread: clock synchronisation, rebalancing, reaping dead groups, device events.
//!
//! A few times a second it follows the system's clock, moves load where requested, clears the slots of groups whose
//! owners were killed, switches flow caches to their other half, warns of plug-ins that were switched off, and checks
//! the devices (`watch.rs`). A device that has disappeared ends its part of the capture. Of a device that appears and
//! matches a pattern of the capture, it warns.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::balance::Controller;
use crate::clock::Clock;
use crate::engine::ring::flows::GroupFlows;
use crate::engine::ring::group;
use crate::engine::ring::many::Attacher;
use crate::engine::ring::plugins;
use crate::engine::ring::source::Shared;
use crate::error::{Error, Result};
use crate::interfaces::Slots;
use crate::watch::{Attachment, Ending, MonitoredDevice, Watch, clock_time};
use wirelane_netdev::{Arrival, Arrivals, LinkType, Selector, Watcher};

const PERIOD: Duration = Duration::from_millis(200);

/// Sockets that ask for devices, opened before the process gives up its rights.
#[derive(Debug)]
pub(crate) struct Lookout {
    watcher: Watcher,
    /// `None`: the capture has no patterns.
    arrivals: Option<Arrivals>,
    /// `None`: devices that come later are not captured.
    newcomers: Option<(Attacher, Arc<Slots>)>,
}

impl Lookout {
    /// Opens the sockets; `patterns`: those of the capture's devices; `newcomers`: what captures a device that matches one.
    pub(crate) fn open(patterns: &[Selector], newcomers: Option<(Attacher, Arc<Slots>)>) -> Result<Lookout> {
        let arrivals = (!patterns.is_empty()).then(|| Arrivals::open(patterns)).transpose()?;
        Ok(Lookout { watcher: Watcher::open()?, arrivals, newcomers })
    }
}

/// Handle of the thread; dropping it ends the thread.
#[derive(Debug)]
pub(crate) struct Maintenance {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Maintenance {
    /// Starts the thread. When every device has disappeared, `workers` are closed: no packet will come any more.
    pub(crate) fn start(
        mut lookout: Lookout,
        devices: Arc<[MonitoredDevice]>,
        clock: Arc<Clock>,
        workers: Vec<Arc<Shared>>,
        mut controllers: Vec<Controller>,
        plugins: Arc<plugins::Watches>,
        flows: Vec<Arc<GroupFlows>>,
    ) -> Result<Maintenance> {
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let signal = Arc::clone(&stop);
        let mut watches = Watch::all(&devices);
        let thread = std::thread::Builder::new()
            .name("wl-maintenance".into())
            .spawn(move || {
                while !sleep(&signal) {
                    clock.follow();
                    controllers.iter_mut().for_each(Controller::look);
                    plugins.look();
                    for flows in &flows {
                        if let Err(e) = flows.look() {
                            tracing::warn!("turning flow caches over: {e}");
                        }
                    }
                    let before = ended(&devices);
                    for (device, watch) in devices.iter().zip(&mut watches) {
                        look_after(device, watch, &mut lookout.watcher);
                    }
                    for (name, ending) in ended(&devices).into_iter().filter(|one| !before.contains(one)) {
                        tracing::warn!("{}: {name} {ending}", clock_time());
                    }
                    // After the devices: one of them may have come back to this network namespace.
                    if let Some(arrivals) = &mut lookout.arrivals {
                        meet(arrivals, &mut lookout.newcomers, &devices);
                    }
                    let waits = lookout.newcomers.is_some();
                    if !waits && devices.iter().all(|device| device.whereabouts.ending().is_some()) {
                        // Release: pairs with the workers' Acquire. A device that has disappeared has no lanes.
                        flows.iter().for_each(|flows| flows.freeze());
                        workers.iter().for_each(|worker| worker.closed.store(true, Ordering::Release));
                    }
                }
            })
            .map_err(|e| Error::kernel("starting the capture's maintenance thread", e))?;
        Ok(Maintenance { stop, thread: Some(thread) })
    }
}

/// The devices that will deliver nothing more, and why.
pub(crate) fn ended(devices: &[MonitoredDevice]) -> Vec<(String, Ending)> {
    let ended = |device: &MonitoredDevice| Some((device.name.clone(), device.whereabouts.ending()?));
    let mut ended: Vec<(String, Ending)> = devices.iter().filter_map(ended).collect();
    // A device with both directions captured has two parts, one after the other.
    ended.dedup();
    ended
}

/// Captures devices that match a pattern, or warns of them.
fn meet(
    arrivals: &mut Arrivals,
    newcomers: &mut Option<(Attacher, Arc<Slots>)>,
    devices: &[MonitoredDevice],
) {
    let is_captured = |ifindex| {
        let runs = |device: &&MonitoredDevice| device.whereabouts.ending().is_none();
        devices.iter().filter(runs).any(|device| device.whereabouts.index_here() == Some(ifindex))
    };
    match arrivals.look(is_captured) {
        Ok(changes) => {
            for (ifindex, name) in changes.gone {
                if let Some((attacher, _)) = newcomers
                    && attacher.detach(ifindex)
                {
                    let name = name.escape_debug();
                    tracing::warn!("{}: {name} disappeared; packets until then are counted", clock_time());
                }
            }
            for arrival in changes.arrivals {
                let (name, pattern) = (arrival.name.escape_debug(), arrival.pattern.escape_debug());
                let how = if arrival.existed { "is up now" } else { "appeared" };
                let captured = newcomers.as_mut().map(|newcomers| capture(&arrival, newcomers));
                let event = format!("{}: {name} {how} and matches '{pattern}'", clock_time());
                match captured {
                    Some(Ok(())) => tracing::info!("{event}; it is captured"),
                    Some(Err(e)) => tracing::warn!("{event}; it is not captured: {e}"),
                    None => tracing::warn!("{event}; it is not captured: start again to capture it"),
                }
            }
        }
        Err(e) => tracing::warn!("looking for new devices: {e}"),
    }
}

/// Attaches the capture to a device that came later.
fn capture(arrival: &Arrival, (attacher, slots): &mut (Attacher, Arc<Slots>)) -> Result<()> {
    if arrival.link_type != LinkType::Ethernet {
        return Err(Error::Unsupported {
            what: format!("capturing {} by a pattern", arrival.name.escape_debug()),
            needs: "a device of the link type Ethernet".into(),
            instead: "start again to capture it".into(),
        });
    }
    // Its packets may come before `attach` returns.
    if attacher.has_slot() {
        slots.add(&arrival.name, arrival.ifindex);
    }
    let attached = attacher.attach(&arrival.name, arrival.ifindex, arrival.loopback);
    if attached.is_err() {
        attacher.detach(arrival.ifindex);
    }
    attached
}

/// Sleeps until the next round; true once the thread is to end.
fn sleep(signal: &(Mutex<bool>, Condvar)) -> bool {
    let stop = signal.0.lock().unwrap_or_else(PoisonError::into_inner);
    let (stop, _) =
        signal.1.wait_timeout_while(stop, PERIOD, |stop| !*stop).unwrap_or_else(PoisonError::into_inner);
    *stop
}

fn look_after(device: &MonitoredDevice, watch: &mut Watch, watcher: &mut Watcher) {
    if device.whereabouts.ending().is_some() {
        return;
    }
    if let Err(e) = watch.look(device, watcher) {
        tracing::warn!("looking what has become of {}: {e}", device.name);
    }
    if device.whereabouts.ending().is_some() {
        return;
    }
    let Attachment::Instance(instance) = &device.hold else { return };
    match group::reap(instance) {
        Ok(0) => {}
        Ok(n) => tracing::info!("{}: cleared {n} place(s) of groups whose owner is gone", device.name),
        Err(e) => tracing::warn!("{}: clearing the places of groups whose owner is gone: {e}", device.name),
    }
}

impl Drop for Maintenance {
    fn drop(&mut self) {
        *self.stop.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.stop.1.notify_all();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the capture's maintenance thread panicked");
        }
    }
}
