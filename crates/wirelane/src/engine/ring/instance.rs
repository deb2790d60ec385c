//! One capture program on one device: found where it runs, loaded where it does not.
//!
//! Nothing is pinned. Every process that uses an instance holds the same link and the same maps by file
//! descriptor, so the kernel takes the program off the device when the last of them is gone, however it ends.
//! A process finds a running instance by asking the kernel which program is on the device.

use std::ffi::CStr;
use std::mem::{MaybeUninit, offset_of};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use libbpf_rs::libbpf_sys as sys;
use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use libbpf_rs::{MapCore as _, MapHandle};
use wirelane_datapath::instance::{
    Group, INTERFACE_VERSION, Instance as Layout, MAX_GROUPS, MAX_WORKERS, PROGRAM_NAME, Ring, Tally,
};
use wirelane_datapath::skel::capture::CaptureSkelBuilder;

use super::memory::Mapping;
use crate::device::{Device, XdpMode};
use crate::{Error, Result};

/// The maps of an instance that user space handles, and their shared parts.
#[derive(Debug)]
pub(crate) struct Instance {
    pub(crate) ifindex: u32,
    pub(crate) mode: XdpMode,
    pub(crate) lanes: usize,
    pub(crate) queues: usize,
    pub(crate) per_cpu: bool,
    /// `struct wl_instance`.
    pub(crate) state: Mapping,
    /// `struct wl_group`, one per group.
    pub(crate) groups: Mapping,
    /// `struct wl_tally`, one per group and slot: see [`Instance::tally`].
    pub(crate) tallies: Mapping,
    /// `struct wl_ring`, one per group, lane and worker: see [`Instance::ring`].
    pub(crate) rings: Arc<Mapping>,
    pub(crate) data: MapHandle,
    pub(crate) bells: MapHandle,
    pub(crate) owners: MapHandle,
    /// Keeps the program on the device.
    _link: OwnedFd,
}

/// What the kernel says is on a device.
enum OnDevice {
    Nothing,
    Ours { program: u32, mode: XdpMode },
}

impl Instance {
    /// The instance on `device`: the running one, or a new one in the mode asked for (`None`: native where
    /// the driver can, else generic).
    pub(crate) fn open(device: &Device, mode: Option<XdpMode>) -> Result<Instance> {
        // Between looking and acting another process may start or end an instance: look again then.
        for _ in 0..16 {
            match on_device(device)? {
                OnDevice::Ours { program, mode: running } => {
                    if mode.is_some_and(|wanted| wanted != running) {
                        return Err(Error::BadOption {
                            option: "--xdp",
                            reason: format!("{} is already captured under {running} XDP", device.name),
                        });
                    }
                    if let Some(instance) = join(device, program, running)? {
                        return Ok(instance);
                    }
                }
                OnDevice::Nothing => {
                    if let Some(instance) = create(device, mode)? {
                        return Ok(instance);
                    }
                }
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        Err(Error::BadOption {
            option: "-i",
            reason: format!("XDP programs come and go on {}; try again once that has settled", device.name),
        })
    }

    /// Lines of the ledger that each group has.
    pub(crate) fn slots(&self) -> usize {
        if self.per_cpu { self.lanes * self.queues } else { self.queues }
    }

    /// Byte offset in [`Instance::tallies`] of a group's first line.
    pub(crate) fn tally(&self, group: usize, slot: usize) -> usize {
        (group * self.slots() + slot) * size_of::<Tally>()
    }

    /// Byte offset in [`Instance::rings`] of a ring's writer's end.
    pub(crate) fn ring(&self, group: usize, lane: usize, worker: usize) -> usize {
        ((group * self.lanes + lane) * MAX_WORKERS + worker) * size_of::<Ring>()
    }

    /// Packets that came in on an RX queue or CPU which did not exist at load time.
    pub(crate) fn stray(&self) -> u64 {
        self.state.word(offset_of!(Layout, stray)).load(Ordering::Relaxed)
    }
}

/// Asks the kernel what runs on the device. An error if it is not ours.
fn on_device(device: &Device) -> Result<OnDevice> {
    let mut query =
        sys::bpf_xdp_query_opts { sz: size_of::<sys::bpf_xdp_query_opts>() as _, ..Default::default() };
    // SAFETY: a live, zeroed option struct with its size set.
    let status = unsafe { sys::bpf_xdp_query(device.ifindex as i32, 0, &mut query) };
    if status < 0 {
        return Err(Error::kernel(
            format!("asking which XDP program is on {}", device.name),
            std::io::Error::from_raw_os_error(-status),
        ));
    }
    let attached = [
        (query.drv_prog_id, XdpMode::Native),
        (query.skb_prog_id, XdpMode::Generic),
        (query.hw_prog_id, XdpMode::Offloaded),
    ];
    let Some((id, mode)) = attached.into_iter().find(|(id, _)| *id != 0) else {
        return Ok(OnDevice::Nothing);
    };
    match program_name(id)? {
        None => Ok(OnDevice::Nothing), // ended since the query
        Some(program) if program == PROGRAM_NAME => Ok(OnDevice::Ours { program: id, mode }),
        Some(program) => {
            Err(Error::ForeignProgram { device: device.name.clone(), program, id, mode: mode.to_string() })
        }
    }
}

/// The name of a program, `None` if it is gone.
fn program_name(id: u32) -> Result<Option<String>> {
    let Some(fd) = by_id(id, sys::bpf_prog_get_fd_by_id, "program")? else {
        return Ok(None);
    };
    let (info, _) = program_info(&fd)?;
    // SAFETY: the kernel ends the name with a zero within the array (BPF_OBJ_NAME_LEN).
    let name = unsafe { CStr::from_ptr(info.name.as_ptr()) };
    Ok(Some(name.to_string_lossy().into_owned()))
}

/// Opens a BPF object by id, `None` if it is gone.
fn by_id(id: u32, open: unsafe extern "C" fn(u32) -> i32, what: &str) -> Result<Option<OwnedFd>> {
    // SAFETY: takes an id, returns a descriptor that is ours, or a negative error.
    match unsafe { open(id) } {
        // SAFETY: just opened, owned by nobody else.
        fd if fd >= 0 => Ok(Some(unsafe { OwnedFd::from_raw_fd(fd) })),
        error if error == -libc::ENOENT => Ok(None),
        error => Err(Error::kernel(
            format!("opening BPF {what} {id} of a running Wirelane"),
            std::io::Error::from_raw_os_error(-error),
        )),
    }
}

/// A program's description and the ids of its maps.
fn program_info(fd: &OwnedFd) -> Result<(sys::bpf_prog_info, Vec<u32>)> {
    let mut maps = vec![0u32; 64];
    let mut info = sys::bpf_prog_info {
        nr_map_ids: maps.len() as u32,
        map_ids: maps.as_mut_ptr().addr() as u64,
        ..Default::default()
    };
    let mut len = size_of::<sys::bpf_prog_info>() as u32;
    // SAFETY: `info` and the array it points to are live and of the sizes stated.
    let status = unsafe { sys::bpf_prog_get_info_by_fd(fd.as_raw_fd(), &mut info, &mut len) };
    if status < 0 {
        return Err(Error::kernel(
            "reading a BPF program's description",
            std::io::Error::from_raw_os_error(-status),
        ));
    }
    maps.truncate(info.nr_map_ids as usize);
    Ok((info, maps))
}

/// Joins the running instance; `None` if it ended meanwhile.
fn join(device: &Device, program: u32, mode: XdpMode) -> Result<Option<Instance>> {
    let Some(link) = link_of(program)? else { return Ok(None) };
    let Some(program) = by_id(program, sys::bpf_prog_get_fd_by_id, "program")? else { return Ok(None) };
    let (_, ids) = program_info(&program)?;
    let mut maps = Vec::new();
    for id in ids {
        match MapHandle::from_map_id(id) {
            Ok(map) => maps.push(map),
            Err(e) if e.kind() == libbpf_rs::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(Error::bpf("opening a running Wirelane's maps", e)),
        }
    }
    let mut take = |name: &str| {
        let at = maps.iter().position(|map| map.name() == name).ok_or_else(|| Error::OtherVersion {
            device: device.name.clone(),
            theirs: 0,
            ours: INTERFACE_VERSION,
        })?;
        Ok(maps.swap_remove(at))
    };
    let maps = Maps {
        instance: take("wl_instance")?,
        groups: take("wl_groups")?,
        tallies: take("wl_tallies")?,
        rings: take("wl_rings")?,
        data: take("wl_data")?,
        bells: take("wl_bells")?,
        owners: take("wl_owners")?,
    };
    maps.share(device, mode, link).map(Some)
}

/// The link that holds this program on its device; `None` if there is none (any more).
fn link_of(program: u32) -> Result<Option<OwnedFd>> {
    for link in libbpf_rs::query::LinkInfoIter::default() {
        if link.prog_id == program {
            return by_id(link.id, sys::bpf_link_get_fd_by_id, "link");
        }
    }
    Ok(None)
}

/// Loads the program and puts it on the device; `None` if another process was faster.
fn create(device: &Device, mode: Option<XdpMode>) -> Result<Option<Instance>> {
    match mode {
        Some(mode) => load(device, mode),
        None => match load(device, XdpMode::Native) {
            Err(Error::Kernel { source, .. }) if source.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                tracing::warn!(
                    "{}: its driver ({}) has no native XDP: capturing under generic XDP, which is slower",
                    device.name,
                    driver(device)
                );
                load(device, XdpMode::Generic)
            }
            result => result,
        },
    }
}

fn driver(device: &Device) -> &str {
    device.driver.as_deref().unwrap_or("unknown")
}

/// Whether two threads can be inside this driver's XDP hook for one RX queue at the same time.
fn shares_queues(driver: &str) -> bool {
    // tun/tap runs the program in the writing thread, without a lock per queue (drivers/net/tun.c).
    matches!(driver, "tun" | "tap")
}

fn load(device: &Device, mode: XdpMode) -> Result<Option<Instance>> {
    let queues = device.max_rx_queues.max(1) as usize;
    let per_cpu = mode == XdpMode::Generic || shares_queues(driver(device));
    let cpus = libbpf_rs::num_possible_cpus().map_err(|e| Error::bpf("counting CPUs", e))?;
    let lanes = if per_cpu { cpus } else { queues };
    let slots = if per_cpu { lanes * queues } else { queues };
    let seed = random_seed();

    let doing = |what: &str| format!("{what} for {}", device.name);
    let mut object = MaybeUninit::uninit();
    let mut open = CaptureSkelBuilder::default()
        .open(&mut object)
        .map_err(|e| Error::bpf(doing("opening the capture program"), e))?;
    if let Some(rodata) = open.maps.rodata_data.as_deref_mut() {
        rodata.wl_config.lanes = lanes as u32;
        rodata.wl_config.queues = queues as u32;
        rodata.wl_config.per_cpu = per_cpu.into();
        rodata.wl_config.seed = seed;
    }
    let sized = |result: libbpf_rs::Result<()>| result.map_err(|e| Error::bpf(doing("sizing the maps"), e));
    sized(open.maps.wl_tallies.set_max_entries((MAX_GROUPS * slots) as u32))?;
    sized(open.maps.wl_rings.set_max_entries((MAX_GROUPS * lanes * MAX_WORKERS) as u32))?;
    sized(open.maps.wl_lanes.set_max_entries(lanes as u32))?;
    let skel =
        open.load().map_err(|e| Error::bpf(doing("loading the capture program into the kernel"), e))?;

    let program = skel.progs.wirelane_xdp.as_fd();
    // The owners' map is not looked at by the program: bound to it, it is found by whoever finds the program.
    // SAFETY: two live descriptors, no options.
    let status = unsafe {
        sys::bpf_prog_bind_map(program.as_raw_fd(), skel.maps.wl_owners.as_fd().as_raw_fd(), std::ptr::null())
    };
    if status < 0 {
        return Err(Error::kernel(doing("binding a map"), std::io::Error::from_raw_os_error(-status)));
    }
    let handle = |map| MapHandle::try_from(map).map_err(|e| Error::bpf(doing("keeping a map"), e));
    let maps = Maps {
        instance: handle(&skel.maps.wl_instance)?,
        groups: handle(&skel.maps.wl_groups)?,
        tallies: handle(&skel.maps.wl_tallies)?,
        rings: handle(&skel.maps.wl_rings)?,
        data: handle(&skel.maps.wl_data)?,
        bells: handle(&skel.maps.wl_bells)?,
        owners: handle(&skel.maps.wl_owners)?,
    };
    let state = Layout {
        active: 0,
        stray: 0,
        version: INTERFACE_VERSION,
        lanes: lanes as u32,
        queues: queues as u32,
        ifindex: device.ifindex,
        per_cpu: per_cpu.into(),
        seed,
        pad: [0; 3],
    };
    maps.describe(&state)?;
    match attach(program.as_raw_fd(), device, mode)? {
        Some(link) => maps.share(device, mode, link).map(Some),
        None => Ok(None),
    }
}

/// Puts the program on the device by a link; `None` if the place was taken meanwhile.
fn attach(program: i32, device: &Device, mode: XdpMode) -> Result<Option<OwnedFd>> {
    let opts = sys::bpf_link_create_opts {
        sz: size_of::<sys::bpf_link_create_opts>() as _,
        flags: match mode {
            XdpMode::Native => sys::XDP_FLAGS_DRV_MODE,
            XdpMode::Generic => sys::XDP_FLAGS_SKB_MODE,
            XdpMode::Offloaded => sys::XDP_FLAGS_HW_MODE,
        },
        ..Default::default()
    };
    // SAFETY: a live program descriptor and a live option struct with its size set.
    let fd = unsafe { sys::bpf_link_create(program, device.ifindex as i32, sys::BPF_XDP, &opts) };
    match fd {
        // SAFETY: just created, owned by nobody else.
        fd if fd >= 0 => Ok(Some(unsafe { OwnedFd::from_raw_fd(fd) })),
        error if error == -libc::EBUSY || error == -libc::EEXIST => Ok(None),
        error => Err(Error::kernel(
            format!("attaching the capture program to {} under {mode} XDP", device.name),
            std::io::Error::from_raw_os_error(-error),
        )),
    }
}

/// The maps by their file descriptors.
struct Maps {
    instance: MapHandle,
    groups: MapHandle,
    tallies: MapHandle,
    rings: MapHandle,
    data: MapHandle,
    bells: MapHandle,
    owners: MapHandle,
}

impl Maps {
    /// Writes the instance's description, before anybody can find it.
    fn describe(&self, state: &Layout) -> Result<()> {
        // SAFETY: plain integers without padding, read as the bytes they are.
        let bytes = unsafe {
            std::slice::from_raw_parts(std::ptr::from_ref(state).cast::<u8>(), size_of::<Layout>())
        };
        self.instance
            .update(&0u32.to_ne_bytes(), bytes, libbpf_rs::MapFlags::ANY)
            .map_err(|e| Error::bpf("describing the instance", e))
    }

    /// Maps the shared parts into this process.
    fn share(self, device: &Device, mode: XdpMode, link: OwnedFd) -> Result<Instance> {
        let share = |map: &MapHandle, len: usize| {
            Mapping::new(map.as_fd(), 0, len, true).map_err(|e| {
                Error::kernel(format!("mapping '{}' of {}", map.name().to_string_lossy(), device.name), e)
            })
        };
        let state = share(&self.instance, size_of::<Layout>())?;
        let number = |offset: usize| {
            // Two 32-bit fields share a word; they are set before the instance can be found.
            let word = state.word(offset & !7).load(Ordering::Relaxed).to_ne_bytes();
            let at = offset & 7;
            u32::from_ne_bytes([word[at], word[at + 1], word[at + 2], word[at + 3]])
        };
        let theirs = number(offset_of!(Layout, version));
        if theirs != INTERFACE_VERSION {
            return Err(Error::OtherVersion { device: device.name.clone(), theirs, ours: INTERFACE_VERSION });
        }
        let lanes = number(offset_of!(Layout, lanes)) as usize;
        let queues = number(offset_of!(Layout, queues)) as usize;
        let per_cpu = number(offset_of!(Layout, per_cpu)) != 0;
        let slots = if per_cpu { lanes * queues } else { queues };
        Ok(Instance {
            ifindex: device.ifindex,
            mode,
            lanes,
            queues,
            per_cpu,
            groups: share(&self.groups, MAX_GROUPS * size_of::<Group>())?,
            tallies: share(&self.tallies, MAX_GROUPS * slots * size_of::<Tally>())?,
            rings: Arc::new(share(&self.rings, MAX_GROUPS * lanes * MAX_WORKERS * size_of::<Ring>())?),
            state,
            data: self.data,
            bells: self.bells,
            owners: self.owners,
            _link: link,
        })
    }
}

/// A seed that a sender cannot guess, so that it cannot aim its flows at one worker.
fn random_seed() -> u32 {
    use std::hash::{BuildHasher as _, Hasher as _};
    // RandomState is seeded by the operating system; hashing nothing yields a value that depends on it alone.
    std::collections::hash_map::RandomState::new().build_hasher().finish() as u32
}
