//! Plug-ins: user-supplied functions that rules call as a condition (`bpf/plugin.h`). A capture declares them when it
//! starts; rules refer to them by name.
//!
//! A compiled set treats a plug-in like a pattern name: as a bit of dimension `PAYLOAD`.

use std::collections::BTreeSet;

use wirelane_bpf::rules::MAX_PLUGINS;

use super::check::{Fault, Which};
use super::names::{nearest, shown};
use super::{Action, Rule, RuleSet, Test};
use crate::{Error, Result};

/// Maximum length of a plug-in's name.
const LONGEST_NAME: usize = 64;

/// A plug-in of a capture, on one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The name that rules use.
    pub name: String,
    /// Index of the plug-in in the instance.
    pub place: u32,
}

/// The key of a plug-in among the names that payloads are searched for; patterns cannot have such a name.
pub(super) fn key(name: &str) -> String {
    format!("plug-in {name}")
}

/// The plug-ins that a test calls.
fn asked(test: &Test) -> &[String] {
    match test {
        Test::Plugin(names) => names,
        _ => &[],
    }
}

/// Checks whether a plug-in can have this name; the error is the reason why not.
pub fn may_be_named(name: &str) -> std::result::Result<(), String> {
    let allowed = |letter: char| letter.is_ascii_alphanumeric() || letter == '-' || letter == '_';
    if name.is_empty() || name.len() > LONGEST_NAME || !name.chars().all(allowed) {
        let name = shown(name);
        return Err(format!(
            "'{name}' cannot name a plug-in: up to {LONGEST_NAME} letters, digits, - and _ can"
        ));
    }
    Ok(())
}

/// Error message for a plug-in that the capture does not have, with the fix.
pub(super) fn no_plugin(name: &str, known: &[String]) -> String {
    let names: Vec<&str> = known.iter().map(String::as_str).collect();
    let hint = match nearest(name, &names) {
        Some(near) => format!("did you mean '{near}'?"),
        None => format!(
            "plug-ins are fixed when a capture starts: start it with --plugin {}=FILE.bpf.o",
            shown(name)
        ),
    };
    format!("there is no plug-in '{}'; {hint}", shown(name))
}

impl Rule {
    /// The plug-ins of which one has to match, in the order of the rule.
    fn plugins(&self) -> impl Iterator<Item = &str> {
        let positive = self.conditions.iter().filter(|condition| !condition.negated);
        positive.flat_map(|condition| asked(&condition.test)).map(String::as_str)
    }

    /// The plug-ins' indexes plus one, as stored in a compiled rule.
    pub(super) fn plugin_places(&self, placed: &[Placed]) -> [u8; MAX_PLUGINS] {
        let mut places = [0; MAX_PLUGINS];
        if self.action == Action::Plugin {
            let of = |name: &str| placed.iter().find(|one| one.name == name);
            let found = self.plugins().filter_map(of).map(|one| one.place as u8 + 1);
            places.iter_mut().zip(found).for_each(|(to, place)| *to = place);
        }
        places
    }

    /// Reports faults of the rule's use of plug-ins.
    pub(super) fn plugin_faults(&self, fault: &mut dyn FnMut(String)) {
        if self.action == Action::Plugin && self.plugins().next().is_none() {
            fault(
                "action = \"plugin\" does what a plug-in says: it needs the condition plugin = \"NAME\""
                    .to_owned(),
            );
        }
        if self.insert.is_some_and(|insert| insert.action == Action::Plugin) {
            fault(
                "a rule that is made of a packet asks no plug-in: give insert an action of its own, as in insert = \
                 { action = \"drop\" }"
                    .to_owned(),
            );
        }
    }
}

impl RuleSet {
    /// The plug-ins that the set's rules call, sorted by name.
    pub fn plugins(&self) -> Vec<String> {
        let names: BTreeSet<&String> = self.all_asked().map(|(_, name)| name).collect();
        names.into_iter().cloned().collect()
    }

    /// Each rule with each of its plug-ins.
    fn all_asked(&self) -> impl Iterator<Item = (Which, &String)> {
        self.rules.iter().enumerate().flat_map(|(at, rule)| {
            let names = rule.conditions.iter().flat_map(|condition| asked(&condition.test));
            names.map(move |name| (Which::Wildcard(at), name))
        })
    }

    /// Checks that a capture with these plug-ins has all plug-ins that the set's rules call.
    ///
    /// # Errors
    /// [`Error::Rules`] with every rule that calls another plug-in.
    pub fn check_plugins(&self, known: &[String]) -> Result<()> {
        let unknown = self.all_asked().filter(|(_, name)| !known.contains(name));
        let fault = |(which, name): (Which, &String)| Fault {
            rule: Some(which),
            reason: no_plugin(name, known),
            other: None,
        };
        let mistakes = self.mistakes(unknown.map(fault).collect());
        if mistakes.is_empty() { Ok(()) } else { Err(Error::Rules { mistakes }) }
    }

    /// Error message if the rules call more plug-ins than the maximum.
    pub(super) fn too_many_plugins(&self) -> Option<String> {
        let there_are = self.plugins().len();
        (there_are > MAX_PLUGINS)
            .then(|| format!("the rules ask {there_are} plug-ins, more than {MAX_PLUGINS}"))
    }

    /// By plug-in index: the bit of dimension `PAYLOAD` that the plug-in sets.
    pub(super) fn plugin_bits(&self, placed: &[Placed]) -> [u8; MAX_PLUGINS] {
        let names = self.pattern_names();
        let mut bits = [0; MAX_PLUGINS];
        for Placed { name, place } in placed {
            let bit = names.iter().position(|one| *one == key(name));
            let bit = bit.filter(|bit| *bit < wirelane_bpf::rules::MAX_PATTERNS);
            if let (Some(bit), Some(to)) = (bit, bits.get_mut(*place as usize)) {
                *to |= 1 << bit;
            }
        }
        bits
    }
}

/// The keys of the plug-ins that a test calls.
pub(super) fn keys(test: &Test) -> Option<Vec<String>> {
    match test {
        Test::Plugin(names) => Some(names.iter().map(|name| key(name)).collect()),
        _ => None,
    }
}
