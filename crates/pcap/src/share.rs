//! Groups that several processes join, each with a share of all flows: `eth1:ids/4`.
//!
//! Each process has a group of its own in the kernel, with a steering program that refuses what is not its share before
//! anything is copied (`share.bpf.c`). Which share is whose is agreed on by names of sockets in the network namespace: each
//! process takes the first that is free, and the kernel gives it back when the process ends, however it ends.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use wirelane::{Builder, Device, Error};

/// A share, and of how many, and the program that has this share.
type Object = (u32, u32, &'static [u8]);

const OBJECTS: &[Object] = include!(concat!(env!("OUT_DIR"), "/shares.rs"));

/// A share of a group, held until drop.
#[derive(Debug)]
pub(crate) struct Share {
    object: Option<&'static Object>,
    _name: UnixDatagram,
}

impl Share {
    /// Takes the first share of the group that is free.
    ///
    /// # Errors
    /// [`Error::BadOption`] where all are taken; [`Error::Kernel`].
    pub(crate) fn take(device: &Device, group: &str, of: u32) -> Result<Share, Error> {
        for share in 0..of {
            let name = format!("wirelane/group/{}/{group}/{of}/{share}", device.ifindex);
            let bound = SocketAddr::from_abstract_name(name).and_then(|name| UnixDatagram::bind_addr(&name));
            match bound {
                Ok(name) => {
                    let object = OBJECTS.iter().find(|object| (object.0, object.1) == (share, of));
                    return Ok(Share { object, _name: name });
                }
                Err(e) if e.kind() == std::io::ErrorKind::AddrInUse => {}
                Err(source) => {
                    let action = format!("joining the group '{group}' on {}", device.name);
                    return Err(Error::Kernel { action, source });
                }
            }
        }
        let reason =
            format!("all {of} shares of group '{group}' on {} are taken by running processes", device.name);
        Err(Error::BadOption { option: "device", reason })
    }

    /// Has the capture get this share only; of a group of one that is everything.
    pub(crate) fn steer(&self, builder: Builder) -> Builder {
        match self.object {
            Some((share, of, object)) => builder.steering_object(&format!("share {share} of {of}"), object),
            None => builder,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::MOST_SHARES;

    #[test]
    fn there_is_a_program_for_each_share_of_each_size() {
        let sizes: Vec<(u32, u32)> = OBJECTS.iter().map(|object| (object.0, object.1)).collect();
        let expected: Vec<(u32, u32)> =
            (2..=MOST_SHARES).flat_map(|of| (0..of).map(move |share| (share, of))).collect();
        assert_eq!(sizes, expected);
        assert!(OBJECTS.iter().all(|object| object.2.starts_with(b"\x7fELF")));
    }
}
