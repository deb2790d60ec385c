//! The values of fields: numbers, ranges, names, flags.

use std::ops::RangeInclusive;

use super::node::{Node, Value};
use crate::egress_devices::is_device_name;
use crate::names::{self, shown};
use crate::{ExactVlan, Kind, TcpTest, Vlan, Way};

/// A value, or a message about the fault of its node.
pub(super) type Read<T> = Result<T, String>;

/// The text of a node; an error for a node of another type.
pub(super) fn text(node: &Node) -> Read<&str> {
    match &node.value {
        Value::Text(text) => Ok(text),
        _ => Err(format!("this is {}, not a string: write it in quotes", node.kind())),
    }
}

/// A number within a range.
pub(super) fn number(node: &Node, within: RangeInclusive<u32>) -> Read<u32> {
    let (first, last) = (*within.start(), *within.end());
    match node.value {
        Value::Number(number) => u32::try_from(number)
            .ok()
            .filter(|number| within.contains(number))
            .ok_or_else(|| format!("{number} is not in {first} to {last}")),
        _ => Err(format!("this is {}, not a number from {first} to {last}", node.kind())),
    }
}

/// The name of a set.
pub(super) fn set_name(node: &Node) -> Read<String> {
    text(node).map(str::to_owned)
}

/// A number with a fraction.
pub(super) fn fraction(node: &Node) -> Read<f64> {
    match node.value {
        Value::Fraction(number) => Ok(number),
        Value::Number(number) => Ok(number as f64),
        _ => Err(format!("this is {}, not a number such as 0.001", node.kind())),
    }
}

/// A boolean.
pub(super) fn truth(node: &Node) -> Read<bool> {
    match node.value {
        Value::Truth(truth) => Ok(truth),
        _ => Err(format!("this is {}, not true or false", node.kind())),
    }
}

/// A number, a range `a-b`, `a-` or `-b`, or a name that `named` resolves.
pub(super) fn range(
    node: &Node,
    within: RangeInclusive<u32>,
    named: impl Fn(&str) -> Option<u32>,
) -> Read<RangeInclusive<u32>> {
    let text = match &node.value {
        Value::Text(text) => text.trim(),
        Value::Number(_) => return number(node, within).map(|number| number..=number),
        _ => return Err(format!("this is {}, not a number or a range in quotes", node.kind())),
    };
    if let Some(number) = named(text) {
        return Ok(number..=number);
    }
    let end = |text: &str, open: u32| match text.trim() {
        "" => Ok(open),
        digits => one(digits, &within, &named),
    };
    let Some((first, last)) = text.split_once('-') else {
        return one(text, &within, &named).map(|number| number..=number);
    };
    if first.trim().is_empty() && last.trim().is_empty() {
        return Err(format!("'{}' has neither a beginning nor an end", shown(text)));
    }
    let (first, last) = (end(first, *within.start())?, end(last, *within.end())?);
    if first > last {
        return Err(format!("{} ends before it begins", shown(text)));
    }
    Ok(first..=last)
}

fn one(text: &str, within: &RangeInclusive<u32>, named: &impl Fn(&str) -> Option<u32>) -> Read<u32> {
    if let Some(number) = named(text) {
        return Ok(number);
    }
    let (digits, radix) = match text.strip_prefix("0x") {
        Some(digits) => (digits, 16),
        None => (text, 10),
    };
    // `from_str_radix` would accept a sign.
    let bare = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    match u32::from_str_radix(digits, radix) {
        Ok(number) if bare && within.contains(&number) => Ok(number),
        Ok(_) if bare => Err(format!("{} is not in {} to {}", shown(text), within.start(), within.end())),
        _ => Err(format!("'{}' is not a number, a range or a name that is known here", shown(text))),
    }
}

/// Name lookup of fields whose values have no names.
pub(super) fn nameless(_: &str) -> Option<u32> {
    None
}

/// A range of 16-bit numbers.
pub(super) fn range16(node: &Node) -> Read<RangeInclusive<u16>> {
    let range = range(node, 0..=0xffff, nameless)?;
    Ok(*range.start() as u16..=*range.end() as u16)
}

/// A range of 8-bit numbers up to `last`, with names.
pub(super) fn range8(node: &Node, last: u8, named: impl Fn(&str) -> Option<u8>) -> Read<RangeInclusive<u8>> {
    let range = range(node, 0..=u32::from(last), |text| named(text).map(u32::from))?;
    Ok(*range.start() as u8..=*range.end() as u8)
}

/// A range of lengths on the wire.
pub(super) fn length(node: &Node) -> Read<RangeInclusive<u32>> {
    let range = range(node, 0..=u32::MAX, nameless)?;
    if *range.start() > 0xffff {
        return Err(format!("no packet has {} bytes: longer ones count as 65535", range.start()));
    }
    Ok(range)
}

/// A VLAN id, a range of them, or `none`.
pub(super) fn vlan(node: &Node) -> Read<Vlan> {
    if matches!(&node.value, Value::Text(text) if text == "none") {
        return Ok(Vlan::Untagged);
    }
    let range = range(node, 0..=4095, nameless).map_err(or_none)?;
    Ok(Vlan::Ids(*range.start() as u16, *range.end() as u16))
}

/// A VLAN id or `none`.
pub(super) fn exact_vlan(node: &Node) -> Read<ExactVlan> {
    match &node.value {
        Value::Text(text) if text == "none" => Ok(ExactVlan::Untagged),
        _ => number(node, 0..=4095).map(|id| ExactVlan::Id(id as u16)).map_err(or_none),
    }
}

fn or_none(reason: String) -> String {
    format!("{reason}; or write \"none\" for packets without a tag")
}

/// One of a few words.
pub(super) fn word<T: Copy>(node: &Node, words: &[(&str, T)]) -> Read<T> {
    let text = text(node)?;
    words.iter().find(|(word, _)| *word == text).map(|(_, value)| *value).ok_or_else(|| {
        let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        match names::nearest(text, &known) {
            Some(near) => format!("'{}' is not known here; did you mean '{near}'?", shown(text)),
            None => format!("'{}' is not known here; expected one of {}", shown(text), known.join(", ")),
        }
    })
}

/// A kind of packet.
pub(super) fn kind(node: &Node) -> Read<Kind> {
    word(node, names::KINDS)
}

/// A direction.
pub(super) fn way(node: &Node) -> Read<Way> {
    word(node, &[("rx", Way::Rx), ("tx", Way::Tx)])
}

/// The name of a device.
pub(super) fn device(node: &Node) -> Read<String> {
    let name = text(node)?;
    if !is_device_name(name) {
        return Err(format!("'{}' cannot be the name of a device", shown(name)));
    }
    Ok(name.to_owned())
}

/// A test of TCP flags: `S/SA`, `SA`, or `syn+ack`.
pub(super) fn tcp_test(node: &Node) -> Read<TcpTest> {
    const FORM: &str = "write S/SA (of SYN and ACK exactly SYN is set), SA (both are set) or syn+ack; \
                        the letters are F, S, R, P, A, U, E and W (CWR)";
    let text = text(node)?.trim();
    let not_understood = || format!("'{}' is not a test of TCP flags; {FORM}", shown(text));
    if let Some((set, mask)) = text.split_once('/') {
        let test = TcpTest {
            set: letters(set).ok_or_else(not_understood)?,
            mask: letters(mask).ok_or_else(not_understood)?,
        };
        if test.mask == 0 {
            return Err(format!("'{}' looks at no flag; {FORM}", shown(text)));
        }
        if test.set & !test.mask != 0 {
            return Err(format!("'{}' wants flags set that it does not look at; {FORM}", shown(text)));
        }
        return Ok(test);
    }
    let spelt = || {
        text.split('+').try_fold(0, |flags, name| {
            names::TCP_FLAGS.iter().find(|(_, word, _)| *word == name).map(|(_, _, bit)| flags | bit)
        })
    };
    match letters(text).filter(|flags| *flags != 0).or_else(spelt) {
        Some(flags) => Ok(TcpTest { set: flags, mask: flags }),
        None => Err(not_understood()),
    }
}

fn letters(text: &str) -> Option<u8> {
    text.chars().try_fold(0, |flags, letter| {
        names::TCP_FLAGS.iter().find(|(known, _, _)| *known == letter).map(|(_, _, bit)| flags | bit)
    })
}

/// Whole seconds, or a text with a unit: `90`, `"90s"`, `"10m"`, `"1h"`, `"7d"`.
pub(super) fn seconds(node: &Node) -> Read<u32> {
    const LONGEST: u32 = 366 * 86_400;
    const FORM: &str = "write seconds, or \"90s\", \"10m\", \"1h\", \"7d\"";
    let text = match &node.value {
        Value::Text(text) => text.trim(),
        _ => return number(node, 1..=LONGEST).map_err(|reason| format!("{reason}; {FORM}")),
    };
    let units = [('s', 1), ('m', 60), ('h', 3600), ('d', 86_400)];
    let (digits, factor) = units
        .iter()
        .find_map(|(unit, factor)| text.strip_suffix(*unit).map(|digits| (digits, *factor)))
        .unwrap_or((text, 1));
    let bare = digits.bytes().all(|byte| byte.is_ascii_digit());
    match digits.parse::<u32>().ok().filter(|_| bare).and_then(|number| number.checked_mul(factor)) {
        Some(seconds) if (1..=LONGEST).contains(&seconds) => Ok(seconds),
        Some(_) => Err(format!("'{}' is not within a second and a year", shown(text))),
        None => Err(format!("'{}' is not a time; {FORM}", shown(text))),
    }
}
