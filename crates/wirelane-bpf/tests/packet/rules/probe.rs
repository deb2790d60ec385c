//! `bpf/rules_probe.bpf.c`, loaded: the kernel's compilation of the evaluator, run by BPF_PROG_TEST_RUN.

use std::mem::{MaybeUninit, offset_of};
use std::{ptr, slice};

use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use libbpf_rs::{MapCore, MapFlags, OpenObject, ProgramInput};
use wirelane_bpf::layout::{LinkType, Parsed};
use wirelane_bpf::members::Member;
use wirelane_bpf::rules::{
    Counts, DIMS_USED, Evaluated, ExactKey, ExactValue, Facts, FlatSet, MAX_HITS, MAX_RULES,
};
use wirelane_bpf::search;
use wirelane_bpf::skel::rules_probe::{RulesProbeSkel, RulesProbeSkelBuilder};

/// `struct probe_lane`, with `struct wl_rule_work` in it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Lane {
    parsed: Parsed,
    evaluated: Evaluated,
    facts: Facts,
    made: ExactValue,
    key: ExactKey,
    acts: u32,
    live: u64,
    pivot: u64,
    from: u32,
    rule: u32,
    at: u32,
    lane: u32,
    target: u32,
    makes: u32,
    make: [u16; MAX_HITS as usize],
    of: [u32; DIMS_USED],
    number: u32,
    bits: u64,
    held: u32,
    member: Member,
    search: [u32; 18],
    block: [[u8; 32]; search::BLOCK / 32],
    pad: u32,
    inner: u32,
    link: u32,
}

/// Capacity of the automata that search payloads: pages of states, and of outputs.
pub const PAGES: usize = 4;

pub struct Probe {
    pub skel: RulesProbeSkel<'static>,
}

/// The bytes of a value without padding.
fn bytes<T>(value: &T) -> &[u8] {
    // SAFETY: the values that are passed here are mirrors of C structs, integers without padding between them, so
    // that each of their bytes has a value; the slice does not outlive the borrow.
    unsafe { slice::from_raw_parts(ptr::from_ref(value).cast(), size_of::<T>()) }
}

/// The value with these bytes, read from a map.
fn value<T>(bytes: &[u8]) -> T {
    assert_eq!(bytes.len(), size_of::<T>(), "the mirror of a map's value");
    // SAFETY: the length is that of T, which is one of the mirrors: integers only, so that any bytes are a value.
    unsafe { ptr::read_unaligned(bytes.as_ptr().cast()) }
}

fn lookup<T>(map: &impl MapCore, key: &[u8]) -> Option<T> {
    map.lookup(key, MapFlags::ANY).expect("the map is readable").map(|bytes| value(&bytes))
}

fn update<T>(map: &impl MapCore, key: &[u8], value: &T) {
    map.update(key, bytes(value), MapFlags::ANY).expect("the map is writable");
}

impl Probe {
    /// Loads the program, with these capacities of nodes, classes and exact-match rules. None if the environment has
    /// WIRELANE_UNPRIVILEGED=1.
    pub fn load(what: &str, [nodes, classes, exact_rules]: [usize; 3]) -> Option<Probe> {
        if std::env::var_os("WIRELANE_UNPRIVILEGED").is_some_and(|value| value == "1") {
            println!("left out: {what} (WIRELANE_UNPRIVILEGED=1: no kernel program is loaded)");
            return None;
        }
        // The object must outlive the skeleton; there is one per test, so it is leaked.
        let object: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open =
            RulesProbeSkelBuilder::default().open(object).expect("the embedded BPF object is valid");
        open.maps.probe_nodes.set_max_entries(nodes.max(1) as u32).expect("a size that maps can have");
        open.maps.probe_classes.set_max_entries(classes.max(1) as u32).expect("a size that maps can have");
        open.maps
            .probe_exact_rules
            .set_max_entries(exact_rules.max(1) as u32)
            .expect("a size that maps can have");
        open.maps.probe_pages.set_max_entries(PAGES as u32).expect("a size that maps can have");
        open.maps.probe_outputs.set_max_entries(PAGES as u32).expect("a size that maps can have");
        match open.load() {
            Ok(skel) => Some(Probe { skel }),
            Err(error) => panic!(
                "the kernel did not load rules_probe.bpf.c: {error}. This test needs root (CAP_BPF, CAP_NET_ADMIN, \
                 CAP_PERFMON); set WIRELANE_UNPRIVILEGED=1 to leave it out."
            ),
        }
    }

    /// Selects the set for later packets, and clears its counters.
    pub fn use_set(&self, rules: &FlatSet) {
        let maps = &self.skel.maps;
        for (at, node) in rules.nodes.iter().enumerate() {
            update(&maps.probe_nodes, &(at as u32).to_ne_bytes(), node);
        }
        for (at, class) in rules.classes.iter().enumerate() {
            update(&maps.probe_classes, &(at as u32).to_ne_bytes(), class);
        }
        for (at, page) in rules.search.pages.iter().enumerate() {
            update(&maps.probe_pages, &(at as u32).to_ne_bytes(), page);
        }
        for (at, page) in rules.search.output_pages.iter().enumerate() {
            update(&maps.probe_outputs, &(at as u32).to_ne_bytes(), page);
        }
        update(&maps.probe_set, &0u32.to_ne_bytes(), &*rules.set);
        (0..rules.set.rules.min(MAX_RULES as u32)).for_each(|slot| self.clear_counts(slot));
        for key in maps.probe_exact_rules.keys().collect::<Vec<_>>() {
            maps.probe_exact_rules.delete(&key).expect("an entry can be deleted");
        }
    }

    pub fn clear_counts(&self, slot: u32) {
        update(&self.skel.maps.probe_counts, &slot.to_ne_bytes(), &Counts::default());
    }

    pub fn add(&self, key: &ExactKey, entry: &ExactValue) {
        update(&self.skel.maps.probe_exact_rules, bytes(key), entry);
    }

    pub fn entries(&self) -> Vec<(ExactKey, ExactValue)> {
        let map = &self.skel.maps.probe_exact_rules;
        map.keys().map(|key| (value(&key), lookup(map, &key).expect("nobody deletes it meanwhile"))).collect()
    }

    pub fn counts(&self, slot: u32) -> Counts {
        assert!((slot as usize) < MAX_RULES);
        lookup(&self.skel.maps.probe_counts, &slot.to_ne_bytes()).expect("an array has all its entries")
    }

    /// The kernel's result for a packet.
    pub fn evaluate(&self, link: LinkType, data: &[u8], inner: bool, facts: &Facts) -> Evaluated {
        self.prepare(link, inner, facts);
        let input = ProgramInput { data_in: Some(data), ..Default::default() };
        let output = self.skel.progs.wl_rules_probe.test_run(input).expect("BPF_PROG_TEST_RUN works");
        let lane: Lane =
            lookup(&self.skel.maps.probe_lane, &0u32.to_ne_bytes()).expect("an array has all its entries");
        assert_eq!(output.return_value, lane.evaluated.verdict, "the probe returns the verdict");
        lane.evaluated
    }

    pub fn prepare(&self, link: LinkType, inner: bool, facts: &Facts) {
        const { assert!(offset_of!(Lane, inner) == 968, "Lane mirrors struct probe_lane") };
        let lane = Lane { facts: *facts, inner: inner.into(), link: link as u32, ..Lane::default() };
        update(&self.skel.maps.probe_lane, &0u32.to_ne_bytes(), &lane);
    }
}
