//! Layouts that the ring protocol relies on.

use std::mem::offset_of;

use wirelane_bpf::instance::{Balance, EgressDevices, Group, Instance, Mark, Reader, Ring, Tally};
use wirelane_bpf::rules;

/// Memory that lanes and workers write must not share a cache line: neither two rings nor the two sides of one.
#[test]
fn writers_have_cache_lines_of_their_own() {
    const LINE: usize = 64;
    for size in [
        size_of::<Ring>(),
        size_of::<Reader>(),
        size_of::<Tally>(),
        size_of::<Instance>(),
        size_of::<Mark>(),
        size_of::<Balance>(),
        size_of::<EgressDevices>(),
        size_of::<rules::Counts>(),
    ] {
        assert_eq!(size % LINE, 0);
    }
    assert_eq!(offset_of!(Ring, public_head) % LINE, 0, "written rarely, read at every turn");
    assert_eq!(offset_of!(Reader, wake_at) % LINE, 0);
    assert_eq!(offset_of!(Ring, shed) % LINE, 0, "the lane's own, away from what the worker reads");
    // write_group() copies it word by word.
    assert_eq!(size_of::<Group>() % 8, 0);
}

/// The kernel keeps 15 bytes of a map's name (BPF_OBJ_NAME_LEN), and processes find shared maps by their names.
#[test]
fn names_of_shared_maps_are_whole_in_the_kernel() {
    let text = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/bpf/maps.h"));
    let names: Vec<&str> =
        text.lines().filter_map(|line| line.strip_prefix("} ")?.strip_suffix(" SEC(\".maps\");")).collect();
    assert!(names.len() > 15, "{names:?}");
    assert!(names.iter().all(|name| name.len() <= 15), "{names:?}");
}
