//! Plug-ins: functions of users that rules ask as a condition (`bpf/plugin.h`). A capture names them when it
//! starts, and rules ask for them by these names.
//!
//! To a compiled set a plug-in is what a name of patterns is: a bit of dimension `PAYLOAD`.

use std::collections::BTreeSet;

use wirelane_bpf::rules::MAX_PLUGINS;

use super::check::{Fault, Which};
use super::names::{nearest, shown};
use super::{Action, Rule, RuleSet, Test};
use crate::{Error, Result};

/// The longest name of a plug-in.
const LONGEST_NAME: usize = 64;

/// A plug-in of a capture, on one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// What rules call it.
    pub name: String,
    /// Its place in the instance.
    pub place: u32,
}

/// What a plug-in is called among the names that payloads are asked for: no patterns can have it.
pub(super) fn key(name: &str) -> String {
    format!("plug-in {name}")
}

/// The plug-ins that a test asks.
fn asked(test: &Test) -> &[String] {
    match test {
        Test::Plugin(names) => names,
        _ => &[],
    }
}

/// Whether a plug-in can have this name; why not.
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

/// That a capture has no such plug-in, and what to do.
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
    /// The plug-ins of which one has to match, in the order in which the rule has them.
    fn plugins(&self) -> impl Iterator<Item = &str> {
        let positive = self.conditions.iter().filter(|condition| !condition.negated);
        positive.flat_map(|condition| asked(&condition.test)).map(String::as_str)
    }

    /// Their places, from 1, as a compiled rule has them.
    pub(super) fn plugin_places(&self, placed: &[Placed]) -> [u8; MAX_PLUGINS] {
        let mut places = [0; MAX_PLUGINS];
        if self.action == Action::Plugin {
            let of = |name: &str| placed.iter().find(|one| one.name == name);
            let found = self.plugins().filter_map(of).map(|one| one.place as u8 + 1);
            places.iter_mut().zip(found).for_each(|(to, place)| *to = place);
        }
        places
    }

    /// What is wrong with what it asks of plug-ins.
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
    /// The plug-ins that its rules ask, by their names.
    pub fn plugins(&self) -> Vec<String> {
        let names: BTreeSet<&String> = self.all_asked().map(|(_, name)| name).collect();
        names.into_iter().cloned().collect()
    }

    /// The plug-ins that each rule asks.
    fn all_asked(&self) -> impl Iterator<Item = (Which, &String)> {
        self.rules.iter().enumerate().flat_map(|(at, rule)| {
            let names = rule.conditions.iter().flat_map(|condition| asked(&condition.test));
            names.map(move |name| (Which::Wildcard(at), name))
        })
    }

    /// Whether a capture with these plug-ins has all that its rules ask.
    ///
    /// # Errors
    /// [`Error::Rules`] with every rule that asks another.
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

    /// What is wrong where its rules ask so many plug-ins.
    pub(super) fn too_many_plugins(&self) -> Option<String> {
        let there_are = self.plugins().len();
        (there_are > MAX_PLUGINS)
            .then(|| format!("the rules ask {there_are} plug-ins, more than {MAX_PLUGINS}"))
    }

    /// By place: the bit of dimension `PAYLOAD` that the plug-in there sets.
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

/// The names by which a test of plug-ins asks for bits of payloads.
pub(super) fn keys(test: &Test) -> Option<Vec<String>> {
    match test {
        Test::Plugin(names) => Some(names.iter().map(|name| key(name)).collect()),
        _ => None,
    }
}
