//! Offloads that an XDP program turns off, and that are on again when it has gone.
//!
//! The kernel turns LRO and hardware GRO off for a generic program (`generic_xdp_install()` in net/core/dev.c) and forgets that
//! they were requested. [`OffloadHold`] turns them off itself, by the journal: the last capture turns them on again.
//!
//! Some drivers (vmxnet3, drivers/net/vmxnet3/vmxnet3_xdp.c) turn LRO off when a native program comes and leave it off when
//! it goes, although it is still requested: `off [requested on]` in `ethtool -k`. The kernel asks the driver again when the
//! request is repeated, so whoever takes the program off repeats it: the broker, also if the capture is killed.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use wirelane_netdev::ethtool_set::EthtoolSet;
use wirelane_netdev::{Device, XdpMode};
use wirelane_privsep::Capability;
use wirelane_privsep::broker::{Broker, Kind, LogLine, Outcome, Registration, Task};

use super::apply::{self, Change};
use super::hold::{Held, Hold, Release, log};
use super::journal::{By, Entry, Identity, Journal, OFFLOADS, Owner};
use super::setting::Setting;
use super::system::LiveSystem;
use crate::Result;

/// Offloads that the network stack knows to be at odds with XDP.
pub(super) const AT_ODDS: [&str; 2] = ["rx-lro", "rx-gro-hw"];

/// A native program on a device with such offloads. They are requested again when this is dropped, which has to be after
/// the program has gone, unless another program is there then.
#[derive(Debug)]
pub struct RequestedOffloads {
    recipe: Recipe,
    registration: Registration,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Recipe {
    ifindex: u32,
    names: Vec<String>,
}

/// Requesting offloads again, as a task of a broker.
pub const KIND: Kind = Kind {
    name: "offloads",
    capabilities: &[Capability::NetAdmin],
    prepare: Kind::nothing,
    read: |task, descriptors| {
        let recipe: Recipe = serde_json::from_slice(task).ok()?;
        let known = recipe.names.iter().all(|name| AT_ODDS.contains(&name.as_str()));
        (known && descriptors.is_empty()).then(|| Box::new(recipe) as Box<dyn Task>)
    },
};

/// The offloads of a device that are requested and at odds with an XDP program.
pub fn at_odds(device: &str) -> Vec<String> {
    // Devices without offloads, and those that do not exist.
    let all = EthtoolSet::open(device).and_then(|ethtool| ethtool.offloads()).unwrap_or_default();
    let one = |name: &&str| all.iter().any(|one| one.name == **name && one.requested && !one.fixed);
    AT_ODDS.iter().filter(|name| one(name)).map(|name| (*name).to_owned()).collect()
}

/// A generic program on a device with such offloads, which are off until the last of these is dropped, in whichever process.
/// As with polling ([`super::polling`]), brokers do that, and the next process on the device where they were killed.
#[derive(Debug)]
pub struct OffloadHold {
    _held: Held,
}

/// Releasing an [`OffloadHold`], as a task of a broker.
pub const HOLD: Kind = Kind {
    name: "hold on offloads",
    capabilities: &[Capability::NetAdmin],
    prepare: Kind::nothing,
    read: |task, descriptors| {
        let hold = serde_json::from_slice(task).ok()?;
        descriptors.is_empty().then(|| Box::new(Release::of(hold)) as Box<dyn Task>)
    },
};

impl OffloadHold {
    /// To be called before a generic program is attached to the device; `None` where no offload is at odds with one, or held.
    ///
    /// # Errors
    /// The error of the journal or the kernel.
    pub fn take(device: &Device, broker: &Arc<Broker>) -> Result<Option<OffloadHold>> {
        let identity = Identity::of(device)?;
        let path = identity.path();
        if at_odds(&device.name).is_empty() && !path.exists() {
            return Ok(None);
        }
        let mut journal = Journal::create(&path, &identity)?;
        let taken = OffloadHold::take_in(device, &mut journal, identity, broker);
        // Before the hold, which opens the journal when it is dropped because of an error.
        journal.finish()?;
        taken
    }

    fn take_in(
        device: &Device,
        journal: &mut Journal,
        identity: Identity,
        broker: &Arc<Broker>,
    ) -> Result<Option<OffloadHold>> {
        let system = LiveSystem::open(device.clone())?;
        log(&device.name, &apply::undo(&system, journal, By::Capture)?);
        let change = |name| Change {
            what: Setting::Offload { name },
            now: Some("on".to_owned()),
            new: "off".to_owned(),
            reason: "generic XDP sees packets before they are merged".to_owned(),
        };
        let changes: Vec<Change> = at_odds(&device.name).into_iter().map(change).collect();
        let owner = Owner::this(OFFLOADS);
        let held = |entry: &Entry| entry.by == By::Capture && owner.holds(&entry.what);
        if changes.is_empty() && !journal.entries.iter().any(held) {
            return Ok(None);
        }
        let hold = Hold { path: identity.path(), identity, owner };
        let registration = broker.register(&HOLD, &hold, &[])?;
        journal.hold(&hold.owner)?;
        for step in apply::carry_out(&system, journal, By::Capture, &changes)? {
            if let apply::Outcome::Refused { reason } = step.outcome {
                tracing::info!("{}: {} stays on: {reason}", device.name, step.what);
            }
        }
        Ok(Some(OffloadHold { _held: Held { hold, registration } }))
    }
}

/// Whether a generic program on the device needs an [`OffloadHold`]: offloads are on, or a journal says that some were.
pub fn concerns(device: &Device) -> bool {
    !at_odds(&device.name).is_empty() || Identity::of(device).is_ok_and(|identity| identity.path().exists())
}

impl RequestedOffloads {
    /// To be called before a native program is attached to the device; `None` where no offload is at odds with one.
    ///
    /// # Errors
    /// As [`Broker::register`].
    pub fn note(device: &Device, broker: &Arc<Broker>) -> Result<Option<RequestedOffloads>> {
        let names = at_odds(&device.name);
        if names.is_empty() {
            return Ok(None);
        }
        let recipe = Recipe { ifindex: device.ifindex, names };
        let registration = broker.register(&KIND, &recipe, &[])?;
        Ok(Some(RequestedOffloads { recipe, registration }))
    }
}

impl Drop for RequestedOffloads {
    fn drop(&mut self) {
        let said = match self.registration.undo() {
            Outcome::Done(said) => said,
            // The broker was killed: this process does it, if it still has the rights.
            Outcome::Unserved => self.recipe.undo(None).1,
            Outcome::Impossible => {
                let why = "wl-broker, which has the right to it, is gone or does not answer";
                vec![LogLine::Warning(format!(
                    "offloads may stay off: {why}; 'wirelane tune restore' switches them on"
                ))]
            }
        };
        said.iter().for_each(LogLine::log);
    }
}

impl Task for Recipe {
    fn undo(&mut self, _prepared: Option<BorrowedFd<'_>>) -> (bool, Vec<LogLine>) {
        match request_again(self.ifindex, &self.names) {
            // Another capture's program, whose broker does it later; or that of a killed owner is about to go.
            Ok(None) => (false, Vec::new()),
            Ok(Some(done)) => (true, done.into_iter().map(said).collect()),
            Err(e) => (true, vec![LogLine::Warning(format!("requesting offloads again: {e}"))]),
        }
    }
}

fn said((device, name, is_on): (String, String, bool)) -> LogLine {
    match is_on {
        true => LogLine::Info(format!("{device}: offload {name} is on again")),
        false => LogLine::Warning(format!("{device}: the driver leaves the offload {name} off")),
    }
}

/// Requests those of these offloads again that are requested and off. `None`: a native program is on the device. Otherwise
/// the device's name, each offload, and whether it is on now.
pub(super) fn request_again(
    ifindex: u32,
    names: &[String],
) -> io::Result<Option<Vec<(String, String, bool)>>> {
    let Some(device) = Device::with_index(ifindex).map_err(io::Error::other)? else {
        return Ok(Some(Vec::new()));
    };
    if device.xdp.iter().any(|program| program.mode == XdpMode::Native) {
        return Ok(None);
    }
    let ethtool = EthtoolSet::open(&device.name)?;
    let mut done = Vec::new();
    for name in names {
        let of = |on: fn(&wirelane_netdev::ethtool_set::OffloadState) -> bool| {
            Ok::<_, io::Error>(ethtool.offloads()?.iter().any(|one| one.name == *name && on(one)))
        };
        if of(|one| one.requested && !one.on)? {
            ethtool.set_offload(name, true)?;
            done.push((device.name.clone(), name.clone(), of(|one| one.on)?));
        }
    }
    Ok(Some(done))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_offloads_are_requested() {
        let read = |task: &[u8]| (KIND.read)(task, Vec::new()).is_some();
        assert!(read(br#"{"ifindex":1,"names":["rx-lro"]}"#));
        assert!(!read(br#"{"ifindex":1,"names":["rx-lro","loopback"]}"#));
        assert!(!read(br#"{"ifindex":1}"#));
    }

    #[test]
    fn nothing_is_at_odds_on_the_loopback_device() {
        assert!(at_odds("lo").is_empty() && at_odds("no-such-dev").is_empty());
        let names = AT_ODDS.map(String::from);
        assert_eq!(request_again(1, &names).unwrap(), Some(Vec::new()));
        assert_eq!(request_again(0x7fff_fff0, &names).unwrap(), Some(Vec::new()));
    }
}
