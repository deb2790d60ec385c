//! Waiting for devices that do not exist yet.

use std::time::{Duration, Instant};

use anyhow::Result;
use wirelane::device::Error;
use wirelane::{Device, Selector};

use crate::service::Notifier;

/// Time between two looks.
const LOOK: Duration = Duration::from_millis(200);
/// Time between two messages to the service manager, which would end a service that takes too long to start.
const TOLD: Duration = Duration::from_secs(5);

/// Waits until all devices exist that the lists name. Patterns are left to the capture.
///
/// # Errors
/// A list that is not valid, or a device that cannot be looked up.
pub fn for_devices(lists: &[String], manager: Option<&Notifier>) -> Result<()> {
    let mut warned = String::new();
    let mut told: Option<Instant> = None;
    loop {
        let missing = missing(lists)?;
        if missing.is_empty() {
            if !warned.is_empty() {
                tracing::warn!("{warned}: there now");
            }
            return Ok(());
        }
        let names = missing.join(", ");
        if names != warned {
            tracing::warn!(
                "waiting for {names}: no such device in this network namespace yet; the capture starts when it comes"
            );
            warned.clone_from(&names);
        }
        if told.is_none_or(|told| told.elapsed() >= TOLD) {
            manager.iter().for_each(|manager| manager.waiting(&names, 4 * TOLD));
            told = Some(Instant::now());
        }
        std::thread::sleep(LOOK);
    }
}

/// The devices that do not exist.
fn missing(lists: &[String]) -> Result<Vec<String>> {
    let mut missing = Vec::new();
    for list in lists {
        for selector in Selector::parse_list(list)? {
            if selector.is_pattern() || missing.contains(&selector.device) {
                continue;
            }
            match Device::open(&selector.device) {
                Err(Error::UnknownDevice { .. }) => missing.push(selector.device),
                other => drop(other?),
            }
        }
    }
    Ok(missing)
}
