//! The kernel's list of our BPF objects, to show that nothing is left behind.
//!
//! Looking must not leave anything behind either. A process that opens a map by its id is a user of it for that moment,
//! and when the last user goes, an array of programs is emptied by deferred work that holds the map. If that work is
//! already queued, the kernel takes another reference to the map and does not drop it (`prog_array_map_clear()` in
//! kernel/bpf/arraymap.c): a map without users that is opened and closed twice in a row can stay for ever. So a look
//! goes by ids, takes the maps of a program from the program, and opens each other map once in this process's life.

use std::collections::BTreeSet;
use std::collections::btree_map::{BTreeMap, Entry};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use libbpf_rs::query::{LinkInfoIter, ProgInfoIter};
use libbpf_rs::{MapCore as _, MapHandle};

use crate::sys;

/// The names of maps that have been opened, by id; the kernel does not reuse an id.
static NAMES: Mutex<BTreeMap<u32, String>> = Mutex::new(BTreeMap::new());

/// Ids of existing maps whose name is `wanted`; maps in `known` are not looked at.
fn maps_where(known: &BTreeSet<u32>, wanted: impl Fn(&str) -> bool) -> BTreeSet<u32> {
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    let mut found = BTreeSet::new();
    let mut last = 0;
    while let Some(id) = sys::next_map(last) {
        last = id;
        if known.contains(&id) {
            continue;
        }
        let name = match names.entry(id) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                // A map that cannot be opened no longer exists.
                let Ok(map) = MapHandle::from_map_id(id) else { continue };
                new.insert(map.name().to_string_lossy().into_owned())
            }
        };
        if wanted(name) {
            found.insert(id);
        }
    }
    found
}

/// Ids of the maps of this name, on the whole machine.
pub fn maps_named(name: &str) -> BTreeSet<u32> {
    maps_where(&BTreeSet::new(), |one| one == name)
}

/// Ids of BPF objects that are Wirelane's, on the whole machine: BPF knows no namespaces. Tests that compare
/// two of these ask for [`crate::LabOptions::alone`], so that no other test adds to them meanwhile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BpfObjects {
    /// Programs whose name starts with `wl_` or `wirelane`.
    pub programs: BTreeSet<u32>,
    /// Maps whose name starts so, and those that these programs use (read-only data has names of its own).
    pub maps: BTreeSet<u32>,
    /// Links of these programs.
    pub links: BTreeSet<u32>,
}

impl BpfObjects {
    /// True if there are no programs, maps and links.
    pub fn is_empty(&self) -> bool {
        self.programs.is_empty() && self.maps.is_empty() && self.links.is_empty()
    }
}

/// All of Wirelane's BPF objects now. Needs CAP_SYS_ADMIN; without it the lists are empty.
pub fn bpf_objects() -> BpfObjects {
    let ours = |name: &str| name.starts_with("wl_") || name.starts_with("wirelane");
    let mut objects = BpfObjects::default();
    let options = libbpf_rs::query::ProgInfoQueryOptions::default().include_map_ids(true);
    for program in ProgInfoIter::with_query_opts(options) {
        if ours(&program.name.to_string_lossy()) {
            objects.programs.insert(program.id);
            objects.maps.extend(program.map_ids);
        }
    }
    let others = maps_where(&objects.maps, ours);
    objects.maps.extend(others);
    objects.links.extend(
        LinkInfoIter::default().filter(|link| objects.programs.contains(&link.prog_id)).map(|link| link.id),
    );
    objects
}

/// Wirelane's BPF objects once the kernel has freed what earlier tests and the loading of a program left: the first
/// look that is the same for half a second.
pub fn settled_bpf_objects() -> BpfObjects {
    let mut last = bpf_objects();
    let mut since = Instant::now();
    let start = since;
    while since.elapsed() < Duration::from_millis(500) && start.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(20));
        let now = bpf_objects();
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
    last
}

/// Waits until Wirelane's BPF objects are `expected` (the kernel frees them a little after the last
/// reference goes), and returns the last look either way.
pub fn wait_for_bpf_objects(expected: &BpfObjects, timeout: Duration) -> BpfObjects {
    let start = Instant::now();
    loop {
        let now = bpf_objects();
        if now == *expected || start.elapsed() >= timeout {
            return now;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
