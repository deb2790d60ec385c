//! The XDP program that hands packets to the sockets (bpf/xsk.bpf.c), attached to its device by a link.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use libbpf_rs::{MapCore as _, MapFlags, MapHandle, MapType};
use wirelane_afxdp::XskSocket;
use wirelane_bpf::filter::Filter as Layout;
use wirelane_bpf::skel::xsk::XskSkelBuilder;

use crate::engine::ring::attach::{self, Found};

use crate::engine::ring::log::trace_libbpf;
use crate::engine::uninterrupted::uninterrupted;
use crate::error::{Error, Result};
use crate::hook::Hook;
use crate::offloads::Offloads;
use crate::settings::HookChoice;
use wirelane_filter::Filter;
use wirelane_netdev::{Device, XdpMode};
use wirelane_privsep::broker::Broker;

/// Maximum number of RX queues of a device (`WL_XSK_MAX_QUEUES`).
pub(super) const MOST_QUEUES: u32 = 256;

/// The program's counts of one RX queue (`struct wl_xsk_tally`).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    pub(super) seen: u64,
    pub(super) too_long: u64,
    pub(super) no_socket: u64,
    pub(super) filtered: u64,
}

/// Settings of the program.
#[derive(Clone, Copy, Debug)]
pub(super) struct Config {
    pub(super) multi_buffer: bool,
    pub(super) stamp: bool,
}

/// The attached program, which passes all packets to the stack until it is activated.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) native: bool,
    sockets: MapHandle,
    tallies: MapHandle,
    state: MapHandle,
    /// Outer map with the filter in use.
    filter: MapHandle,
    /// Two maps for filters, of which one may be in use.
    filters: [MapHandle; 2],
    /// Index of the filter map to write next.
    idle: Mutex<usize>,
    link: OwnedFd,
    /// After the link: the program may have turned them off.
    _offloads: Option<Offloads>,
}

/// Creates a map for one filter.
fn filter_map() -> Result<MapHandle> {
    let opts = libbpf_rs::libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_rs::libbpf_sys::bpf_map_create_opts>() as _,
        ..Default::default()
    };
    MapHandle::create(MapType::Array, Some("wl_xsk_filter"), 4, size_of::<Layout>() as u32, 1, &opts)
        .map_err(|e| Error::bpf("making a map for a filter", e))
}

impl Program {
    /// Loads the program and attaches it to the device.
    ///
    /// # Errors
    /// [`Error::ForeignProgram`], [`Error::BadOption`] where a capture of ours is attached, or the error that the
    /// kernel returned.
    pub(super) fn attach(
        device: &Device,
        hook: HookChoice,
        config: Config,
        broker: &Arc<Broker>,
    ) -> Result<Program> {
        let native = Hook::Xdp(XdpMode::Native);
        if let Found::Ours { .. } = attach::look(device, native)? {
            return Err(Error::BadOption {
                option: "--engine",
                reason: format!(
                    "{} is being captured by engine ring, and xsk needs the device for itself: stop that capture, or \
                     use --engine ring, which shares",
                    device.name
                ),
            });
        }
        trace_libbpf();
        let doing = |what: &str| format!("{what} for {}", device.name);
        let mut object = MaybeUninit::uninit();
        let mut open = XskSkelBuilder::default()
            .open(&mut object)
            .map_err(|e| Error::bpf(doing("opening the program of engine xsk"), e))?;
        if let Some(rodata) = open.maps.rodata_data.as_deref_mut() {
            rodata.wl_xsk_config.multi_buffer = config.multi_buffer.into();
            rodata.wl_xsk_config.stamp = config.stamp.into();
        }
        let skel = uninterrupted(|| open.load())
            .map_err(|e| Error::bpf(doing("loading the program of engine xsk into the kernel"), e))?;
        let put = |mode| {
            let hook = Hook::Xdp(mode);
            let offloads = Offloads::before(device, hook, broker)?;
            let link = attach::attach(skel.progs.wirelane_xsk.as_fd(), device, hook)?;
            Ok::<_, Error>(link.map(|link| (link, offloads)))
        };
        let (link, native) = match hook {
            HookChoice::Generic => (put(XdpMode::Generic)?, false),
            HookChoice::Native => (put(XdpMode::Native)?, true),
            HookChoice::Auto => match put(XdpMode::Native) {
                Err(Error::Kernel { source, .. }) if source.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                    tracing::warn!(
                        "{}: its driver has no native XDP: capturing under generic XDP, which is slower",
                        device.name
                    );
                    (put(XdpMode::Generic)?, false)
                }
                link => (link?, true),
            },
            HookChoice::Tc | HookChoice::Clsact => {
                return Err(Error::BadOption {
                    option: "--hook",
                    reason: "engine xsk takes packets at XDP: native, generic or auto".into(),
                });
            }
        };
        let Some((link, offloads)) = link else {
            return Err(Error::BadOption {
                option: "-i",
                reason: format!("another program came onto {} at the same time; try again", device.name),
            });
        };
        let handle = |map| MapHandle::try_from(map).map_err(|e| Error::bpf(doing("keeping a map"), e));
        let program = Program {
            native,
            sockets: handle(&skel.maps.wl_xsks)?,
            tallies: handle(&skel.maps.wl_xsk_tallies)?,
            state: handle(&skel.maps.wl_xsk_state)?,
            filter: handle(&skel.maps.wl_xsk_filter)?,
            filters: [filter_map()?, filter_map()?],
            idle: Mutex::new(0),
            link,
            _offloads: offloads,
        };
        // The number of CPUs with counters is read from a file, and remembered: after rights have been given up, it
        // cannot be read.
        program.tally(0)?;
        Ok(program)
    }

    /// Index of the device that the program is attached to; 0: no device any more.
    ///
    /// # Errors
    /// [`Error::Kernel`].
    pub(super) fn device(&self) -> Result<u32> {
        attach::device_of(&self.link)
    }

    /// Assigns the packets of this queue to this socket, once the program is active.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub(super) fn serve(&self, queue: u32, socket: &XskSocket) -> Result<()> {
        let value = socket.as_fd().as_raw_fd() as u32;
        self.sockets
            .update(&queue.to_ne_bytes(), &value.to_ne_bytes(), MapFlags::ANY)
            .map_err(|e| Error::bpf(format!("giving RX queue {queue} its AF_XDP socket"), e))
    }

    /// Hands packets over, or passes all to the stack, from the next packet on.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub(super) fn set_active(&self, active: bool) -> Result<()> {
        self.state
            .update(&0u32.to_ne_bytes(), &u64::from(active).to_ne_bytes(), MapFlags::ANY)
            .map_err(|e| Error::bpf("telling the program of engine xsk whether to take packets", e))
    }

    /// Evaluates by this filter from the next packet on; `None` accepts everything. On return no packet is evaluated by
    /// the previous filter.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub(super) fn set_filter(&self, filter: Option<&Filter>) -> Result<()> {
        let failed = |e| Error::bpf("handing a filter to the program of engine xsk", e);
        let key = 0u32.to_ne_bytes();
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        // Both changes of the outer map make the kernel wait for running programs.
        let Some(filter) = filter else {
            return match self.filter.delete(&key) {
                Err(e) if e.kind() != libbpf_rs::ErrorKind::NotFound => Err(failed(e)),
                _ => Ok(()),
            };
        };
        let map = &self.filters[*idle];
        map.update(&key, &filter.encode(), MapFlags::ANY).map_err(failed)?;
        let descriptor = map.as_fd().as_raw_fd().to_ne_bytes();
        self.filter.update(&key, &descriptor, MapFlags::ANY).map_err(failed)?;
        *idle = 1 - *idle;
        Ok(())
    }

    /// The program's counts of this queue.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub(super) fn tally(&self, queue: u32) -> Result<Tally> {
        let failed = |e| Error::bpf("reading what the program of engine xsk has counted", e);
        let per_cpu = self.tallies.lookup_percpu(&queue.to_ne_bytes(), MapFlags::ANY).map_err(failed)?;
        let mut tally = Tally::default();
        for line in per_cpu.unwrap_or_default() {
            let word = |at: usize| {
                let bytes = line.get(at * 8..at * 8 + 8).and_then(|bytes| bytes.try_into().ok());
                bytes.map_or(0, u64::from_ne_bytes)
            };
            tally.seen += word(0);
            tally.too_long += word(2);
            tally.no_socket += word(3);
            tally.filtered += word(4);
        }
        Ok(tally)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Closing the link is not enough while a process that was forked from this one (a command that is being
        // started) has a copy of it: packets would go to sockets without a reader, and the device would seem to be in
        // use.
        // SAFETY: bpf(2) on a live descriptor, and no pointers.
        let status = unsafe { libbpf_rs::libbpf_sys::bpf_link_detach(self.link.as_raw_fd()) };
        if status != 0 {
            let error = std::io::Error::from_raw_os_error(-status);
            tracing::debug!("taking the program of engine xsk off its device: {error}");
        }
    }
}
