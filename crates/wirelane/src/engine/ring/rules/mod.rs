//! The rules of a group in its instance: two sets with their tables, of which one is in use, the counters of each lane,
//! and the table of exact-match rules (`bpf/instance.h`, `bpf/lib/rules.h`).
//!
//! ```text
//!  mod.rs      the maps: made when the group joins; sets written, switched and waited for; counters read
//!  exact.rs  the table of exact-match rules
//!  named.rs    named sets, which are made when they come: ../map_factory.rs, the task of the broker that makes maps
//!  patterns.rs the automata of patterns, the same way
//! ```
//!
//! A confined process cannot create maps, so they are created in advance, with capacity for later rules. Sets are
//! written and counters are read in memory that is shared with the kernel, without a system call; exact-match rules are
//! added and removed by one system call each.

mod exact;
mod named;
mod patterns;

#[cfg(test)]
mod tests;

use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use libbpf_rs::libbpf_sys as sys;
use libbpf_rs::{MapCore as _, MapFlags, MapHandle, MapType};
use wirelane_bpf::instance::{Group, RULES_OF_PLACES};
use wirelane_bpf::rules::{Class, Counts, ExactKey, ExactValue, FlatSet, MAX_MEMBERS, Node, PER_GROUP, Set};

use self::named::KernelSet;
pub(crate) use self::named::KernelSets;
#[cfg(test)]
pub(crate) use self::named::has;
use self::patterns::KernelSearch;
use super::group::Token;
use super::instance::Instance;
use super::memory::Mapping;
use super::plugins::GroupPlugins;
use crate::active_rules::{InsertOutcome, Page, PendingRuleset, PluginLine, RulesCapacity, Target, add};
use crate::egress_devices::EgressDevice;
use crate::error::{Error, Result};
use wirelane_rules::plugins::Placed;

/// Set number 0, no set: packets are not evaluated.
pub(super) const NO_RULES: u32 = 0;

/// The maps of maps of the groups' rules: for sets two entries per group, for named sets eight for each of these, for
/// the others one.
#[derive(Debug)]
pub(crate) struct RuleMaps {
    /// `struct wl_rule_set`.
    pub(crate) heads: MapHandle,
    /// `struct wl_rule_node`.
    pub(crate) nodes: MapHandle,
    /// `struct wl_rule_class`.
    pub(crate) classes: MapHandle,
    /// `struct wl_rule_counts`, by lane and slot.
    pub(crate) counts: MapHandle,
    /// `struct wl_exact_value`.
    pub(crate) exact_rules: MapHandle,
    /// Named sets, eight for each set: bloom filters, and tables of entries (`struct wl_member`).
    pub(crate) blooms: MapHandle,
    pub(crate) exacts: MapHandle,
    /// The automata of patterns (`struct wl_search_page`, `struct wl_search_outputs`), one entry per set.
    pub(crate) pages: MapHandle,
    pub(crate) outputs: MapHandle,
}

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct GroupRules {
    instance: Arc<Instance>,
    group: usize,
    device: String,
    /// The names of the devices that rules may send packets to.
    egress_devices: Vec<String>,
    plugins: GroupPlugins,
    room: RulesCapacity,
    sets: [SetMemory; PER_GROUP],
    counts: Mapping,
    counts_map: MapHandle,
    exact: MapHandle,
    named: Arc<KernelSets>,
    /// Named sets of both sets, by the tests that use them: they exist as long as they are referenced.
    asked: Mutex<[Vec<Arc<KernelSet>>; PER_GROUP]>,
    /// The automata of both sets, with the same lifetime.
    searched: Mutex<[Option<Arc<KernelSearch>>; PER_GROUP]>,
    /// Number of the set that the next one is written to, from 1; the other one may be in use.
    idle: AtomicU32,
    /// The value of [`Group::rules`] for the set that was written last.
    prepared: AtomicU32,
    /// Whether the last switch has not been waited for.
    unsettled: AtomicBool,
    /// Whether the group belongs to the instance.
    joined: Mutex<bool>,
    /// Keeps the group's slot ours.
    _place: Arc<Token>,
}

/// One set of a group.
#[derive(Debug)]
struct SetMemory {
    head: (MapHandle, Mapping),
    nodes: (MapHandle, Mapping),
    classes: (MapHandle, Mapping),
}

/// Offset of the word of `struct wl_group` with the slot of a steering program in its lower half and the set in the
/// upper.
fn word_of(group: usize) -> usize {
    const { assert!(offset_of!(Group, rules) % 8 == 4, "the set's number is the upper half of its word") };
    group * size_of::<Group>() + offset_of!(Group, rules) - 4
}

/// The key of a set in the maps of sets.
fn key(group: usize, set: u32) -> [u8; 4] {
    ((group * PER_GROUP) as u32 + set - 1).to_ne_bytes()
}

/// A map of `count` elements of type `T` that is shared with the kernel; `count` may differ between groups.
fn shared<T>(name: &str, count: usize, what: &str) -> Result<(MapHandle, Mapping)> {
    let opts = sys::bpf_map_create_opts {
        sz: size_of::<sys::bpf_map_create_opts>() as _,
        map_flags: sys::BPF_F_MMAPABLE | sys::BPF_F_INNER_MAP,
        ..Default::default()
    };
    let bytes = count * size_of::<T>();
    let map = MapHandle::create(MapType::Array, Some(name), 4, size_of::<T>() as u32, count as u32, &opts)
        .map_err(|e| {
            let kib = bytes.div_ceil(1024);
            Error::bpf(
                format!("allocating {kib} KiB for {what} (reduce it with a smaller --rules-capacity)"),
                e,
            )
        })?;
    let mapping =
        Mapping::new(map.as_fd(), 0, bytes, true).map_err(|e| Error::kernel(format!("mapping {what}"), e))?;
    Ok((map, mapping))
}

impl SetMemory {
    fn new(room: &RulesCapacity) -> Result<SetMemory> {
        Ok(SetMemory {
            head: shared::<Set>("wl_rule_head", 1, "a set of rules")?,
            nodes: shared::<Node>("wl_rule_node", room.nodes.max(1), "the nodes of rules' tables")?,
            classes: shared::<Class>("wl_rule_class", room.classes.max(1), "the classes of rules' tables")?,
        })
    }

    /// Writes a set that is not in use.
    fn write(&self, set: &FlatSet) {
        // SAFETY: all three are plain integers without padding, their sizes multiples of 8 (the layout tests of
        // wirelane-bpf check this).
        unsafe {
            self.head.1.write(0, std::slice::from_ref(&*set.set));
            self.nodes.1.write(0, &set.nodes);
            self.classes.1.write(0, &set.classes);
        }
    }
}

impl GroupRules {
    /// Creates the maps of a group that is joining, and puts them into the instance's maps for the lanes.
    ///
    /// # Errors
    /// The error that the kernel returned.
    pub(super) fn new(
        (instance, group): (&Arc<Instance>, usize),
        device: &str,
        (room, named): (RulesCapacity, Arc<KernelSets>),
        egress_devices: &[EgressDevice],
        plugins: GroupPlugins,
        place: Arc<Token>,
    ) -> Result<GroupRules> {
        let slots = instance.lanes * room.slots();
        let (counts_map, counts) = shared::<Counts>("wl_rule_count", slots, "the counters of rules")?;
        Ok(GroupRules {
            instance: Arc::clone(instance),
            group,
            device: device.to_owned(),
            egress_devices: egress_devices.iter().map(|device| device.name.clone()).collect(),
            plugins,
            room,
            sets: [SetMemory::new(&room)?, SetMemory::new(&room)?],
            counts,
            counts_map,
            exact: exact::create(room.exact)?,
            named,
            asked: Mutex::default(),
            searched: Mutex::default(),
            idle: AtomicU32::new(1),
            prepared: AtomicU32::new(1),
            unsettled: AtomicBool::new(false),
            joined: Mutex::new(true),
            _place: place,
        })
    }

    /// All entries of maps of maps that belong to the group: each map of maps, the key, and the map to put there.
    pub(super) fn entries(&self) -> Vec<(&MapHandle, [u8; 4], &MapHandle)> {
        let maps = &self.instance.rules;
        let own = (self.group as u32).to_ne_bytes();
        let mut entries = vec![(&maps.counts, own, &self.counts_map), (&maps.exact_rules, own, &self.exact)];
        for (set, memory) in (1..).zip(&self.sets) {
            let key = key(self.group, set);
            entries.push((&maps.heads, key, &memory.head.0));
            entries.push((&maps.nodes, key, &memory.nodes.0));
            entries.push((&maps.classes, key, &memory.classes.0));
        }
        entries
    }

    /// Puts named sets into the maps for the tests of a set that is not in use, and removes the previous ones.
    fn ask(&self, set: u32, sets: Vec<Arc<KernelSet>>) -> Result<()> {
        let joined = self.joined.lock().unwrap_or_else(PoisonError::into_inner);
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let before = &mut asked[set as usize - 1];
        if *joined {
            let maps = &self.instance.rules;
            let first = (self.group * PER_GROUP + set as usize - 1) * MAX_MEMBERS;
            for test in 0..before.len().max(sets.len()) {
                let key = ((first + test) as u32).to_ne_bytes();
                let (old, new) = (before.get(test), sets.get(test));
                let of = |set: Option<&Arc<KernelSet>>| set.map(Arc::as_ptr);
                if of(old) == of(new) {
                    continue;
                }
                exchange(&maps.blooms, key, old.is_some(), new.map(|set| &set.bloom))?;
                let exact = |set: &Arc<KernelSet>| set.exact.is_some();
                exchange(&maps.exacts, key, old.is_some_and(exact), new.and_then(|set| set.exact.as_ref()))?;
            }
        }
        *before = sets;
        Ok(())
    }

    /// The same for the automata of patterns.
    fn search(&self, set: u32, search: Option<Arc<KernelSearch>>) -> Result<()> {
        let joined = self.joined.lock().unwrap_or_else(PoisonError::into_inner);
        let mut searched = self.searched.lock().unwrap_or_else(PoisonError::into_inner);
        let before = &mut searched[set as usize - 1];
        if *joined && before.as_ref().map(Arc::as_ptr) != search.as_ref().map(Arc::as_ptr) {
            let (maps, key) = (&self.instance.rules, key(self.group, set));
            exchange(&maps.pages, key, before.is_some(), search.as_ref().map(|search| &search.pages))?;
            exchange(&maps.outputs, key, before.is_some(), search.as_ref().map(|search| &search.outputs))?;
        }
        *before = search;
        Ok(())
    }

    /// Marks the group as leaving: later changes have no effect on lanes, and no map is put into the instance any more.
    pub(super) fn leave(&self) {
        *self.joined.lock().unwrap_or_else(PoisonError::into_inner) = false;
    }

    /// Byte offset of the counters of a slot in one lane.
    fn line(&self, lane: usize, slot: usize) -> usize {
        (lane * self.room.slots() + slot) * size_of::<Counts>()
    }
}

impl Target for GroupRules {
    fn device(&self) -> &str {
        &self.device
    }

    fn room(&self) -> RulesCapacity {
        self.room
    }

    fn egress_devices(&self) -> &[String] {
        &self.egress_devices
    }

    fn plugins(&self) -> &[Placed] {
        self.plugins.placed()
    }

    fn plugin_lines(&self) -> Vec<PluginLine> {
        self.plugins.lines(&self.instance, self.group)
    }

    fn prepare(&self, draft: &PendingRuleset) -> Result<()> {
        let set = draft.compile(&self.device, &self.egress_devices, self.plugins.placed(), &self.room)?;
        let asked = draft.named().into_iter().map(|set| self.named.of(set)).collect::<Result<Vec<_>>>()?;
        let search = self.named.search(&set.search)?;
        if self.unsettled.load(Ordering::Relaxed) {
            self.settle()?;
        }
        // Relaxed, here and below: changes are made under the lock of the capture's rules.
        let idle = self.idle.load(Ordering::Relaxed);
        self.ask(idle, asked)?;
        self.search(idle, search)?;
        self.sets[idle as usize - 1].write(&set);
        let of_places = if draft.is_of_places() { RULES_OF_PLACES } else { 0 };
        self.prepared.store(idle | of_places, Ordering::Relaxed);
        Ok(())
    }

    fn switch(&self) {
        let number = self.idle.load(Ordering::Relaxed);
        let word = self.instance.groups.word(word_of(self.group));
        let lower = word.load(Ordering::Relaxed) & u64::from(u32::MAX);
        let prepared = self.prepared.load(Ordering::Relaxed);
        // Release: a lane that reads the number sees the tables, which were written before. The lane goes from the
        // number to the tables by addresses that depend on it, which orders its loads.
        word.store(lower | u64::from(prepared) << 32, Ordering::Release);
        self.idle.store(3 - number, Ordering::Relaxed);
        self.unsettled.store(true, Ordering::Relaxed);
    }

    fn settle(&self) -> Result<()> {
        let joined = self.joined.lock().unwrap_or_else(PoisonError::into_inner);
        if *joined {
            // Putting the same map there again changes nothing, but the kernel waits for all programs that are running
            // now (maybe_wait_bpf_programs() in kernel/bpf/syscall.c).
            let own = (self.group as u32).to_ne_bytes();
            put_in(&self.instance.rules.counts, own, &self.counts_map)?;
        }
        drop(joined);
        self.unsettled.store(false, Ordering::Relaxed);
        // The named sets and automata of the previous set take memory until they are removed.
        let idle = self.idle.load(Ordering::Relaxed);
        self.ask(idle, Vec::new())?;
        self.search(idle, None)
    }

    fn counts(&self, slot: usize) -> Counts {
        let mut sum = Counts::default();
        for lane in 0..self.instance.lanes {
            let start = self.line(lane, slot);
            // Relaxed: the numbers are independent while packets flow, and final once no lane writes any more.
            let read = |offset| self.counts.word(start + offset).load(Ordering::Relaxed);
            add(
                &mut sum,
                &Counts {
                    packets: read(offset_of!(Counts, packets)),
                    bytes: read(offset_of!(Counts, bytes)),
                    first_ns: read(offset_of!(Counts, first_ns)),
                    last_ns: read(offset_of!(Counts, last_ns)),
                    inserted: read(offset_of!(Counts, inserted)),
                    refused: read(offset_of!(Counts, refused)),
                    ..Counts::default()
                },
            );
        }
        sum
    }

    fn clear(&self, slot: usize) {
        for lane in 0..self.instance.lanes {
            self.counts.clear(self.line(lane, slot), size_of::<Counts>());
        }
    }

    fn put(&self, key: &ExactKey, rule: &ExactValue) -> Result<InsertOutcome> {
        exact::put(&self.exact, key, rule)
    }

    fn take(&self, key: &ExactKey) -> Result<Option<ExactValue>> {
        exact::take(&self.exact, key)
    }

    fn get(&self, key: &ExactKey) -> Result<Option<ExactValue>> {
        exact::get(&self.exact, key)
    }

    fn page(&self, from: Option<u32>) -> Result<Page> {
        exact::page(&self.exact, from)
    }

    fn now_ns(&self) -> u64 {
        crate::clock::monotonic_ns()
    }
}

/// Puts a map into a map of maps, replacing an existing entry, or removes the entry.
fn exchange(maps: &MapHandle, key: [u8; 4], there: bool, map: Option<&OwnedFd>) -> Result<()> {
    match map {
        Some(map) => put_in(maps, key, map),
        None if there => match maps.delete(&key) {
            Err(e) if e.kind() != libbpf_rs::ErrorKind::NotFound => {
                Err(Error::bpf("taking a named set or patterns from the capture program", e))
            }
            _ => Ok(()),
        },
        None => Ok(()),
    }
}

/// Puts a map into a map of maps. The kernel waits for running programs.
pub(super) fn put_in(maps: &MapHandle, key: [u8; 4], map: &impl AsFd) -> Result<()> {
    maps.update(&key, &map.as_fd().as_raw_fd().to_ne_bytes(), MapFlags::ANY)
        .map_err(|e| Error::bpf("handing tables of rules to the capture program", e))
}

/// The entries of the maps of maps that a dead owner of the slot may have left.
pub(super) fn places(instance: &Instance, group: usize) -> Vec<(&MapHandle, usize)> {
    let maps = &instance.rules;
    let sets = [&maps.heads, &maps.nodes, &maps.classes, &maps.pages, &maps.outputs];
    let of_sets = (0..PER_GROUP).flat_map(|set| sets.map(|map| (map, group * PER_GROUP + set)));
    let tests = group * PER_GROUP * MAX_MEMBERS..(group + 1) * PER_GROUP * MAX_MEMBERS;
    let of_tests = tests.flat_map(|test| [(&maps.blooms, test), (&maps.exacts, test)]);
    of_sets.chain(of_tests).chain([(&maps.counts, group), (&maps.exact_rules, group)]).collect()
}
