//! Creates the maps of named sets, patterns and flow caches while a capture runs, which the capture itself is not allowed to do.
//!
//! ```text
//!   the capturing process, without rights            broker, with CAP_BPF
//!     make: a bloom filter of this size  -------->     checks it, makes the map
//!     fills it, puts it where lanes look <--------     its descriptor
//! ```
//! A bloom filter cannot be emptied, so a new list needs a new map, and its size is unknown when the capture starts. An
//! attacker who takes over the capturing process can request such maps, and fill them: they have no effect before they
//! are put into maps that the process has anyway. So the check is on their memory: no map is larger than was
//! registered, and they are created no faster than lists arrive. The kernel charges their memory to the control
//! group of both processes.
//!
//! A capture that keeps its rights creates the maps itself. So does a capture that is not confined yet.

use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use libbpf_rs::libbpf_sys as sys;
use serde::{Deserialize, Serialize};
use wirelane_bpf::instance::FLOW_ELEMENT;
use wirelane_bpf::members::Member;
use wirelane_bpf::search::{Outputs, Page};
use wirelane_privsep::Capability;
use wirelane_privsep::broker::{Broker, Channel, Kind, Registration, Reply, Task};

use crate::error::Result;
use wirelane_rules::{BloomSize, exact_bytes};

/// Maximum time to wait for an answer: the memory of a large map has to be found and cleared.
const LIMIT: Duration = Duration::from_secs(20);
/// Number of maps that may be created at once, and the time after which one more is allowed. A list takes one or two.
const AT_ONCE: u32 = 256;
const ONE_MORE: Duration = Duration::from_millis(100);

/// A requested map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Wanted {
    /// The flow caches of a group, of this many elements.
    Flows(u32),
    /// A bloom filter.
    Bloom { hashes: u32, bits: u64 },
    /// A table of this many entries.
    Exact(u32),
    /// Pages of the automata of patterns.
    Pages(u32),
    /// Pages of the automata's outputs.
    Outputs(u32),
}

/// The creator of maps.
#[derive(Debug)]
pub(super) enum MapFactory {
    /// This process.
    Here,
    /// The broker.
    Broker {
        _registration: Registration,
        /// `None`: it has ended, or did not answer in time.
        channel: Mutex<Option<Channel>>,
    },
}

/// Creating maps of at most this many bytes, as a task of a broker.
pub(crate) const MAPS: Kind = Kind {
    name: "maps",
    capabilities: &[Capability::Bpf],
    prepare: Kind::nothing,
    read: |task, descriptors| {
        let most = serde_json::from_slice(task).ok()?;
        let allowance = Allowance { left: AT_ONCE, next: Instant::now() + ONE_MORE };
        descriptors.is_empty().then(|| Box::new(Maker { most, allowance }) as Box<dyn Task>)
    },
};

struct Maker {
    most: u64,
    allowance: Allowance,
}

impl Task for Maker {
    fn serve(&mut self, request: &[u8]) -> Option<Reply> {
        let wanted: Wanted = serde_json::from_slice(request).ok()?;
        let made = if wanted.bytes().is_none_or(|bytes| bytes > self.most) {
            Err(io::Error::from_raw_os_error(libc::EINVAL))
        } else if !self.allowance.take(Instant::now()) {
            Err(io::Error::from_raw_os_error(libc::EAGAIN))
        } else {
            create(wanted)
        };
        let errno = made.as_ref().err().map_or(0, |e| e.raw_os_error().unwrap_or(libc::EIO));
        Reply::new(&errno, made.ok())
    }
}

impl MapFactory {
    /// The creator for a capture that gives up its rights, and has its broker create maps of at most `most` bytes; or for one
    /// that keeps them (`None`).
    ///
    /// # Errors
    /// If the broker cannot be started.
    pub(super) fn new(broker: Option<&Arc<Broker>>, most: u64) -> Result<MapFactory> {
        broker.map_or(Ok(MapFactory::Here), |broker| MapFactory::register(broker, most))
    }

    fn register(broker: &Arc<Broker>, most: u64) -> Result<MapFactory> {
        let (_registration, channel) = broker.register_service(&MAPS, &most, &[], LIMIT)?;
        Ok(MapFactory::Broker { _registration, channel: Mutex::new(Some(channel)) })
    }

    /// Creates a map.
    ///
    /// # Errors
    /// The error that the kernel returned; `UnexpectedEof` where the broker has ended.
    pub(super) fn make(&self, wanted: Wanted) -> io::Result<OwnedFd> {
        let channel = match self {
            MapFactory::Here => return create(wanted),
            MapFactory::Broker { channel, .. } => channel,
        };
        let mut channel = channel.lock().unwrap_or_else(PoisonError::into_inner);
        let asked = channel.as_ref().map(|channel| channel.send(&wanted).and_then(|()| channel.receive()));
        match asked {
            Some(Ok((0, Some(map)))) => Ok(map),
            Some(Ok((errno @ 1.., None))) => Err(io::Error::from_raw_os_error(errno)),
            // A late answer would be taken for the answer to the next request.
            _ => {
                *channel = None;
                Err(io::ErrorKind::UnexpectedEof.into())
            }
        }
    }
}

impl Wanted {
    /// Name of the map.
    fn name(self) -> &'static std::ffi::CStr {
        match self {
            Wanted::Flows(_) => c"wl_flow",
            Wanted::Bloom { .. } => c"wl_bloom",
            Wanted::Exact(_) => c"wl_exact",
            Wanted::Pages(_) => c"wl_search_page",
            Wanted::Outputs(_) => c"wl_search_out",
        }
    }

    /// Bytes of the map; `None` if there is no such map.
    fn bytes(self) -> Option<u64> {
        match self {
            Wanted::Bloom { hashes, bits } => {
                let size = BloomSize::sound(hashes, bits.checked_ilog2()?)?;
                (size.bits == bits).then(|| size.bytes())
            }
            Wanted::Flows(0) | Wanted::Exact(0) | Wanted::Pages(0) | Wanted::Outputs(0) => None,
            Wanted::Flows(elements) => Some(u64::from(elements) * FLOW_ELEMENT as u64),
            Wanted::Exact(entries) => Some(exact_bytes(entries.into())),
            Wanted::Pages(pages) => Some(u64::from(pages) * size_of::<Page>() as u64),
            Wanted::Outputs(pages) => Some(u64::from(pages) * size_of::<Outputs>() as u64),
        }
    }
}

impl From<BloomSize> for Wanted {
    fn from(BloomSize { hashes, bits }: BloomSize) -> Wanted {
        Wanted::Bloom { hashes, bits }
    }
}

/// Creates a map with the rights of this process.
fn create(wanted: Wanted) -> io::Result<OwnedFd> {
    let mut opts =
        sys::bpf_map_create_opts { sz: size_of::<sys::bpf_map_create_opts>() as _, ..Default::default() };
    let member = size_of::<Member>() as u32;
    let name = wanted.name();
    let (kind, key, value, entries) = match wanted {
        Wanted::Flows(elements) => {
            opts.map_flags = sys::BPF_F_MMAPABLE | sys::BPF_F_INNER_MAP;
            (sys::BPF_MAP_TYPE_ARRAY, size_of::<u32>() as u32, FLOW_ELEMENT as u32, elements)
        }
        Wanted::Bloom { hashes, bits } => {
            opts.map_extra = hashes.into();
            (sys::BPF_MAP_TYPE_BLOOM_FILTER, 0, member, BloomSize { hashes, bits }.max_entries())
        }
        Wanted::Exact(entries) => {
            opts.map_flags = sys::BPF_F_NO_PREALLOC;
            (sys::BPF_MAP_TYPE_HASH, member, size_of::<u32>() as u32, entries)
        }
        Wanted::Pages(pages) => {
            opts.map_flags = sys::BPF_F_INNER_MAP;
            (sys::BPF_MAP_TYPE_ARRAY, size_of::<u32>() as u32, size_of::<Page>() as u32, pages)
        }
        Wanted::Outputs(pages) => {
            opts.map_flags = sys::BPF_F_INNER_MAP;
            (sys::BPF_MAP_TYPE_ARRAY, size_of::<u32>() as u32, size_of::<Outputs>() as u32, pages)
        }
    };
    // SAFETY: a string that ends with a zero and options of the size that they say, both live.
    let made = unsafe { sys::bpf_map_create(kind, name.as_ptr(), key, value, entries, &raw const opts) };
    if made < 0 {
        return Err(io::Error::from_raw_os_error(-made));
    }
    // SAFETY: a new descriptor, owned by nothing else.
    Ok(unsafe { OwnedFd::from_raw_fd(made) })
}

/// The reason that a map was not created, for messages.
pub(super) fn why(error: &io::Error) -> &'static str {
    match (error.kind(), error.raw_os_error()) {
        (_, Some(libc::ENOMEM)) => "it is too large for memory",
        (_, Some(libc::EAGAIN)) => "too many changes at once; try again in a few seconds",
        (io::ErrorKind::UnexpectedEof, _) => {
            "the broker, which creates maps (wl-broker), has ended; start the capture again for changes"
        }
        _ => "the kernel refused to create it",
    }
}

/// Rate limit for maps: checked here, and not only in the requesting process, since this process has the right.
#[derive(Debug)]
struct Allowance {
    left: u32,
    /// Time when the next map is added.
    next: Instant,
}

impl Allowance {
    fn take(&mut self, now: Instant) -> bool {
        if now >= self.next {
            let more = 1 + ((now - self.next).as_millis() / ONE_MORE.as_millis()) as u32;
            self.left = self.left.saturating_add(more).min(AT_ONCE);
            self.next += ONE_MORE * more;
        }
        let may = self.left > 0;
        self.left -= u32::from(may);
        may
    }
}

#[cfg(test)]
mod tests {
    use wirelane_privsep::forked::Rights;

    use super::super::rules::has;
    use super::*;

    #[test]
    fn what_is_asked_for_is_checked() {
        const MOST: u64 = 1 << 20;
        let size = |hashes, bits| Wanted::Bloom { hashes, bits };
        let permitted = |wanted: Wanted| wanted.bytes().is_some_and(|bytes| bytes <= MOST);
        for wanted in [
            size(1, 64),
            size(15, 8 << 20),
            Wanted::Exact(1),
            Wanted::Exact(7000),
            Wanted::Pages(1),
            Wanted::Pages(3),
            Wanted::Outputs(1),
            Wanted::Outputs(256),
        ] {
            assert!(permitted(wanted), "{wanted:?}");
        }
        for refused in [
            size(0, 64),
            size(16, 64),
            size(1, 0),
            size(1, 32),
            size(1, 65),
            size(1, 16 << 20),
            Wanted::Exact(0),
            Wanted::Exact(8000),
            Wanted::Pages(0),
            Wanted::Pages(4),
            Wanted::Outputs(0),
            Wanted::Outputs(257),
        ] {
            assert!(!permitted(refused), "{refused:?}");
        }
    }

    #[test]
    fn maps_are_made_no_faster_than_lists_come() {
        let start = Instant::now();
        let mut allowance = Allowance { left: AT_ONCE, next: start + ONE_MORE };
        // Requests without a pause, for a minute.
        let taken = (0..60_000u64).filter(|at| allowance.take(start + Duration::from_millis(*at))).count();
        assert_eq!(taken, AT_ONCE as usize + 599);
        // No requests for an hour.
        let later = start + Duration::from_secs(3600);
        assert_eq!((0..1000).filter(|_| allowance.take(later)).count(), AT_ONCE as usize);
    }

    /// The broker has the right that it needs, hands maps over, and refuses others.
    #[test]
    fn the_broker_makes_maps_and_no_others() {
        static KINDS: [Kind; 1] = [MAPS];
        if !nix::unistd::geteuid().is_root() || std::env::var_os("WIRELANE_UNPRIVILEGED").is_some() {
            println!("left out: the_broker_makes_maps_and_no_others (needs root)");
            return;
        }
        let broker = || {
            let rights = || Rights::new(&[Capability::Bpf, Capability::NetAdmin], &[]);
            Broker::new(&KINDS, true, rights)
        };
        let first = broker();
        let map_factory = MapFactory::register(&first, 1 << 20).unwrap();
        first.seal(true);
        let sizes = [Wanted::Bloom { hashes: 5, bits: 1 << 12 }, Wanted::Exact(100)];
        for wanted in sizes {
            let map = map_factory.make(wanted).unwrap();
            let member = Member::address([192, 0, 2, 1].into());
            let key = Some(&member).filter(|_| wanted == sizes[1]);
            assert!(!has(&map, key, &member).unwrap(), "empty, and of its kind: {wanted:?}");
        }
        let refused = map_factory.make(Wanted::Bloom { hashes: 5, bits: 1 << 32 }).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EINVAL));
        // A broker that has ended gets no further requests: here, after a message other than a request.
        let MapFactory::Broker { channel, .. } = &map_factory else { unreachable!("it was registered") };
        channel.lock().unwrap().as_ref().unwrap().send(&"nonsense").unwrap();
        for _ in 0..2 {
            assert_eq!(map_factory.make(sizes[0]).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        }
    }
}
