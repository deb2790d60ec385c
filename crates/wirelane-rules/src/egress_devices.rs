//! Egress devices: devices that rules send packets to. A capture declares them when it starts; rules refer to them by
//! name.

use std::collections::BTreeSet;

use wirelane_bpf::rules::MAX_EGRESS_DEVICES;

use super::check::{Fault, Which};
use super::names::shown;
use super::{Action, RuleSet};
use crate::{Error, Result};

/// The destinations of a rule's packets: its action with the egress devices of the redirect and of the mirror copy.
#[derive(Clone, Copy)]
pub(super) struct Sends<'r> {
    pub action: Action,
    pub mirror: Option<&'r str>,
    pub to: Option<&'r str>,
}

impl<'r> Sends<'r> {
    /// The devices that the rule names.
    fn names(self) -> impl Iterator<Item = &'r str> {
        self.mirror.into_iter().chain(self.to)
    }

    /// The bits of the mirror device and of the redirect device.
    pub fn bits(self, egress_devices: &[String]) -> (u8, u8) {
        let to = if self.action == Action::Redirect { bit(egress_devices, self.to) } else { 0 };
        (bit(egress_devices, self.mirror), to)
    }

    /// Reports faults that do not depend on the capture.
    pub fn faults(self, fault: &mut dyn FnMut(String)) {
        match (self.action, self.to) {
            (Action::Redirect, None) => fault("action = \"redirect\" needs to = \"DEVICE\"".to_owned()),
            (Action::Redirect, Some(_)) | (_, None) => {}
            (action, Some(_)) => {
                fault(format!("to is for action = \"redirect\", and its action is \"{action}\""));
            }
        }
        for name in self.names().filter(|name| !is_device_name(name)) {
            fault(format!("'{}' cannot be the name of a device", shown(name)));
        }
    }

    /// The action in words: `redirect to eth2, mirror to eth3`.
    pub fn words(self) -> String {
        let mut words = self.action.to_string();
        if let Some(to) = self.to {
            words += &format!(" to {}", shown(to));
        }
        if let Some(mirror) = self.mirror {
            words += &format!(", mirror to {}", shown(mirror));
        }
        words
    }
}

/// Whether a device can have this name, according to the kernel's dev_valid_name().
pub(super) fn is_device_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() < 16
        && name != "."
        && name != ".."
        && !name.contains(|letter: char| letter == '/' || letter == ':' || letter.is_whitespace())
}

/// The bit of an egress device in a mask; 0 if the device is not an egress device.
fn bit(egress_devices: &[String], name: Option<&str>) -> u8 {
    let at = name.and_then(|name| egress_devices.iter().position(|device| device == name));
    at.filter(|at| *at < MAX_EGRESS_DEVICES).map_or(0, |at| 1 << at)
}

/// The names of the egress devices whose bits are in a mask.
pub fn named(egress_devices: &[String], mask: u32) -> Vec<String> {
    let bits = (0..MAX_EGRESS_DEVICES).filter(|at| mask & 1 << at != 0);
    bits.filter_map(|at| egress_devices.get(at).cloned()).collect()
}

/// Error message for a device that is not an egress device of the capture, with the fix.
pub(super) fn unknown_egress_device(name: &str, egress_devices: &[String]) -> String {
    let all: Vec<&str> = egress_devices.iter().map(String::as_str).chain([name]).collect();
    format!(
        "'{}' is not an egress device of the capture: start it with --mirror-to {}",
        shown(name),
        shown(&all.join(","))
    )
}

impl RuleSet {
    /// The devices that the set's rules send packets to, sorted by name.
    pub fn egress_devices(&self) -> Vec<String> {
        let names: BTreeSet<&str> = self.all_sends().flat_map(|(_, sends)| sends.names()).collect();
        names.into_iter().map(str::to_owned).collect()
    }

    /// Each rule with its destinations.
    fn all_sends(&self) -> impl Iterator<Item = (Which, Sends<'_>)> {
        let wildcard = self.rules.iter().enumerate().map(|(at, rule)| (Which::Wildcard(at), rule.sends()));
        let exact = self.exact.iter().enumerate().map(|(at, rule)| (Which::Exact(at), rule.sends()));
        wildcard.chain(exact)
    }

    /// Checks that all devices that the set's rules send packets to are egress devices of the capture.
    ///
    /// # Errors
    /// [`Error::Rules`] with every rule that names another device.
    pub fn check_egress_devices(&self, egress_devices: &[String]) -> Result<()> {
        let faults = self.all_sends().flat_map(|(which, sends)| {
            let unknown = sends.names().filter(|name| !egress_devices.iter().any(|device| device == name));
            let fault = move |name| Fault {
                rule: Some(which),
                reason: unknown_egress_device(name, egress_devices),
                other: None,
            };
            unknown.map(fault).collect::<Vec<_>>()
        });
        let mistakes = self.mistakes(faults.collect());
        if mistakes.is_empty() { Ok(()) } else { Err(Error::Rules { mistakes }) }
    }
}

/// Error message if the number of egress devices exceeds the maximum.
pub(super) fn too_many(there_are: usize) -> Option<String> {
    (there_are > MAX_EGRESS_DEVICES)
        .then(|| format!("the rules send packets to {there_are} devices, more than {MAX_EGRESS_DEVICES}"))
}
