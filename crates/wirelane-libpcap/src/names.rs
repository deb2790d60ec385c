//! Selects by name the devices that Wirelane captures.

use wirelane::{Device, LinkType, Selector};

use crate::system;

/// Environment variable that selects our devices: `all` devices that our engines can capture, or only `named` ones,
/// whose names have Wirelane's syntax. Default: `all` if this library is installed as libpcap, `named` if it was
/// preloaded.
const VARIABLE: &str = "WIRELANE_PCAP";
/// Maximum processes that share a group: each is a group in the kernel, and a device has slots for this many.
const MOST_SHARES: u32 = wirelane::groups::MOST;

/// A shared group: its name, and the number of shares.
pub(crate) type Group = (String, u32);

/// A requested device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// The device and its RX queues.
    pub(crate) selector: Selector,
    /// Name of the shared group, and the number of shares.
    pub(crate) group: Option<Group>,
}

/// Result of parsing a device's name.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Named {
    /// The device is ours.
    Ours(Wanted),
    /// The name has our syntax and is invalid, for this reason.
    Wrong(String),
    /// The device belongs to the system's libpcap.
    Systems,
}

/// Parses a name as [`named`] does; `exists` tells whether a device with a name exists.
fn read(name: &str, exists: &dyn Fn(&str) -> bool) -> Named {
    if exists(name) {
        // Names of existing devices may contain anything.
        return Named::Systems;
    }
    let (device, group) = match split_group(name) {
        Ok(parts) => parts,
        Err(reason) => return Named::Wrong(reason),
    };
    if !device.contains('@') && group.is_none() {
        return Named::Systems;
    }
    match Selector::parse_list_with(device, exists) {
        Ok(selectors) => match <[Selector; 1]>::try_from(selectors) {
            Ok([selector]) => Named::Ours(Wanted { selector, group }),
            Err(_) => Named::Wrong(format!("'{name}' is several devices: a handle is for one")),
        },
        Err(error) => Named::Wrong(error.to_string()),
    }
}

/// Splits `eth1:ids/4` into `eth1` and (`ids`, 4).
fn split_group(name: &str) -> Result<(&str, Option<Group>), String> {
    let Some((device, (group, shares))) =
        name.rsplit_once(':').and_then(|(device, group)| Some((device, group.rsplit_once('/')?)))
    else {
        return Ok((name, None));
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_' || c == '.';
    if group.is_empty() || group.len() > 32 || !group.chars().all(plain) {
        return Err(format!(
            "'{name}': a group has a name of letters, digits, '-', '_' and '.', as in eth1:ids/4"
        ));
    }
    match shares.parse::<u32>() {
        Ok(shares) if (1..=MOST_SHARES).contains(&shares) => Ok((device, Some((group.to_owned(), shares)))),
        _ => Err(format!("'{name}': 1 to {MOST_SHARES} processes can share a group, as in eth1:ids/4")),
    }
}

/// Whether devices with ordinary names are ours.
fn takes_all() -> bool {
    match std::env::var(VARIABLE).as_deref() {
        Ok("all") => true,
        Ok("named") => false,
        // Loaded under libpcap's name, or preloaded under its own.
        _ => system::own_file()
            .is_some_and(|file| file.rsplit('/').next().is_some_and(|name| name.starts_with("libpcap.so"))),
    }
}

/// Decides whether this device is ours.
pub(crate) fn named(name: &str) -> Named {
    match read(name, &is_device) {
        Named::Systems if takes_all() => match Device::open(name) {
            Ok(device) if device.link_type != LinkType::Other => {
                match Selector::parse_list_with(name, |known| known == name) {
                    Ok(mut selectors) if selectors.len() == 1 => {
                        Named::Ours(Wanted { selector: selectors.remove(0), group: None })
                    }
                    _ => Named::Systems,
                }
            }
            _ => Named::Systems,
        },
        other => other,
    }
}

/// Whether this network namespace has a device with this name.
fn is_device(name: &str) -> bool {
    // A device's name never contains a colon, and the kernel ignores everything after one.
    if name.contains(':') {
        return false;
    }
    let Ok(name) = std::ffi::CString::new(name) else { return false };
    // SAFETY: a string that ends with a zero.
    unsafe { libc::if_nametoindex(name.as_ptr()) != 0 }
}

/// Name of the device itself, without our syntax.
pub(crate) fn plain(name: &str) -> Option<String> {
    match named(name) {
        Named::Ours(wanted) => {
            let text = wanted.selector.to_string();
            Some(if is_device(&text) { text } else { text.rsplit_once('@')?.0.to_owned() })
        }
        Named::Wrong(_) | Named::Systems => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ours(name: &str) -> Wanted {
        match read(name, &|name| ["eth1", "odd@2"].contains(&name)) {
            Named::Ours(wanted) => wanted,
            other => panic!("{name}: {other:?}"),
        }
    }

    #[test]
    fn what_is_ours_says_so_in_its_name() {
        assert_eq!(ours("eth1@2").selector.to_string(), "eth1@2");
        assert_eq!(ours("eth1@0-3").selector.to_string(), "eth1@0-3");
        assert_eq!(ours("eth1:ids/4").group, Some(("ids".into(), 4)));
        assert_eq!(ours("eth1:ids/4").selector.to_string(), "eth1");
        assert_eq!(ours("eth1@1:ids-2/2").selector.to_string(), "eth1@1");
        for name in ["eth1", "any", "nflog:5", "usbmon0", "eth1:1", "odd@2", "", "no"] {
            let read = read(name, &|name| ["eth1", "odd@2"].contains(&name));
            assert_eq!(read, Named::Systems, "{name}");
        }
    }

    #[test]
    fn what_is_wrong_is_told() {
        for (name, says) in [
            ("eth1@x", "queue number"),
            ("eth1@1-0", "ends before"),
            ("eth1:ids/0", "1 to 64 processes"),
            ("eth1:ids/65", "1 to 64 processes"),
            ("eth1:ids/many", "1 to 64 processes"),
            ("eth1:/2", "a group has a name"),
            ("eth1:a b/2", "a group has a name"),
            ("eth1@0,eth1@1", "several devices"),
        ] {
            match read(name, &|name| name == "eth1") {
                Named::Wrong(reason) => assert!(reason.contains(says), "{name}: {reason}"),
                other => panic!("{name}: {other:?}"),
            }
        }
    }
}
