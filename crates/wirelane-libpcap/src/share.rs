//! Groups that several processes join, each with a share of all flows: `eth1:ids/4`.
//!
//! Each process has its own group in the kernel, which is set to one of several shares and refuses the others before
//! anything is copied. The processes agree on shares by names of sockets in the network namespace: each process takes
//! the first free share, and the kernel frees it when the process ends, for whatever reason.
//!
//! All of them must use the same seed for dividing flows. It is made of the machine's boot id, which changes with each
//! boot and is unknown to the senders of packets, and of the group's name.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use wirelane::{Builder, Device, Error};

/// A share of a group, held until drop.
#[derive(Debug)]
pub(crate) struct Share {
    number: u32,
    of: u32,
    seed: u32,
    _name: UnixDatagram,
}

impl Share {
    /// Takes the first free share of the group.
    ///
    /// # Errors
    /// [`Error::BadOption`] if all are taken; [`Error::Kernel`].
    pub(crate) fn take(device: &Device, group: &str, of: u32) -> Result<Share, Error> {
        let failed = |source| Error::Kernel {
            action: format!("joining the group '{group}' on {}", device.name),
            source,
        };
        let seed = seed(&std::fs::read(BOOT_ID).map_err(failed)?, group);
        for number in 0..of {
            let name = format!("wirelane/group/{}/{group}/{of}/{number}", device.ifindex);
            let bound = SocketAddr::from_abstract_name(name).and_then(|name| UnixDatagram::bind_addr(&name));
            match bound {
                Ok(name) => return Ok(Share { number, of, seed, _name: name }),
                Err(e) if e.kind() == std::io::ErrorKind::AddrInUse => {}
                Err(source) => return Err(failed(source)),
            }
        }
        let reason =
            format!("all {of} shares of group '{group}' on {} are taken by running processes", device.name);
        Err(Error::BadOption { option: "device", reason })
    }

    /// Restricts the capture to this share; the share of a group of one is everything.
    pub(crate) fn of(&self, builder: Builder) -> Builder {
        if self.of > 1 { builder.share(self.number, self.of, self.seed) } else { builder }
    }
}

/// An id that changes with each boot of the machine (random(4)).
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The seed of a group: the same in all processes, even if another compiler built their library (FNV-1a; every byte
/// affects the upper half).
fn seed(boot: &[u8], group: &str) -> u32 {
    let bytes = boot.iter().chain(group.as_bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (hash >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_is_the_groups_and_the_machines() {
        assert_eq!(seed(b"one", "ids"), seed(b"one", "ids"));
        assert_ne!(seed(b"one", "ids"), seed(b"one", "log"));
        assert_ne!(seed(b"one", "ids"), seed(b"two", "ids"));
    }
}
