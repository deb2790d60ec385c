//! Properties and counters of the generator's device.

use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::io::{self, Read, Seek};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;

use super::mac::MacAddr;
use crate::{Error, Result};

/// A device of this network namespace, at the time of the lookup.
#[derive(Clone, Debug)]
pub struct Interface {
    /// Name.
    pub name: String,
    /// Index.
    pub index: u32,
    /// Largest network-layer packet in bytes.
    pub mtu: u32,
    /// MAC address.
    pub mac: MacAddr,
}

/// Counters of the device, as in `/proc/net/dev`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    /// Packets sent.
    pub sent: u64,
    /// Packets dropped before they were sent.
    pub dropped: u64,
}

impl Interface {
    /// Looks up a device to send from. It has to exist, be an Ethernet device and be up.
    pub fn find(name: &str) -> Result<Interface> {
        let index = index_of(name)?;
        let socket = control_socket()?;
        let ask = |request: libc::Ioctl, what: &str| -> Result<libc::ifreq> {
            let mut query = request_for(name);
            // SAFETY: the SIOCGIF* requests read the name from and write their answer to one `ifreq`, which
            // `query` is; it is valid and exclusively borrowed for the call.
            match unsafe { libc::ioctl(socket.as_raw_fd(), request, &raw mut query) } {
                0 => Ok(query),
                _ => Err(Error::last_os(format!("reading the {what} of {name}"))),
            }
        };
        let hardware = ask(libc::SIOCGIFHWADDR, "address")?;
        // SAFETY: SIOCGIFHWADDR fills in `ifru_hwaddr`, plain bytes.
        let address = unsafe { hardware.ifr_ifru.ifru_hwaddr };
        if ![libc::ARPHRD_ETHER, libc::ARPHRD_LOOPBACK].contains(&address.sa_family) {
            let reason = format!(
                "{name} is not an Ethernet device (ARPHRD {}), and only those can send",
                address.sa_family
            );
            return Err(Error::BadOption { option: "-i", reason });
        }
        let mut mac = [0; 6];
        for (to, from) in mac.iter_mut().zip(address.sa_data) {
            *to = from as u8;
        }
        let flags = ask(libc::SIOCGIFFLAGS, "state")?;
        // SAFETY: SIOCGIFFLAGS fills in `ifru_flags`, an integer.
        let flags = i32::from(unsafe { flags.ifr_ifru.ifru_flags });
        if flags & libc::IFF_UP == 0 {
            let reason = format!("{name} is down; bring it up first: ip link set {name} up");
            return Err(Error::BadOption { option: "-i", reason });
        }
        let mtu = ask(libc::SIOCGIFMTU, "MTU")?;
        // SAFETY: SIOCGIFMTU fills in `ifru_mtu`, an integer.
        let mtu = unsafe { mtu.ifr_ifru.ifru_mtu };
        Ok(Interface { name: name.to_owned(), index, mtu: mtu.max(0) as u32, mac: MacAddr(mac) })
    }

    /// The largest frame in bytes without FCS that the device accepts.
    pub fn largest_frame(&self, with_vlan: bool) -> usize {
        self.mtu as usize + 14 + if with_vlan { 4 } else { 0 }
    }

    /// A reader of the device's counters, independent of the rights that the process has later.
    pub fn gauge(&self) -> Result<Gauge> {
        // In the calling thread's network namespace, in which the device was found.
        let path = PathBuf::from("/proc/thread-self/net/dev");
        let file = File::open(&path).map_err(|source| Error::Io { path: path.clone(), source })?;
        Ok(Gauge { file, path, device: self.name.clone() })
    }
}

/// The counters of a device, over one open file.
#[derive(Debug)]
pub struct Gauge {
    file: File,
    path: PathBuf,
    device: String,
}

impl Gauge {
    /// The device's counters so far.
    pub fn counters(&self) -> Result<Counters> {
        let mut text = String::new();
        let mut file = &self.file;
        // The kernel generates the text for each read from the start.
        file.seek(io::SeekFrom::Start(0))
            .and_then(|_| file.read_to_string(&mut text))
            .map_err(|source| Error::Io { path: self.path.clone(), source })?;
        let gone = || wirelane_netdev::Error::DeviceGone { device: self.device.clone() }.into();
        parse_counters(&text, &self.device).ok_or_else(gone)
    }
}

/// Parses the line of a device: eight receive columns, then transmitted bytes, packets, errors, drops, ...
fn parse_counters(text: &str, device: &str) -> Option<Counters> {
    let columns = text.lines().find_map(|line| {
        let (name, columns) = line.rsplit_once(':')?;
        (name.trim() == device).then_some(columns)
    })?;
    let transmit: Vec<u64> =
        columns.split_whitespace().skip(8).map_while(|column| column.parse().ok()).collect();
    Some(Counters { sent: *transmit.get(1)?, dropped: *transmit.get(3)? })
}

fn index_of(name: &str) -> Result<u32> {
    let unknown = || {
        Error::from(wirelane_netdev::Error::UnknownDevice {
            name: name.to_owned(),
            known: all_names().join(", "),
        })
    };
    // The kernel would truncate a longer name and might find another device.
    if name.is_empty() || name.len() >= libc::IFNAMSIZ {
        return Err(unknown());
    }
    let c_name = CString::new(name).map_err(|_| unknown())?;
    // SAFETY: `c_name` is a NUL-terminated string that lives across the call.
    match unsafe { libc::if_nametoindex(c_name.as_ptr()) } {
        0 => Err(unknown()),
        index => Ok(index),
    }
}

fn all_names() -> Vec<String> {
    // SAFETY: takes no arguments; the result is null or an array to be freed with if_freenameindex.
    let list = unsafe { libc::if_nameindex() };
    if list.is_null() {
        return Vec::new();
    }
    let mut names = Vec::new();
    let mut entry = list;
    // SAFETY: the array ends with an entry whose name is null, and no entry after it is read.
    while let Some(name) = unsafe { (*entry).if_name.as_ref() } {
        // SAFETY: every other entry's name is a NUL-terminated string, owned by the array.
        names.push(unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned());
        // SAFETY: this entry was not the last one, so there is a next one.
        entry = unsafe { entry.add(1) };
    }
    // SAFETY: `list` came from if_nameindex and is not used afterwards.
    unsafe { libc::if_freenameindex(list) };
    names
}

fn control_socket() -> Result<OwnedFd> {
    // SAFETY: no memory is passed.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(Error::last_os("opening a socket to look at devices"));
    }
    // SAFETY: `fd` was just created and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn request_for(name: &str) -> libc::ifreq {
    // SAFETY: `ifreq` is integers, bytes and a pointer that the requests used here do not follow; all zero is a valid
    // value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request
}

/// Those of the given capabilities that the calling thread lacks; all of them if the status cannot be parsed.
pub fn missing_capabilities(wanted: &[(u32, &'static str)]) -> io::Result<Vec<&'static str>> {
    let status = fs::read_to_string("/proc/thread-self/status")?;
    let effective = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0);
    Ok(wanted.iter().filter(|(bit, _)| effective >> bit & 1 == 0).map(|(_, name)| *name).collect())
}

/// An error if one of these capabilities (number, name) is missing.
pub fn require(wanted: &[(u32, &'static str)], action: &str) -> Result<()> {
    let missing = missing_capabilities(wanted)
        .map_err(|source| Error::kernel("reading the capabilities of this process", source))?;
    if missing.is_empty() {
        return Ok(());
    }
    let grant = missing.iter().map(|name| name.to_lowercase()).collect::<Vec<_>>().join(",");
    let missing = missing.join(", ");
    Err(wirelane_privsep::Error::MissingCapability { missing, grant, action: action.to_owned() }.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transmit_columns_of_the_right_device() {
        let text = "Inter-|   Receive                                                |  Transmit\n \
                    face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n\
                    veth1: 1 2 3 4 5 6 7 8 90 91 92 93 94 95 96 97\n   \
                    veth10: 11 12 13 14 15 16 17 18 190 191 192 193 194 195 196 197\n";
        let counters = parse_counters(text, "veth10").unwrap();
        assert_eq!((counters.sent, counters.dropped), (191, 193));
        let counters = parse_counters(text, "veth1").unwrap();
        assert_eq!((counters.sent, counters.dropped), (91, 93));
        assert!(parse_counters(text, "veth").is_none());
    }

    #[test]
    fn unknown_device_names_the_known_ones() {
        let Err(Error::Netdev(wirelane_netdev::Error::UnknownDevice { name, known })) =
            Interface::find("no-such-device")
        else {
            panic!("found a device that is not there");
        };
        assert_eq!(name, "no-such-device");
        assert!(known.split(", ").any(|name| name == "lo"), "{known}");
    }
}
