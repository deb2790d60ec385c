//! Hooks: where a capture program can be attached to a device, what is attached there now, and attaching ours.
//!
//! Attachment is by a link that a file descriptor holds: the program is detached with its last holder, however that
//! ends. Only tc before Linux 6.6 has no links: see `clsact/`.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libbpf_rs::libbpf_sys as sys;
use wirelane_bpf::instance::{
    PROGRAM_EGRESS, PROGRAM_INGRESS, PROGRAM_XDP, PROGRAM_XDP_METADATA, PROGRAM_XSK,
};

use crate::error::{Error, Result};
use crate::hook::Hook;
use crate::kernel::generic_xdp_hides_headers;
use wirelane_bpf::layout::LinkType;
use wirelane_netdev::{Device, XdpMode};

/// Programs attached to a hook.
pub(crate) enum Found {
    Nothing,
    /// Nothing, as this kernel has no tc links.
    NoLinks,
    /// A capture program of ours: its id, and the hook that it is really on (the mode of XDP may differ).
    Ours {
        program: u32,
        hook: Hook,
    },
}

/// Queries the kernel for the program on this hook of the device. An error if a foreign program occupies a hook that
/// takes only one.
pub(crate) fn look(device: &Device, hook: Hook) -> Result<Found> {
    match hook {
        Hook::Xdp(_) => look_xdp(device),
        Hook::Ingress => look_tc(device, hook, sys::BPF_TCX_INGRESS),
        Hook::Egress => look_tc(device, hook, sys::BPF_TCX_EGRESS),
    }
}

fn look_xdp(device: &Device) -> Result<Found> {
    match xdp_program(device)? {
        None => Ok(Found::Nothing),
        Some((id, program, mode)) if is_capture(&program) => {
            Ok(Found::Ours { program: id, hook: Hook::Xdp(mode) })
        }
        Some((_, program, _)) if program == PROGRAM_XSK => Err(Error::BadOption {
            option: "-i",
            reason: format!(
                "{} is taken by a capture of Wirelane's engine xsk, which needs the device for itself; stop it first",
                device.name
            ),
        }),
        Some((id, program, mode)) => {
            Err(Error::ForeignProgram { device: device.name.clone(), program, id, mode: mode.to_string() })
        }
    }
}

fn is_capture(program: &str) -> bool {
    program == PROGRAM_XDP || program == PROGRAM_XDP_METADATA
}

/// The XDP program on a device: its id, name and mode.
fn xdp_program(device: &Device) -> Result<Option<(u32, String, XdpMode)>> {
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
        return Ok(None);
    };
    // A program without a name has ended since the query.
    Ok(program_name(id)?.map(|name| (id, name, mode)))
}

/// Refuses to capture by tc behind our own generic XDP program, and the other way round, where this kernel strips the
/// Ethernet header before tc then: recordings would be silently wrong. Whether a foreign program has that effect is
/// unknown: this gives a warning.
pub(crate) fn refuse_headerless(device: &Device, hook: Hook) -> Result<()> {
    if !generic_xdp_hides_headers() || device.link_type != LinkType::Ethernet {
        return Ok(());
    }
    let refused = |by: &str, running: &str, join: &str| {
        Err(Error::Unsupported {
            what: format!("capturing on {} by {by} while it is captured by {running}", device.name),
            needs: "another kernel: since Linux 6.9 tc gets packets without their Ethernet header there"
                .into(),
            instead: format!("--hook {join} joins the capture that is running"),
        })
    };
    match hook {
        Hook::Ingress => match xdp_program(device)? {
            Some((_, program, XdpMode::Generic)) if is_capture(&program) => {
                refused("tc", "generic XDP", "generic")
            }
            Some((id, program, XdpMode::Generic)) => {
                tracing::warn!(
                    "the XDP program '{program}' (id {id}) runs on {} in generic mode: {HEADERLESS}",
                    device.name
                );
                Ok(())
            }
            _ => Ok(()),
        },
        Hook::Xdp(XdpMode::Generic) => match look(device, Hook::Ingress)? {
            Found::Ours { .. } => refused("generic XDP", "tc", "tc"),
            _ => Ok(()),
        },
        _ => Ok(()),
    }
}

/// Warning about the effect of a generic XDP program on a capture by tc.
pub(crate) const HEADERLESS: &str = "if it takes packets in several buffers (SEC(\"xdp.frags\")), this kernel hands \
     them on to tc without their Ethernet header, and what is captured is not whole";

/// tc programs form a list; foreign ones beside ours do not matter. Each of ours is inserted at the front, so the last
/// of ours was there first: it is the instance.
fn look_tc(device: &Device, hook: Hook, kind: sys::bpf_attach_type) -> Result<Found> {
    let mut ids = [0u32; 64];
    let mut query = sys::bpf_prog_query_opts {
        sz: size_of::<sys::bpf_prog_query_opts>() as _,
        prog_ids: ids.as_mut_ptr(),
        ..Default::default()
    };
    query.__bindgen_anon_1.count = ids.len() as u32;
    // SAFETY: a live option struct with its size set, pointing to an array of as many ids as it says.
    let status = unsafe { sys::bpf_prog_query_opts(device.ifindex as i32, kind, &mut query) };
    if status == -libc::EINVAL {
        return Ok(Found::NoLinks);
    }
    if status < 0 {
        return Err(Error::kernel(
            format!("asking which programs are on {hook} of {}", device.name),
            std::io::Error::from_raw_os_error(-status),
        ));
    }
    // SAFETY: the kernel has set the count, which shares a union with another number.
    let count = unsafe { query.__bindgen_anon_1.count } as usize;
    let ours = if hook == Hook::Egress { PROGRAM_EGRESS } else { PROGRAM_INGRESS };
    for &id in ids.iter().take(count).rev() {
        if program_name(id)?.as_deref() == Some(ours) {
            return Ok(Found::Ours { program: id, hook });
        }
    }
    Ok(Found::Nothing)
}

/// Attaches the program to a device by a link.
///
/// # Errors
/// The error that the kernel returned.
pub(super) fn create_link(program: BorrowedFd<'_>, ifindex: u32, hook: Hook) -> std::io::Result<OwnedFd> {
    let (kind, flags) = match hook {
        Hook::Xdp(XdpMode::Native) => (sys::BPF_XDP, sys::XDP_FLAGS_DRV_MODE),
        Hook::Xdp(XdpMode::Generic) => (sys::BPF_XDP, sys::XDP_FLAGS_SKB_MODE),
        Hook::Xdp(XdpMode::Offloaded) => (sys::BPF_XDP, sys::XDP_FLAGS_HW_MODE),
        // Before all others: a program that lets a packet pass ends the list.
        Hook::Ingress => (sys::BPF_TCX_INGRESS, sys::BPF_F_BEFORE),
        Hook::Egress => (sys::BPF_TCX_EGRESS, sys::BPF_F_BEFORE),
    };
    let opts = sys::bpf_link_create_opts {
        sz: size_of::<sys::bpf_link_create_opts>() as _,
        flags,
        ..Default::default()
    };
    // SAFETY: a live program descriptor and a live option struct with its size set.
    match unsafe { sys::bpf_link_create(program.as_raw_fd(), ifindex as i32, kind, &opts) } {
        // SAFETY: just created, owned by nothing else.
        fd if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        error => Err(std::io::Error::from_raw_os_error(-error)),
    }
}

/// Attaches the program to the device by a link; `None` if another program was attached meanwhile.
pub(crate) fn attach(program: BorrowedFd<'_>, device: &Device, hook: Hook) -> Result<Option<OwnedFd>> {
    let source = match create_link(program, device.ifindex, hook) {
        Ok(link) => return Ok(Some(link)),
        Err(source) => source,
    };
    match source.raw_os_error().unwrap_or(0) {
        libc::EBUSY | libc::EEXIST => Ok(None),
        error @ (libc::EOPNOTSUPP | libc::EINVAL) if hook == Hook::Xdp(XdpMode::Native) => {
            Err(Error::Unsupported {
                what: format!("native XDP on {}", device.name),
                needs: if error == libc::EOPNOTSUPP {
                    format!("a driver and settings that have it ({} does not)", driver(device))
                } else {
                    format!(
                        "settings that its driver ({}) can have it with: a smaller MTU than {} as a rule, for some \
                         no LRO or hardware GRO",
                        driver(device),
                        device.mtu
                    )
                },
                instead: "--hook generic and --hook tc work with every driver".into(),
            })
        }
        _ => {
            Err(Error::kernel(format!("attaching the capture program to {} at {hook}", device.name), source))
        }
    }
}

/// The name of a device's driver, for messages.
pub(super) fn driver(device: &Device) -> &str {
    device.driver.as_deref().unwrap_or("unknown")
}

/// The link that attaches this program to its device; `None` if it has no link (any more).
pub(crate) fn link_of(program: u32) -> Result<Option<OwnedFd>> {
    for link in libbpf_rs::query::LinkInfoIter::default() {
        if link.prog_id == program {
            return by_id(link.id, sys::bpf_link_get_fd_by_id, "link");
        }
    }
    Ok(None)
}

/// The kernel's description of a link.
fn link_info(link: &OwnedFd) -> Result<sys::bpf_link_info> {
    let mut info = sys::bpf_link_info::default();
    let mut len = size_of::<sys::bpf_link_info>() as u32;
    // SAFETY: `info` is live and of the size stated; the counts of the arrays that it might point to are zero.
    let status = unsafe { sys::bpf_link_get_info_by_fd(link.as_raw_fd(), &mut info, &mut len) };
    if status < 0 {
        return Err(Error::kernel(
            "asking where the capture program is",
            std::io::Error::from_raw_os_error(-status),
        ));
    }
    Ok(info)
}

/// The id of the program of a link.
pub(super) fn program_of(link: &OwnedFd) -> Result<u32> {
    Ok(link_info(link)?.prog_id)
}

/// Replaces the program of a link, if it still is `old`. Every packet is seen by exactly one of the two.
pub(super) fn replace(link: &OwnedFd, old: &OwnedFd, new: BorrowedFd<'_>, device: &Device) -> Result<()> {
    let opts = sys::bpf_link_update_opts {
        sz: size_of::<sys::bpf_link_update_opts>() as _,
        flags: sys::BPF_F_REPLACE,
        old_prog_fd: old.as_raw_fd() as u32,
        ..Default::default()
    };
    // SAFETY: live descriptors of a link and a program, and a live option struct with its size set.
    match unsafe { sys::bpf_link_update(link.as_raw_fd(), new.as_raw_fd(), &opts) } {
        0 => Ok(()),
        error => Err(Error::kernel(
            format!("replacing the capture program on {}", device.name),
            std::io::Error::from_raw_os_error(-error),
        )),
    }
}

/// Binds a map to a program that does not use it.
pub(super) fn bind(program: BorrowedFd<'_>, map: BorrowedFd<'_>) -> std::io::Result<()> {
    // SAFETY: two live descriptors, no options.
    match unsafe { sys::bpf_prog_bind_map(program.as_raw_fd(), map.as_raw_fd(), std::ptr::null()) } {
        0 => Ok(()),
        error => Err(std::io::Error::from_raw_os_error(-error)),
    }
}

/// The device of a link, by its index in whichever network namespace it is in now; 0: no device, because it has been
/// deleted, or the link was detached.
pub(crate) fn device_of(link: &OwnedFd) -> Result<u32> {
    let info = link_info(link)?;
    // SAFETY: XDP and TCX links, the only ones that we make, both begin with the device's index, and all bytes of
    // the union are initialised.
    Ok(unsafe { info.__bindgen_anon_1.xdp.ifindex })
}

/// The name of a program, `None` if the program has ended.
pub(super) fn program_name(id: u32) -> Result<Option<String>> {
    let Some(fd) = by_id(id, sys::bpf_prog_get_fd_by_id, "program")? else {
        return Ok(None);
    };
    Ok(Some(name_in(&program_info(&fd)?.0)))
}

/// The name in a program's description.
pub(super) fn name_in(info: &sys::bpf_prog_info) -> String {
    // SAFETY: the kernel ends the name with a zero within the array (BPF_OBJ_NAME_LEN).
    let name = unsafe { CStr::from_ptr(info.name.as_ptr()) };
    name.to_string_lossy().into_owned()
}

/// Opens a BPF object by id, `None` if it has ended.
pub(crate) fn by_id(id: u32, open: unsafe extern "C" fn(u32) -> i32, what: &str) -> Result<Option<OwnedFd>> {
    // SAFETY: takes an id, returns a descriptor that is ours, or a negative error.
    match unsafe { open(id) } {
        // SAFETY: just opened, owned by nothing else.
        fd if fd >= 0 => Ok(Some(unsafe { OwnedFd::from_raw_fd(fd) })),
        error if error == -libc::ENOENT => Ok(None),
        error => Err(Error::kernel(
            format!("opening BPF {what} {id} of a running Wirelane"),
            std::io::Error::from_raw_os_error(-error),
        )),
    }
}

/// A program's description and the ids of its maps.
pub(crate) fn program_info(fd: &OwnedFd) -> Result<(sys::bpf_prog_info, Vec<u32>)> {
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

/// Number of instructions of a loaded program, as the kernel has rewritten it, including its functions.
pub(super) fn instructions(program: BorrowedFd<'_>) -> Result<usize> {
    let program = program.try_clone_to_owned().map_err(|e| Error::kernel("holding a program", e))?;
    Ok(program_info(&program)?.0.xlated_prog_len as usize / 8)
}

/// The id of a loaded program.
pub(crate) fn program_id(program: BorrowedFd<'_>) -> Result<u32> {
    let fd = program.try_clone_to_owned().map_err(|e| Error::kernel("holding a program", e))?;
    Ok(program_info(&fd)?.0.id)
}
