//! Hooks: where a capture program can hang on a device, what hangs there now, and how ours gets there.
//!
//! Always by a link that is held by file descriptor: it falls off with its last holder, however that ends.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libbpf_rs::libbpf_sys as sys;
use wirelane_datapath::instance::{
    PROGRAM_EGRESS, PROGRAM_INGRESS, PROGRAM_XDP, PROGRAM_XDP_METADATA, PROGRAM_XSK,
};

use crate::device::{Device, XdpMode};
use crate::{Error, Result};

/// A place on a device where packets can be captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hook {
    /// Received packets, by XDP in the driver or in the stack.
    Xdp(XdpMode),
    /// Received packets, by tc: behind XDP, and beside other programs.
    Ingress,
    /// Packets on their way out, by tc.
    Egress,
}

impl std::fmt::Display for Hook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Hook::Xdp(mode) => write!(f, "{mode} XDP"),
            Hook::Ingress => f.write_str("tc ingress"),
            Hook::Egress => f.write_str("tc egress"),
        }
    }
}

/// What hangs on a hook.
pub(crate) enum Found {
    Nothing,
    /// A capture program of ours: its id, and the hook it really is on (the mode of XDP may differ).
    Ours {
        program: u32,
        hook: Hook,
    },
}

/// Asks the kernel what hangs on this hook of the device. An error if something else of which there can be
/// only one does.
pub(crate) fn look(device: &Device, hook: Hook) -> Result<Found> {
    match hook {
        Hook::Xdp(_) => look_xdp(device),
        Hook::Ingress => look_tc(device, hook, sys::BPF_TCX_INGRESS),
        Hook::Egress => look_tc(device, hook, sys::BPF_TCX_EGRESS),
    }
}

fn look_xdp(device: &Device) -> Result<Found> {
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
        return Ok(Found::Nothing);
    };
    match program_name(id)? {
        None => Ok(Found::Nothing), // ended since the query
        Some(program) if program == PROGRAM_XDP || program == PROGRAM_XDP_METADATA => {
            Ok(Found::Ours { program: id, hook: Hook::Xdp(mode) })
        }
        Some(program) if program == PROGRAM_XSK => Err(Error::BadOption {
            option: "-i",
            reason: format!(
                "{} is taken by a capture of Wirelane's engine xsk, which shares with nobody; stop it first",
                device.name
            ),
        }),
        Some(program) => {
            Err(Error::ForeignProgram { device: device.name.clone(), program, id, mode: mode.to_string() })
        }
    }
}

/// tc programs stand in a row; others beside ours are none of our business. The first of ours is the instance.
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
        return Err(Error::Unsupported {
            what: format!("capturing on {} by {hook}", device.name),
            needs: "Linux 6.6 or newer (TCX)".into(),
            instead: "native or generic XDP captures received packets".into(),
        });
    }
    if status < 0 {
        return Err(Error::kernel(
            format!("asking which programs are on {hook} of {}", device.name),
            std::io::Error::from_raw_os_error(-status),
        ));
    }
    // SAFETY: the kernel has set the count, which shares its place with another number.
    let count = unsafe { query.__bindgen_anon_1.count } as usize;
    let ours = if hook == Hook::Egress { PROGRAM_EGRESS } else { PROGRAM_INGRESS };
    for &id in ids.iter().take(count) {
        if program_name(id)?.as_deref() == Some(ours) {
            return Ok(Found::Ours { program: id, hook });
        }
    }
    Ok(Found::Nothing)
}

/// Puts the program on the device by a link; `None` if the place was taken meanwhile.
pub(crate) fn attach(program: BorrowedFd<'_>, device: &Device, hook: Hook) -> Result<Option<OwnedFd>> {
    let (kind, flags) = match hook {
        Hook::Xdp(XdpMode::Native) => (sys::BPF_XDP, sys::XDP_FLAGS_DRV_MODE),
        Hook::Xdp(XdpMode::Generic) => (sys::BPF_XDP, sys::XDP_FLAGS_SKB_MODE),
        Hook::Xdp(XdpMode::Offloaded) => (sys::BPF_XDP, sys::XDP_FLAGS_HW_MODE),
        Hook::Ingress => (sys::BPF_TCX_INGRESS, 0),
        Hook::Egress => (sys::BPF_TCX_EGRESS, 0),
    };
    let opts = sys::bpf_link_create_opts {
        sz: size_of::<sys::bpf_link_create_opts>() as _,
        flags,
        ..Default::default()
    };
    // SAFETY: a live program descriptor and a live option struct with its size set.
    let fd = unsafe { sys::bpf_link_create(program.as_raw_fd(), device.ifindex as i32, kind, &opts) };
    match fd {
        // SAFETY: just created, owned by nobody else.
        fd if fd >= 0 => Ok(Some(unsafe { OwnedFd::from_raw_fd(fd) })),
        error if error == -libc::EBUSY || error == -libc::EEXIST => Ok(None),
        error => Err(Error::kernel(
            format!("attaching the capture program to {} at {hook}", device.name),
            std::io::Error::from_raw_os_error(-error),
        )),
    }
}

/// The link that holds this program on its device; `None` if there is none (any more).
pub(crate) fn link_of(program: u32) -> Result<Option<OwnedFd>> {
    for link in libbpf_rs::query::LinkInfoIter::default() {
        if link.prog_id == program {
            return by_id(link.id, sys::bpf_link_get_fd_by_id, "link");
        }
    }
    Ok(None)
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
pub(crate) fn by_id(id: u32, open: unsafe extern "C" fn(u32) -> i32, what: &str) -> Result<Option<OwnedFd>> {
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

/// The id of a loaded program.
pub(crate) fn program_id(program: BorrowedFd<'_>) -> Result<u32> {
    let fd = program.try_clone_to_owned().map_err(|e| Error::kernel("holding a program", e))?;
    Ok(program_info(&fd)?.0.id)
}
