//! The filters of a group in its instance: two, of which one is in use (`bpf/instance.h`).

use std::mem::offset_of;
use std::sync::atomic::Ordering;

use libbpf_rs::{MapCore as _, MapFlags};
use wirelane_bpf::filter::{ENTRY, Filter as Layout, MAX_STEPS, MAX_TEXT, NUMBER, PER_GROUP, Step};
use wirelane_bpf::instance::{Group, features};

use super::instance::Instance;
use super::program::{self, Needs};
use crate::error::{Error, Result};
use wirelane_filter::Filter;
use wirelane_netdev::Device;

/// Filter number 0, no filter: all packets are accepted.
pub(super) const NO_FILTER: u32 = 0;
/// The number of the first of the two filters.
pub(super) const FIRST_FILTER: u32 = 1;

/// Offset of the word of `struct wl_group` with the owner's process in its lower half and the filter's number in the
/// upper.
fn word_of(group: usize) -> usize {
    const { assert!(offset_of!(Group, filter) % 8 == 4, "the filter's number is the upper half of its word") };
    group * size_of::<Group>() + offset_of!(Group, filter) - 4
}

/// The filter that a group uses, as the value of its description: an entry and a number.
fn value(instance: &Instance, group: usize) -> u32 {
    // Relaxed: the owner is the only writer, and is the caller, or the caller only displays the filter, or holds the
    // lock under which numbers are assigned.
    (instance.groups.word(word_of(group)).load(Ordering::Relaxed) >> 32) as u32
}

/// The entry of the filter that a group uses.
pub(super) fn in_use(instance: &Instance, group: usize) -> u32 {
    value(instance, group) & ENTRY
}

/// Whether a group has a filter.
pub(super) fn has_one(instance: &Instance, group: usize) -> bool {
    in_use(instance, group) != NO_FILTER
}

/// The value for a filter in this entry, with this number among the instructions of the program; 0: interpreted.
pub(super) fn with_code(entry: u32, number: u32) -> u32 {
    entry | number << NUMBER
}

/// Makes the group use this filter ([`with_code`]) from the next packet on.
pub(super) fn switch(instance: &Instance, group: usize, number: u32) {
    let word = instance.groups.word(word_of(group));
    let owner = word.load(Ordering::Relaxed) & u64::from(u32::MAX);
    // Release: a lane that reads the number sees the steps, which were written before. The lane goes from the number to
    // the steps by an address that depends on it, which orders its loads.
    word.store(owner | u64::from(number) << 32, Ordering::Release);
}

fn key(group: usize, number: u32) -> [u8; 4] {
    ((group * PER_GROUP) as u32 + number - FIRST_FILTER).to_ne_bytes()
}

/// Evaluates by this filter from the next packet on; `None` accepts everything. `interprets`: the program is known to have
/// the interpreter. `wait` waits for the runs of all programs. Returns whether the program has the interpreter.
///
/// # Errors
/// [`Error::Unsupported`] where the program has no interpreter, and cannot be replaced.
pub(super) fn change(
    instance: &Instance,
    device: &Device,
    group: usize,
    filter: Option<&Filter>,
    interprets: bool,
    wait: &dyn Fn() -> Result<()>,
) -> Result<bool> {
    let Some(filter) = filter else {
        switch(instance, group, NO_FILTER);
        return Ok(interprets);
    };
    // The entry that is not in use; runs that evaluated by it have ended.
    let entry = if in_use(instance, group) == FIRST_FILTER { 2 } else { 1 };
    write(instance, group, entry, filter)?;
    // Without the rights to load programs, asking for one may end a confined process.
    if interprets && !may_load() {
        switch(instance, group, with_code(entry, 0));
        return Ok(true);
    }
    let features = if interprets { features::FILTERS } else { 0 };
    let needs = Needs { features, filter: Some(filter.clone()), ..Needs::default() };
    match program::install(instance, device, Some(group), &needs) {
        // The lock of the program is held until the group names its filter.
        Ok(installed) => {
            // A run of the former program does not know the number.
            wait()?;
            switch(instance, group, with_code(entry, installed.filter));
            Ok(interprets || installed.interprets)
        }
        Err(error) if interprets => {
            tracing::debug!("{}: the filter is interpreted: {error}", device.name);
            switch(instance, group, with_code(entry, 0));
            Ok(true)
        }
        Err(error) => Err(unsupported(device, &error)),
    }
}

/// Whether this thread may load programs and find the running one. A process in the sandbox is ended for asking.
fn may_load() -> bool {
    !wirelane_privsep::sandbox::is_applied()
        && caps::has_cap(None, caps::CapSet::Effective, caps::Capability::CAP_SYS_ADMIN).unwrap_or(false)
}

/// The error for a filter of a running capture, where `error` prevents changing its program.
fn unsupported(device: &Device, error: &Error) -> Error {
    Error::Unsupported {
        what: format!("another filter of the capture on {} ({error})", device.name),
        needs: "the rights to load programs (CAP_BPF, CAP_NET_ADMIN) in the network namespace of the device"
            .into(),
        instead: "Builder::filter_later".into(),
    }
}

/// Writes the filter with this number, which must not be in use.
pub(super) fn write(instance: &Instance, group: usize, number: u32, filter: &Filter) -> Result<()> {
    instance
        .filters
        .update(&key(group, number), &filter.encode(), MapFlags::ANY)
        .map_err(|e| Error::bpf("handing a filter to the capture program", e))
}

/// The filter expression of a group, for display; `None`: it accepts all packets.
///
/// # Errors
/// [`Error::Bpf`].
pub(crate) fn expression(instance: &Instance, group: usize) -> Result<Option<String>> {
    let number = in_use(instance, group);
    if !(FIRST_FILTER..FIRST_FILTER + PER_GROUP as u32).contains(&number) {
        return Ok(None);
    }
    let found = instance
        .filters
        .lookup(&key(group, number), MapFlags::ANY)
        .map_err(|e| Error::bpf("reading a group's filter", e))?;
    let bytes = found.unwrap_or_default();
    let length = bytes
        .get(offset_of!(Layout, text_length)..)
        .and_then(|rest| rest.first_chunk())
        .map_or(0, |bytes| u32::from_ne_bytes(*bytes)) as usize;
    let text = bytes.get(offset_of!(Layout, text)..).unwrap_or_default();
    let shown = String::from_utf8_lossy(&text[..text.len().min(length.min(MAX_TEXT))]).into_owned();
    Ok(Some(if length > MAX_TEXT { shown + "..." } else { shown }))
}

/// A filter that the program has as instructions: its number and its steps.
pub(super) type Code = (u32, Vec<Step>);

/// The filters that the program has as instructions for this group; the caller holds the lock of the instance's programs.
pub(super) fn code(instance: &Instance, group: usize) -> Result<Option<Code>> {
    let value = value(instance, group);
    let (entry, number) = (value & ENTRY, value >> NUMBER);
    if number == 0 || !(FIRST_FILTER..FIRST_FILTER + PER_GROUP as u32).contains(&entry) {
        return Ok(None);
    }
    let found = instance
        .filters
        .lookup(&key(group, entry), MapFlags::ANY)
        .map_err(|e| Error::bpf("reading a group's filter", e))?;
    Ok(Some((number, steps(&found.unwrap_or_default()))))
}

/// The steps of a `struct wl_filter`. Another process has written it: steps may be invalid.
fn steps(bytes: &[u8]) -> Vec<Step> {
    let count = bytes.first_chunk().map_or(0, |count| u32::from_ne_bytes(*count)) as usize;
    let steps = bytes.get(offset_of!(Layout, steps)..).unwrap_or_default();
    let (steps, _) = steps.as_chunks::<{ size_of::<Step>() }>();
    let step = |[op, with_x, size, _, y0, y1, n0, n1, v0, v1, v2, v3, ..]: &[u8; size_of::<Step>()]| Step {
        op: *op,
        with_x: *with_x,
        size: *size,
        yes: u16::from_ne_bytes([*y0, *y1]),
        no: u16::from_ne_bytes([*n0, *n1]),
        value: u32::from_ne_bytes([*v0, *v1, *v2, *v3]),
        ..Step::default()
    };
    steps.iter().take(count.min(MAX_STEPS)).map(step).collect()
}

/// A number that none of these filters has.
pub(super) fn unused_number(codes: &[Code]) -> u32 {
    loop {
        let number = crate::engine::seed::random_number() >> NUMBER;
        if number != 0 && codes.iter().all(|(other, _)| *other != number) {
            return number;
        }
    }
}
