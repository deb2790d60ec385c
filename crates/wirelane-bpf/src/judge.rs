//! The judge of `bpf/lib/judge.h`, compiled natively: for engines without a kernel program, and for comparing
//! with what the kernel's compilation decides.

use crate::abi::{RuleEnv, wl_native_judge};
use std::ffi::{c_int, c_void};

use crate::layout::Parsed;
use crate::members::{Member, Members};
use crate::rules::{Facts, FlatSet, Judged, LiveCounts, Precise, PreciseKey};

/// A table of precise rules, as the judge uses it.
pub trait PreciseTable {
    /// The entry of this key, whether or not it has expired.
    fn find(&mut self, key: &PreciseKey) -> Option<&mut Precise>;

    /// Puts an entry in, in the place of one that has expired if there is one.
    fn insert(&mut self, key: &PreciseKey, value: &Precise) -> Inserted;
}

/// What became of an entry that was to be put into a table (`WL_INSERTED` and so on).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Inserted {
    /// It is there.
    Yes = 0,
    /// Somebody else has put one of the same key there meanwhile.
    Late = 1,
    /// The table is full.
    Full = 2,
}

/// No precise rules, and no room for any.
#[derive(Debug)]
pub struct NoPrecise;

impl PreciseTable for NoPrecise {
    fn find(&mut self, _: &PreciseKey) -> Option<&mut Precise> {
        None
    }

    fn insert(&mut self, _: &PreciseKey, _: &Precise) -> Inserted {
        Inserted::Full
    }
}

/// A table of precise rules behind a thin pointer, which is what C carries about.
struct Table<'a>(&'a mut dyn PreciseTable);

/// # Safety
/// `table` is the [`Table`] of a running [`judge`], and `key` a valid key.
unsafe extern "C" fn find(table: *mut c_void, key: *const PreciseKey) -> *mut Precise {
    // SAFETY: judge() has made the pointer of a Table that it holds exclusively for as long as C runs, and C calls
    // back on the same thread, from one function at a time.
    let table = unsafe { &mut *table.cast::<Table<'_>>() };
    // SAFETY: C passes a key of its own, whole and aligned, and does not write it meanwhile.
    let key = unsafe { &*key };
    table.0.find(key).map_or(std::ptr::null_mut(), std::ptr::from_mut)
}

/// # Safety
/// As of [`find`]; `value` is a valid entry.
unsafe extern "C" fn insert(
    table: *mut c_void,
    key: *const PreciseKey,
    value: *const Precise,
    _there: c_int,
) -> c_int {
    // SAFETY: as in `find`.
    let table = unsafe { &mut *table.cast::<Table<'_>>() };
    // SAFETY: C passes a key and an entry of its own, whole and aligned, and does not write them meanwhile.
    let (key, value) = unsafe { (&*key, &*value) };
    table.0.insert(key, value) as c_int
}

/// # Safety
/// `members` are those of a running [`judge`], and `member` a valid entry.
unsafe extern "C" fn has(members: *const c_void, test: u32, member: *const Member) -> c_int {
    // SAFETY: judge() has made the pointer of a reference that outlives the call of C, and nobody writes there.
    let members = unsafe { &*members.cast::<Members>() };
    // SAFETY: C passes an entry of its own, whole and aligned, and does not write it meanwhile.
    let member = unsafe { &*member };
    members.has(test as usize, member).into()
}

/// A packet that is judged.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'p> {
    /// What the parser has found.
    pub parsed: &'p Parsed,
    /// Its bytes, as far as they were captured: a payload is searched in them.
    pub data: &'p [u8],
    /// The headers inside a tunnel count, where there is one.
    pub inner: bool,
}

/// Judges a packet by a rule set, as the kernel does.
/// `counts` has the wildcard rules' counters by [`crate::rules::Rule::slot`]; rules whose slot is beyond are not
/// counted. (`wl_rules_judge()`, `bpf/lib/judge.h`)
///
/// One thread at a time may judge with the same `counts`; any may read them meanwhile.
pub fn judge(
    rules: &FlatSet,
    counts: &[LiveCounts],
    precise: &mut dyn PreciseTable,
    packet: Packet<'_>,
    facts: &Facts,
) -> Judged {
    let Packet { parsed, data, inner } = packet;
    let length = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
    let mut table = Table(precise);
    let env = RuleEnv {
        nodes: rules.nodes.as_ptr(),
        classes: rules.classes.as_ptr(),
        // LiveCounts are the same words, as atomics.
        counts: counts.as_ptr().cast_mut().cast(),
        node_count: length(rules.nodes.len()),
        class_count: length(rules.classes.len()),
        count_count: length(counts.len()),
        pad: 0,
        precises: std::ptr::from_mut(&mut table).cast(),
        find: Some(find),
        insert: Some(insert),
        members: (&raw const rules.members).cast(),
        has: Some(has),
        pages: rules.search.pages.as_ptr(),
        outputs: rules.search.output_pages.as_ptr(),
        page_count: length(rules.search.pages.len()),
        outputs_count: length(rules.search.output_pages.len()),
        data: data.as_ptr(),
        length: length(data.len()),
        pad2: 0,
    };
    let mut judged = Judged::default();
    // SAFETY: all pointers are those of references and slices that outlive the call, with the slices' lengths beside
    // them, which C compares each index with. C writes `judged`,
    // and of `counts` only what atomics make of it: words that are aligned, one at a time (LiveCounts says why that is
    // allowed behind a shared reference). It calls `find` and `insert` with `precises`, which is `table`, and uses an
    // entry that was found only until the next of these calls, so that the borrow of `table` that gave it is still
    // the last one; and `has` with `members`, which is only read. None of them unwinds into C: an extern "C" function
    // aborts where it would.
    unsafe { wl_native_judge(&env, &*rules.set, parsed, inner.into(), facts, &mut judged) };
    judged
}
