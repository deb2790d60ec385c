//! Maps that are read by pages, a system call for each.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};

use libbpf_rs::libbpf_sys as sys;
use libbpf_rs::{MapCore as _, MapHandle};

/// Entries that are read at first. A bucket of a hash map is never divided.
const PAGE: usize = 4096;

/// Keys and values of some entries, in one order, and the position of the next page.
pub(super) type Page<K, V> = (Vec<K>, Vec<V>, Option<u32>);

/// Reads some entries of a hash map or an array, from the beginning or from the position at which another page ended. `key` and
/// `value` are those of one entry, with all bytes zero.
///
/// # Errors
/// The error that the kernel returned.
pub(super) fn page<K: Copy, V: Copy>(
    map: &MapHandle,
    from: Option<u32>,
    key: &[K],
    value: &[V],
) -> io::Result<Page<K, V>> {
    assert_eq!(size_of_val(key), map.key_size() as usize);
    assert!(size_of_val(value) >= map.value_size() as usize);
    let all = map.max_entries() as usize;
    let mut most = PAGE.min(all);
    loop {
        let (mut keys, mut values) = (key.repeat(most), value.repeat(most));
        let (mut count, mut begin, mut end) = (most as u32, from.unwrap_or(0), 0u32);
        let first = if from.is_some() { (&raw mut begin).cast() } else { std::ptr::null_mut() };
        // SAFETY: a live descriptor; `begin` and `end` are as long as a position in a hash map and in an array (4 bytes), and
        // the vectors have room for `count` keys and values, of which the caller knows the size with all CPUs.
        let status = unsafe {
            sys::bpf_map_lookup_batch(
                map.as_fd().as_raw_fd(),
                first,
                (&raw mut end).cast(),
                keys.as_mut_ptr().cast(),
                values.as_mut_ptr().cast(),
                &raw mut count,
                std::ptr::null(),
            )
        };
        match -status {
            0 | libc::ENOENT => {
                keys.truncate(count as usize * key.len());
                values.truncate(count as usize * value.len());
                return Ok((keys, values, (status == 0).then_some(end)));
            }
            // A bucket with more entries.
            libc::ENOSPC if most < all => most = all.min(most * 4),
            libc::EINTR => {}
            errno => return Err(io::Error::from_raw_os_error(errno)),
        }
    }
}
