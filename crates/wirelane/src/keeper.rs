//! The keeper: one thread of a live capture that looks after what nobody else does.
//!
//! A few times a second it follows the system's clock, moves load where that was asked for, clears
//! the places of groups whose owners were killed, turns flow caches over, warns of plug-ins that were switched off, and looks what has become of the devices (`watch.rs`). A device
//! that has gone ends its part of the capture.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::balance::Controller;
use crate::clock::Clock;
use crate::device::{State, Watcher};
use crate::engine::ring::flows::GroupFlows;
use crate::engine::ring::group;
use crate::engine::ring::instance::Instance;
use crate::engine::ring::plugins;
use crate::engine::ring::source::Shared;
use crate::sockets;
use crate::watch::{Ending, Watch, Whereabouts};
use crate::{Error, Result};

const PERIOD: Duration = Duration::from_millis(200);

/// What takes packets from a device.
#[derive(Debug)]
pub(crate) enum Hold {
    /// An instance of the ring engine, which several groups may share.
    Instance(Arc<Instance>),
    /// Sockets of our own.
    Sockets(Arc<dyn sockets::Part>),
}

/// A device that the keeper looks after.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) name: String,
    /// Its index when the capture began.
    pub(crate) ifindex: u32,
    /// What takes packets from it.
    pub(crate) hold: Hold,
    /// Whether that is native XDP.
    pub(crate) native: bool,
    /// RX queues that packets can be told apart by.
    pub(crate) known_queues: usize,
    /// The RX queues that were asked for; `None`: all that it has or will have.
    pub(crate) queues: Option<Vec<u32>>,
    /// What it was like when the capture began.
    pub(crate) first: State,
    /// Name of its driver; empty where it is not known.
    pub(crate) driver: String,
    /// Whether generic XDP may take the Ethernet header from what is captured. Found out before rights are given up.
    pub(crate) may_lose_headers: bool,
    pub(crate) whereabouts: Whereabouts,
}

impl Kept {
    /// The device that packets are taken from now, by its index in whichever network namespace it is in; 0: none any
    /// more. `None` where the kernel does not say.
    ///
    /// # Errors
    /// [`Error::Kernel`] where the kernel does not answer.
    pub(crate) fn attached_to(&self) -> Result<Option<u32>> {
        match &self.hold {
            Hold::Instance(instance) => instance.attached_to(),
            Hold::Sockets(part) => part.attached_to(),
        }
    }
}

/// The thread; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Keeper {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// Starts the thread. When every device has gone, `workers` are told that nothing will come any more.
    pub(crate) fn start(
        mut watcher: Watcher,
        devices: Arc<[Kept]>,
        clock: Arc<Clock>,
        workers: Vec<Arc<Shared>>,
        mut controllers: Vec<Controller>,
        plugins: Arc<plugins::Watches>,
        flows: Vec<Arc<GroupFlows>>,
    ) -> Result<Keeper> {
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let signal = Arc::clone(&stop);
        let mut watches: Vec<Watch> = devices.iter().map(Watch::new).collect();
        let thread = std::thread::Builder::new()
            .name("wl-keeper".into())
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
                    for (device, watch) in devices.iter().zip(&mut watches) {
                        look_after(device, watch, &mut watcher);
                    }
                    if devices.iter().all(|device| device.whereabouts.ending().is_some()) {
                        // Release: pairs with the workers' Acquire. A device that is gone has no lanes.
                        flows.iter().for_each(|flows| flows.freeze());
                        workers.iter().for_each(|worker| worker.closed.store(true, Ordering::Release));
                    }
                }
            })
            .map_err(|e| Error::kernel("starting the capture's keeper thread", e))?;
        Ok(Keeper { stop, thread: Some(thread) })
    }
}

/// The devices from which nothing more will come, and why.
pub(crate) fn ended(devices: &[Kept]) -> Vec<(String, Ending)> {
    let ended = |device: &Kept| Some((device.name.clone(), device.whereabouts.ending()?));
    let mut ended: Vec<(String, Ending)> = devices.iter().filter_map(ended).collect();
    // A device of which both directions are captured has two parts, one behind the other.
    ended.dedup();
    ended
}

/// True once the keeper is to end.
fn sleep(signal: &(Mutex<bool>, Condvar)) -> bool {
    let stop = signal.0.lock().unwrap_or_else(PoisonError::into_inner);
    let (stop, _) =
        signal.1.wait_timeout_while(stop, PERIOD, |stop| !*stop).unwrap_or_else(PoisonError::into_inner);
    *stop
}

fn look_after(device: &Kept, watch: &mut Watch, watcher: &mut Watcher) {
    if device.whereabouts.ending().is_some() {
        return;
    }
    if let Err(e) = watch.look(device, watcher) {
        tracing::warn!("looking what has become of {}: {e}", device.name);
    }
    if device.whereabouts.ending().is_some() {
        return;
    }
    let Hold::Instance(instance) = &device.hold else { return };
    match group::reap(instance) {
        Ok(0) => {}
        Ok(n) => tracing::info!("{}: cleared {n} place(s) of groups whose owner is gone", device.name),
        Err(e) => tracing::warn!("{}: clearing the places of groups whose owner is gone: {e}", device.name),
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        *self.stop.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.stop.1.notify_all();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the capture's keeper thread panicked");
        }
    }
}
