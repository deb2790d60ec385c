//! Virtual devices by name: `eth1`, `eth1@2`, `eth1@0-3`, patterns (`veth*`, `any`), and lists of them.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use super::{Device, Link};
use crate::{Error, Result};

/// A device, or some of its RX queues, as written by a user. Nothing is known yet about whether they exist.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Selector {
    /// Name of the device.
    pub device: String,
    /// The RX queues; `None` for all of them.
    pub queues: Option<RangeInclusive<u32>>,
}

/// An existing device, with those of its RX queues that were selected.
#[derive(Clone, Debug)]
pub struct Selected {
    /// The device.
    pub device: Device,
    /// The RX queues, ascending, at least one.
    pub queues: Vec<u32>,
    /// Whether the selector names RX queues, as in `eth1@2`, and not the whole device.
    pub by_queue: bool,
}

impl Selected {
    /// Whether all active RX queues of the device are selected.
    pub fn is_whole_device(&self) -> bool {
        self.queues.len() == self.device.rx_queues.len()
    }
}

impl Selector {
    /// Parses a comma-separated list, as in `eth1@0-1,veth*`; if the text is ambiguous, the kernel is asked which names
    /// exist.
    ///
    /// The kernel allows `@`, `,` and `*` in names of devices (it forbids only `/`, `:` and white space), so a text that is
    /// exactly the name of an existing device means that device. A pattern (`*`, `?`, `[...]`), or `any`, stands for all
    /// devices of this moment that match it and are up.
    ///
    /// # Errors
    /// [`Error::BadSelector`] for the first part with a syntax error, or for a pattern that no device matches;
    /// [`Error::Kernel`] if the kernel does not list the devices.
    pub fn parse_list(input: &str) -> Result<Vec<Selector>> {
        let exists = |name: &str| Link::find(name).is_ok_and(|link| link.is_some());
        let mut selectors = Vec::new();
        for selector in Selector::parse_list_with(input, exists)? {
            if selector.is_pattern() && !exists(&selector.device) {
                selectors.extend(selector.matching(&Link::list()?)?);
            } else {
                selectors.push(selector);
            }
        }
        Ok(selectors)
    }

    /// The patterns of a list, for [`crate::Arrivals`].
    ///
    /// # Errors
    /// As [`Selector::parse_list`], except that a pattern may match no device.
    pub fn patterns(input: &str) -> Result<Vec<Selector>> {
        let exists = |name: &str| Link::find(name).is_ok_and(|link| link.is_some());
        let mut selectors = Selector::parse_list_with(input, exists)?;
        selectors.retain(|selector| selector.is_pattern() && !exists(&selector.device));
        Ok(selectors)
    }

    /// Whether the selector may stand for several devices: a pattern, or `any`.
    pub fn is_pattern(&self) -> bool {
        self.device == "any" || self.device.contains(['*', '?', '['])
    }

    /// The selectors of the devices that match this pattern and are up.
    fn matching(&self, links: &[Link]) -> Result<Vec<Selector>> {
        let pattern = Pattern::new(self)?;
        let found: Vec<Selector> = links
            .iter()
            .filter(|link| pattern.matches(&link.name) && link.is_up())
            .map(|link| Selector { device: link.name.clone(), queues: self.queues.clone() })
            .collect();
        if found.is_empty() {
            return Err(Error::BadSelector {
                input: self.to_string(),
                reason: "no device that is up matches the pattern".into(),
            });
        }
        Ok(found)
    }

    /// Like [`Selector::parse_list`], with a custom test for existing names. It is called only for ambiguous names.
    ///
    /// # Errors
    /// [`Error::BadSelector`] for the first part with a syntax error.
    pub fn parse_list_with(input: &str, exists: impl Fn(&str) -> bool) -> Result<Vec<Selector>> {
        if input.contains(',') && check_name(input).is_ok() && exists(input) {
            return Ok(vec![Selector::whole(input)]);
        }
        input
            .split(',')
            .map(|part| {
                let part = part.trim();
                if part.contains('@') && check_name(part).is_ok() && exists(part) {
                    return Ok(Selector::whole(part));
                }
                part.parse()
            })
            .collect()
    }

    /// Looks up the selected device and queues.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`] with the devices that exist, [`Error::UnknownQueue`] with the queues that exist,
    /// [`Error::Kernel`] if the kernel does not answer.
    pub fn resolve(&self) -> Result<Selected> {
        self.pick(Device::open(&self.device)?)
    }

    /// Looks up all selectors; several selectors of one device become one entry, in the order in which the devices were
    /// first named.
    ///
    /// # Errors
    /// As [`Selector::resolve`].
    pub fn resolve_all(selectors: &[Selector]) -> Result<Vec<Selected>> {
        let mut all: Vec<Selected> = Vec::new();
        for selector in selectors {
            let selected = selector.resolve()?;
            match all.iter_mut().find(|other| other.device.ifindex == selected.device.ifindex) {
                Some(other) => {
                    other.queues.extend(selected.queues);
                    other.queues.sort_unstable();
                    other.queues.dedup();
                    other.by_queue &= selected.by_queue;
                }
                None => all.push(selected),
            }
        }
        Ok(all)
    }

    fn whole(name: &str) -> Selector {
        Selector { device: name.to_owned(), queues: None }
    }

    fn pick(&self, device: Device) -> Result<Selected> {
        let existing = device.rx_queues.len() as u32;
        let queues = match &self.queues {
            None => (0..existing).collect(),
            Some(range) if *range.end() < existing => range.clone().collect(),
            Some(range) => {
                return Err(Error::UnknownQueue {
                    queue: existing.max(*range.start()),
                    known: list_queues(&device.name, existing),
                    device: device.name,
                });
            }
        };
        Ok(Selected { device, queues, by_queue: self.queues.is_some() })
    }
}

/// A selector that stands for all devices whose names match it.
#[derive(Clone, Debug)]
pub struct Pattern {
    selector: Selector,
    names: glob::Pattern,
}

impl Pattern {
    /// The pattern of a selector.
    ///
    /// # Errors
    /// [`Error::BadSelector`] for a syntax error.
    pub fn new(selector: &Selector) -> Result<Pattern> {
        let text = if selector.device == "any" { "*" } else { &selector.device };
        let names = glob::Pattern::new(text).map_err(|error| Error::BadSelector {
            input: selector.to_string(),
            reason: format!("it is not a pattern: {}", error.msg),
        })?;
        Ok(Pattern { selector: selector.clone(), names })
    }

    /// Whether a device with this name matches.
    pub fn matches(&self, device: &str) -> bool {
        self.names.matches(device)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.selector.fmt(f)
    }
}

/// The RX queues of a device as virtual devices, compactly: `eth1@0 to eth1@3`.
pub(super) fn list_queues(device: &str, count: u32) -> String {
    match count {
        0 => "none".to_owned(),
        1 => format!("only {device}@0"),
        2 => format!("{device}@0 and {device}@1"),
        _ => format!("{device}@0 to {device}@{}", count - 1),
    }
}

impl FromStr for Selector {
    type Err = Error;

    /// Parses one selector, taking the last `@` as the start of the queues. Where devices with `@` in their names may
    /// exist, use [`Selector::parse_list`].
    fn from_str(input: &str) -> Result<Selector> {
        let bad = |reason: &str| Error::BadSelector {
            input: input.escape_debug().to_string(),
            reason: reason.to_owned(),
        };
        let (device, queues) = match input.rsplit_once('@') {
            None => (input, None),
            Some((device, queues)) => (device, Some(parse_queues(queues).map_err(|reason| bad(&reason))?)),
        };
        check_name(device).map_err(|reason| bad(&reason))?;
        Ok(Selector { device: device.to_owned(), queues })
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.device)?;
        match &self.queues {
            None => Ok(()),
            Some(range) if range.start() == range.end() => write!(f, "@{}", range.start()),
            Some(range) => write!(f, "@{}-{}", range.start(), range.end()),
        }
    }
}

fn parse_queues(text: &str) -> std::result::Result<RangeInclusive<u32>, String> {
    let number = |digits: &str| {
        if digits.is_empty() {
            return Err("the queue number is missing".to_owned());
        }
        // The standard parser for u32 would accept a leading '+'.
        if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(format!("'{}' is not a queue number", digits.escape_debug()));
        }
        digits.parse::<u32>().map_err(|_| format!("queue number {digits} is too large"))
    };
    let (first, last) = match text.split_once('-') {
        None => {
            let only = number(text)?;
            (only, only)
        }
        Some((first, last)) => (number(first)?, number(last)?),
    };
    if first > last {
        return Err(format!("the range ends before it starts ({first} is more than {last})"));
    }
    Ok(first..=last)
}

/// The rules of `dev_valid_name()` (net/core/dev.c), without its limit of 15 bytes, which alternative names do not
/// have; control characters, which the kernel accepts, are rejected.
fn check_name(name: &str) -> std::result::Result<(), String> {
    if name.is_empty() {
        return Err("the device name is missing".to_owned());
    }
    if name == "." || name == ".." || name.contains(['/', ':']) || name.contains(char::is_whitespace) {
        return Err("device names contain no '/', ':' or white space".to_owned());
    }
    if name.contains(char::is_control) {
        return Err("it contains control characters".to_owned());
    }
    // ALTIFNAMSIZ, linux/if.h, less the closing NUL
    if name.len() > 127 {
        return Err("device names have at most 127 bytes".to_owned());
    }
    Ok(())
}

#[cfg(test)]
#[path = "selector_tests.rs"]
mod tests;
