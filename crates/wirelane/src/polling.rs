//! Placement of workers, and polling of devices during a capture.

use std::sync::Arc;

use wirelane_netdev::topology::Card;
use wirelane_netdev::{Device, Selected};
use wirelane_privsep::broker::Broker;
use wirelane_tune::polling::{self, PollingHold};
use wirelane_tune::{Polling, Wishes};

use crate::error::{Error, Result};
use crate::settings::Settings;

/// The core of each worker of a capture, and its hold on the polling of its devices. Settings that a killed capture has
/// left on them are restored first.
///
/// # Errors
/// As [`PollingHold::take`].
pub fn for_capture(
    settings: &Settings,
    selected: &[Selected],
    broker: &Arc<Broker>,
) -> Result<(Vec<Option<usize>>, Vec<PollingHold>)> {
    for one in selected {
        polling::heal(&one.device)?;
    }
    if !settings.cores_auto && settings.polling.is_none() {
        let cpus = std::thread::available_parallelism().map_or(usize::MAX, usize::from);
        if let Some(note) = wirelane_tune::crowded(settings.workers, cpus) {
            tracing::warn!("{note}");
        }
        return Ok(((0..settings.workers).map(|worker| settings.core_of(worker)).collect(), Vec::new()));
    }
    let mut cards = Vec::new();
    let mut devices = Vec::new();
    for one in selected {
        // Open the device again: NAPI instances are created with the program (and with virtio_net more queues), and
        // threads have disappeared with the restored settings.
        let device = Device::open(&one.device.name)?;
        let mut card = Card::live(&device)?;
        if !one.is_whole_device() {
            card.queues.retain(|queue| one.queues.contains(&queue.queue));
        }
        cards.push(card);
        devices.push(device);
    }
    let wishes = Wishes {
        workers: Some(settings.workers),
        cores: settings.cores.clone(),
        polling: settings.polling,
        as_it_is: true,
    };
    let plan = wirelane_tune::plan_for_capture(&cards, &wishes)?;
    for note in &plan.notes {
        tracing::warn!("{note}");
    }
    for place in &plan.workers {
        tracing::info!("worker {} on CPU {}: {}", place.worker, place.core, place.reason);
    }
    let mut holds = Vec::new();
    if let Some(polling) = settings.polling {
        for (device, card) in devices.iter().zip(&cards) {
            if polling == Polling::Busy && !card.busy_threads {
                return Err(Error::Unsupported {
                    what: format!("--polling busy on {}", device.name),
                    needs: "kernel threads that poll all the time (Linux 6.19)".into(),
                    instead: "--polling threaded".into(),
                });
            }
            if polling == Polling::Threaded && card.threaded.is_none() {
                return Err(Error::Unsupported {
                    what: format!("--polling threaded on {}", device.name),
                    needs: "a /sys that shows this network namespace".into(),
                    instead: "run it with 'ip netns exec', which mounts a fitting one".into(),
                });
            }
            holds.push(PollingHold::take(device, &plan, polling, broker)?);
        }
    }
    Ok((plan.workers.iter().map(|place| Some(place.core)).collect(), holds))
}
