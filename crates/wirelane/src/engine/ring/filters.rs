//! The filters of a group in its instance: two, of which one is in use (`bpf/instance.h`).

use std::mem::offset_of;
use std::sync::atomic::Ordering;

use libbpf_rs::{MapCore as _, MapFlags};
use wirelane_bpf::filter::{Filter as Layout, MAX_TEXT, PER_GROUP};
use wirelane_bpf::instance::Group;

use super::instance::Instance;
use crate::error::{Error, Result};
use wirelane_filter::Filter;

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

/// The number of the filter that a group uses.
pub(super) fn in_use(instance: &Instance, group: usize) -> u32 {
    // Relaxed: the owner is the only writer, and is the caller, or the caller only displays the number.
    (instance.groups.word(word_of(group)).load(Ordering::Relaxed) >> 32) as u32
}

/// Makes the group use this filter from the next packet on.
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
