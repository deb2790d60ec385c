//! The keeper: one thread of a live capture that looks after what nobody else does.
//!
//! A few times a second it follows the system's clock, clears the places of groups whose owners were killed,
//! and looks whether the devices are still there. A device that has gone ends its part of the capture.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::clock::Clock;
use crate::device::Monitor;
use crate::engine::ring::group;
use crate::engine::ring::instance::Instance;
use crate::engine::ring::source::Shared;
use crate::{Error, Result};

const PERIOD: Duration = Duration::from_millis(200);

/// A device that the keeper looks after.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) name: String,
    pub(crate) ifindex: u32,
    /// What groups share, where there are groups: the ring engine's.
    pub(crate) instance: Option<Arc<Instance>>,
    /// Set once the device has gone.
    pub(crate) gone: AtomicBool,
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
        devices: Arc<[Kept]>,
        clock: Arc<Clock>,
        workers: Vec<Arc<Shared>>,
    ) -> Result<Keeper> {
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let signal = Arc::clone(&stop);
        let mut monitor = Monitor::open()?;
        let mut down = vec![false; devices.len()];
        let thread = std::thread::Builder::new()
            .name("wl-keeper".into())
            .spawn(move || {
                while !sleep(&signal) {
                    clock.follow();
                    for (device, down) in devices.iter().zip(&mut down) {
                        look_after(device, down, &mut monitor);
                    }
                    if devices.iter().all(|device| device.gone.load(Ordering::Relaxed)) {
                        // Release: pairs with the workers' Acquire. A device that is gone has no lanes.
                        workers.iter().for_each(|worker| worker.closed.store(true, Ordering::Release));
                    }
                }
            })
            .map_err(|e| Error::kernel("starting the capture's keeper thread", e))?;
        Ok(Keeper { stop, thread: Some(thread) })
    }
}

/// True once the keeper is to end.
fn sleep(signal: &(Mutex<bool>, Condvar)) -> bool {
    let stop = signal.0.lock().unwrap_or_else(PoisonError::into_inner);
    let (stop, _) =
        signal.1.wait_timeout_while(stop, PERIOD, |stop| !*stop).unwrap_or_else(PoisonError::into_inner);
    *stop
}

fn look_after(device: &Kept, down: &mut bool, monitor: &mut Monitor) {
    if device.gone.load(Ordering::Relaxed) {
        return;
    }
    let ifindex = device.ifindex;
    match monitor.exists(ifindex).and_then(|there| Ok((there, monitor.is_up(ifindex)?))) {
        Ok((true, up)) => {
            if !up && !*down {
                tracing::warn!("{} was set down: waiting for it to come up again", device.name);
            } else if up && *down {
                tracing::warn!("{} is up again", device.name);
            }
            *down = !up;
        }
        Ok((false, _)) => {
            tracing::warn!("{} disappeared: its part of the capture ends here", device.name);
            device.gone.store(true, Ordering::Relaxed);
            return;
        }
        Err(e) => tracing::warn!("looking whether {} is still there: {e}", device.name),
    }
    let Some(instance) = &device.instance else { return };
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
