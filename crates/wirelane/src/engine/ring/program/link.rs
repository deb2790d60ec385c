//! The capture program with more features, or with users' programs: linked, and loaded over the maps of a running
//! instance.

use std::fs::File;
use std::io::Read as _;
use std::mem::offset_of;
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};

use libbpf_rs::libbpf_sys as sys;
use libbpf_rs::{
    AsRawLibbpf as _, Linker, MapCore as _, MapFlags, MapHandle, Object, ObjectBuilder, OpenObject,
};
use wirelane_bpf::filter::MAX_CODES;
use wirelane_bpf::instance::{PROGRAM_XDP_METADATA, features};
use wirelane_bpf::skel::capture_xdp::types::wl_config;
use wirelane_bpf::skel::{
    CAPTURE_SKB_OBJECT, CAPTURE_SKB_SIMPLE_OBJECT, CAPTURE_XDP_OBJECT, CAPTURE_XDP_SIMPLE_OBJECT,
};
use wirelane_filter::instructions::{self, Context};

use super::super::filters::Code;
use super::super::{attach, log, room};
use super::Placed;
use super::object::{Kind, UserProgram, at_place};
use super::state::{State, of_program, take_layout};
use crate::engine::uninterrupted::uninterrupted;
use crate::error::{Error, Result};
use crate::escape::printable;
use wirelane_netdev::Device;

/// The name of the object, from which the kernel names its read-only data.
pub(crate) const OBJECT: &str = "capture_bpf";
pub(crate) const READ_ONLY: &str = ".rodata";
/// Map of the programs for any number of devices.
pub(crate) const SLOT_MAP: &str = "wl_slots";
/// Size of the verifier's log in bytes. A log of our own, as libbpf would have a refused program verified again and
/// again with larger logs, and a program that does not end is verified for seconds. Only the used part takes memory.
const LOG: usize = (16 << 20) - 1;

/// Links one of our objects with these ones. Errors are reported for `new`, which is one of them.
pub(super) fn link(ours: &[u8], others: &[Vec<u8>], new: Option<&UserProgram>) -> Result<Vec<u8>> {
    let failed = |e| Error::kernel("linking the capture program", e);
    // SAFETY: a static string that ends with a zero, and a flag.
    let fd = unsafe { libc::memfd_create(c"wirelane-linked".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(Error::last_os("making a file in memory, to link a program of yours"));
    }
    // SAFETY: just created, owned by nothing else.
    let mut output = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    let linker = Linker::new(format!("/proc/self/fd/{}", output.as_raw_fd()))
        .map_err(|e| Error::bpf("preparing to link a program of yours", e))?;
    let (linked, heard) = log::listening(|| {
        add(&linker, ours)?;
        others.iter().try_for_each(|object| add(&linker, object))?;
        // SAFETY: a live linker.
        said(unsafe { sys::bpf_linker__finalize(linker.as_libbpf_object().as_ptr()) })
    });
    linked.map_err(|e| unlinkable(new, &e, &heard))?;
    let mut object = Vec::new();
    output.read_to_end(&mut object).map_err(failed)?;
    Ok(object)
}

/// Adds an object to the linker. Not by [`Linker::add_buf`], which takes libbpf's negative error numbers for positive
/// ones, and panics where the error is formatted (libbpf-rs 0.27).
fn add(linker: &Linker, object: &[u8]) -> std::io::Result<()> {
    let (start, len) = (object.as_ptr().cast_mut().cast(), object.len() as u64);
    // SAFETY: a live linker and a live buffer of this length, which is only read; libbpf takes a null pointer for no
    // options.
    said(unsafe {
        sys::bpf_linker__add_buf(linker.as_libbpf_object().as_ptr(), start, len, std::ptr::null())
    })
}

/// Converts a result of libbpf: 0, or a negative error number.
fn said(status: i32) -> std::io::Result<()> {
    if status == 0 { Ok(()) } else { Err(std::io::Error::from_raw_os_error(-status)) }
}

/// The error for a refused program of a user, or for the capture program where there is no new one.
fn refusal(new: Option<&UserProgram>, reason: &str) -> Error {
    new.map_or_else(
        || {
            Error::kernel(
                "loading the capture program with more features",
                std::io::Error::other(reason.to_owned()),
            )
        },
        |new| new.refusal(reason),
    )
}

/// The error for a program that libbpf could not link.
pub(super) fn unlinkable(
    new: Option<&UserProgram>,
    error: &dyn std::fmt::Display,
    heard: &[String],
) -> Error {
    let said: Vec<&str> = heard.iter().map(|line| line.trim().trim_start_matches("libbpf: ")).collect();
    let said = said.join("; ");
    refusal(new, &format!("cannot be linked with the capture program ({error}): {}", printable(&said)))
}

/// A loaded capture program.
pub(super) struct Loaded {
    object: Object,
    name: String,
}

impl Loaded {
    /// Calls `then` with the program's descriptor.
    pub(super) fn with<T>(&self, then: impl FnOnce(std::os::fd::BorrowedFd<'_>) -> Result<T>) -> Result<T> {
        let program = self.object.progs().find(|program| program.name() == self.name.as_str());
        let program = program.ok_or_else(|| missing(&self.name))?;
        then(program.as_fd())
    }
}

fn missing(what: &str) -> Error {
    Error::kernel(
        format!("the running capture program has no '{what}'"),
        std::io::Error::from(std::io::ErrorKind::NotFound),
    )
}

/// The maps of a program.
pub(super) fn maps_of(ids: Vec<u32>) -> Result<Vec<MapHandle>> {
    let open =
        |id| MapHandle::from_map_id(id).map_err(|e| Error::bpf("opening the maps of the capture program", e));
    ids.into_iter().map(open).collect()
}

/// The features that the running program (an open descriptor) was loaded with.
pub(super) fn features(running: &OwnedFd) -> Result<u32> {
    let (_, ids) = attach::program_info(running)?;
    features_in(&configuration(&maps_of(ids)?)?)
}

/// The features in a configuration.
fn features_in(config: &[u8]) -> Result<u32> {
    let at = offset_of!(wl_config, features);
    let word = config.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
    word.map(u32::from_ne_bytes).ok_or_else(|| missing(READ_ONLY))
}

/// The object of the capture program for these features, with these programs of users, and these filters as instructions.
/// `new` is the one of the programs that does not run yet.
pub(super) fn object(
    programs: &[Placed],
    codes: &[Code],
    (context, features): (Context, u32),
    new: Option<&UserProgram>,
) -> Result<Vec<u8>> {
    let ours = match (context, features::are_simple(features) && programs.is_empty()) {
        (Context::Xdp, true) => CAPTURE_XDP_SIMPLE_OBJECT,
        (Context::Skb, true) => CAPTURE_SKB_SIMPLE_OBJECT,
        (Context::Xdp, false) => CAPTURE_XDP_OBJECT,
        (Context::Skb, false) => CAPTURE_SKB_OBJECT,
    };
    let mut linked = if programs.is_empty() {
        ours.to_vec()
    } else {
        let placed = programs.iter().map(|one| at_place(one.kind, &one.object, one.place));
        link(ours, &placed.collect::<Vec<_>>(), new)?
    };
    let filters: Vec<_> = codes.iter().map(|(number, steps)| (*number, steps.as_slice())).collect();
    if codes.len() > MAX_CODES || !filters.is_empty() && !instructions::put(&mut linked, &filters, context) {
        return Err(refusal(new, "the filters of its captures are too long to be instructions"));
    }
    Ok(linked)
}

/// Reloads the running capture program (an open descriptor), with these programs of users, these filters as instructions
/// (all that its groups have) and with these features in addition to its own, over the same maps and otherwise with the same
/// configuration. `new` is the one of the programs that does not run yet.
pub(super) fn load(
    device: &Device,
    running: &OwnedFd,
    programs: &[Placed],
    features: u32,
    codes: &[Code],
    new: Option<&UserProgram>,
) -> Result<Loaded> {
    let doing = |what: &str| format!("{what} for {}", device.name);
    let (info, ids) = attach::program_info(running)?;
    let name = attach::name_in(&info);
    let maps = maps_of(ids)?;
    let context = if name.starts_with("wirelane_xdp") { Context::Xdp } else { Context::Skb };
    let mut config = configuration(&maps)?;
    let features = features | features_in(&config)?;
    let linked = object(programs, codes, (context, features), new)?;
    let (open, heard) = log::listening(|| {
        ObjectBuilder::default().name(OBJECT).and_then(|builder| builder.open_memory(&linked))
    });
    let mut open = open.map_err(|e| unlinkable(new, &e, &heard))?;
    let mut shared = Vec::new();
    for mut map in open.maps_mut() {
        let own = map.name().to_string_lossy().into_owned();
        if own.ends_with(READ_ONLY) {
            describe(&mut config, programs, codes)?;
            set(&mut config, offset_of!(wl_config, features), |_| features)?;
            let to = map.initial_value_mut().and_then(|value| value.get_mut(..config.len()));
            to.ok_or_else(|| missing(READ_ONLY))?.copy_from_slice(&config);
        } else if own == SLOT_MAP && !name.ends_with("_n") {
            map.set_autocreate(false).map_err(|e| Error::bpf(doing("leaving out a map"), e))?;
        } else if let Some(state) = fresh(programs, &own) {
            let (_, name) = of_program(&own).unwrap_or_default();
            take_layout(&mut map, name, state).map_err(|e| Error::bpf(doing("describing a map"), e))?;
        } else if own.starts_with("wl_") || of_program(&own).is_some() {
            let theirs = maps.iter().find(|map| map.name() == own.as_str()).ok_or_else(|| missing(&own))?;
            map.reuse_fd(theirs.as_fd()).map_err(|e| Error::bpf(doing("sharing the maps"), e))?;
            if is_shared(&own, true) {
                shared.push(theirs);
            }
        }
    }
    let bound = name == PROGRAM_XDP_METADATA;
    for mut program in open.progs_mut() {
        let wanted = program.name() == name.as_str();
        program.set_autoload(wanted);
        if wanted && bound {
            program.set_ifindex(device.ifindex);
            program.set_flags(sys::BPF_F_XDP_DEV_BOUND_ONLY | sys::BPF_F_XDP_HAS_FRAGS);
        }
    }
    let object = load_object(open, &name).map_err(|(e, said)| {
        refused(new, &said).unwrap_or_else(|| Error::bpf(doing("loading the capture program anew"), e))
    })?;
    let loaded = Loaded { object, name };
    let given = loaded.object.progs().find(|program| program.name() == loaded.name.as_str());
    let given = given.map_or(0, |program| program.insn_cnt());
    loaded.with(|program| {
        if bound {
            let now = attach::instructions(program)?;
            tracing::debug!("{}: {given} instructions given, {now} loaded", device.name);
            if room::may_have_moved(program, given)? {
                return Err(refusal(new, &format!(
                    "this kernel made the capture program longer with it than it had room for ({given} instructions, \
                     {now} now), which is not safe while {} provides VLAN tags and times: a shorter program, or \
                     --hook generic or tc",
                    device.name
                )));
            }
        }
        // Maps that this program does not use are found through it, too.
        for map in shared {
            attach::bind(program, map.as_fd()).map_err(|e| Error::kernel(doing("binding a map"), e))?;
        }
        Ok(())
    })?;
    Ok(loaded)
}

/// Whether a map of the capture program belongs to the instance; `is_many`: of a program for any number of devices.
pub(crate) fn is_shared(name: &str, is_many: bool) -> bool {
    name.starts_with("wl_") && !name.ends_with(READ_ONLY) && (is_many || name != SLOT_MAP)
}

/// The maps of the program that has the map with this name, if the program is new.
fn fresh<'a>(programs: &'a [Placed], name: &str) -> Option<&'a State> {
    let (key, _) = of_program(name)?;
    programs.iter().find(|one| one.kind.key(one.place) == key)?.fresh.as_ref()
}

/// Loads an object with this program.
pub(crate) fn load_plain(open: OpenObject) -> libbpf_rs::Result<Object> {
    uninterrupted(|| open.load())
}

/// The same for an object with programs of users: an error has the verifier's log, for which there is memory of 16 MiB.
pub(crate) fn load_object(
    mut open: OpenObject,
    name: &str,
) -> std::result::Result<Object, (libbpf_rs::Error, String)> {
    let mut verifier = vec![0u8; LOG];
    for program in open.progs_mut().filter(|program| program.name() == name) {
        let to = verifier.as_mut_ptr().cast();
        // SAFETY: a live program that is not loaded yet, and a buffer of this size that outlives its loading.
        let status =
            unsafe { sys::bpf_program__set_log_buf(program.as_libbpf_object().as_ptr(), to, LOG as u64) };
        if status != 0 {
            return Err((libbpf_rs::Error::from_raw_os_error(-status), String::new()));
        }
    }
    uninterrupted(|| open.load()).map_err(|error| {
        let said = verifier.split(|byte| *byte == 0).next().map(String::from_utf8_lossy).unwrap_or_default();
        tracing::debug!("the verifier says: {said}");
        (error, said.into_owned())
    })
}

/// The error for a program that the verifier refuses with this log; `None`: its log says nothing. `new`: see [`load`].
pub(crate) fn refused(new: Option<&UserProgram>, said: &str) -> Option<Error> {
    let verdict = log::verdict(said)?;
    let lines: Vec<String> = verdict.lines().map(|line| format!("  {}", printable(line))).collect();
    Some(refusal(
        new,
        &format!(
            "the kernel's verifier refuses it; the end of its log (all of it with WIRELANE_LOG=debug):\n{}",
            lines.join("\n")
        ),
    ))
}

/// The configuration that the running program was loaded with, at the start of its read-only data.
fn configuration(maps: &[MapHandle]) -> Result<Vec<u8>> {
    let read_only = maps.iter().find(|map| map.name().to_string_lossy().ends_with(READ_ONLY));
    let value = read_only
        .ok_or_else(|| missing(READ_ONLY))?
        .lookup(&0u32.to_ne_bytes(), MapFlags::ANY)
        .map_err(|e| Error::bpf("reading the capture program's configuration", e))?;
    let mut config = value.ok_or_else(|| missing(READ_ONLY))?;
    config.truncate(size_of::<wl_config>());
    Ok(config)
}

/// Writes these programs and filters into a configuration.
pub(super) fn describe(config: &mut [u8], programs: &[Placed], codes: &[Code]) -> Result<()> {
    let is_there = |kind| u32::from(programs.iter().any(|one| one.kind == kind));
    set(config, offset_of!(wl_config, programs), |_| is_there(Kind::Steering))?;
    set(config, offset_of!(wl_config, plugins), |_| is_there(Kind::Plugin))?;
    for at in 0..MAX_CODES {
        let number = codes.get(at).map_or(0, |(number, _)| *number);
        set(config, offset_of!(wl_config, codes) + 4 * at, |_| number)?;
    }
    Ok(())
}

/// Changes a number of a configuration, at this offset.
pub(crate) fn set(config: &mut [u8], at: usize, change: impl FnOnce(u32) -> u32) -> Result<()> {
    let place =
        config.get_mut(at..).and_then(|rest| rest.first_chunk_mut()).ok_or_else(|| missing(READ_ONLY))?;
    *place = change(u32::from_ne_bytes(*place)).to_ne_bytes();
    Ok(())
}
