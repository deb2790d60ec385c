//! The evaluator of `bpf/lib/evaluate.h`, compiled natively: for engines without a kernel program, and for comparison
//! with the kernel's compilation.

use crate::abi::{RuleEnv, wl_native_evaluate};
use std::ffi::{c_int, c_void};

use crate::layout::Parsed;
use crate::members::{Member, Members};
use crate::rules::{Evaluated, ExactKey, ExactValue, Facts, FlatSet, LiveCounts};

/// A table of exact-match rules, as the evaluator uses it.
pub trait ExactTable {
    /// The entry of this key, whether or not it has expired.
    fn find(&mut self, key: &ExactKey) -> Option<&mut ExactValue>;

    /// Inserts an entry, and replaces an expired one if there is one.
    fn insert(&mut self, key: &ExactKey, value: &ExactValue) -> Inserted;
}

/// Result of inserting an entry into a table (`WL_INSERTED` and so on).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Inserted {
    /// The entry was inserted.
    Yes = 0,
    /// An entry with the same key was inserted concurrently.
    Late = 1,
    /// The table is full.
    Full = 2,
}

/// No exact-match rules, and no capacity for any.
#[derive(Debug)]
pub struct NoExact;

impl ExactTable for NoExact {
    fn find(&mut self, _: &ExactKey) -> Option<&mut ExactValue> {
        None
    }

    fn insert(&mut self, _: &ExactKey, _: &ExactValue) -> Inserted {
        Inserted::Full
    }
}

/// A table of exact-match rules behind a thin pointer, which C passes around.
struct Table<'a>(&'a mut dyn ExactTable);

/// # Safety
/// `table` is the [`Table`] of a running [`evaluate`], and `key` a valid key.
unsafe extern "C" fn find(table: *mut c_void, key: *const ExactKey) -> *mut ExactValue {
    // SAFETY: evaluate() has made the pointer of a Table that it holds exclusively for as long as C runs, and C calls
    // back on the same thread, from one function at a time.
    let table = unsafe { &mut *table.cast::<Table<'_>>() };
    // SAFETY: C passes a key of its own, whole and aligned, and does not write it during the call.
    let key = unsafe { &*key };
    table.0.find(key).map_or(std::ptr::null_mut(), std::ptr::from_mut)
}

/// # Safety
/// As of [`find`]; `value` is a valid entry.
unsafe extern "C" fn insert(
    table: *mut c_void,
    key: *const ExactKey,
    value: *const ExactValue,
    _there: c_int,
) -> c_int {
    // SAFETY: as in `find`.
    let table = unsafe { &mut *table.cast::<Table<'_>>() };
    // SAFETY: C passes a key and an entry of its own, whole and aligned, and does not write them during the call.
    let (key, value) = unsafe { (&*key, &*value) };
    table.0.insert(key, value) as c_int
}

/// # Safety
/// `members` are those of a running [`evaluate`], and `member` a valid entry.
unsafe extern "C" fn has(members: *const c_void, test: u32, member: *const Member) -> c_int {
    // SAFETY: evaluate() has made the pointer of a reference that outlives the call of C, and nothing writes there.
    let members = unsafe { &*members.cast::<Members>() };
    // SAFETY: C passes an entry of its own, whole and aligned, and does not write it during the call.
    let member = unsafe { &*member };
    members.has(test as usize, member).into()
}

/// A packet to evaluate.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'p> {
    /// The parser's result.
    pub parsed: &'p Parsed,
    /// The captured bytes, in which payloads are searched.
    pub data: &'p [u8],
    /// Use the headers inside a tunnel, if there is one.
    pub inner: bool,
}

/// Evaluates a packet by a rule set, as the kernel does.
/// `counts` has the wildcard rules' counters by [`crate::rules::Rule::slot`]; rules with a slot out of range are not
/// counted. (`wl_rules_evaluate()`, `bpf/lib/evaluate.h`)
///
/// Only one thread at a time may evaluate with the same `counts`; any thread may read them concurrently.
pub fn evaluate(
    rules: &FlatSet,
    counts: &[LiveCounts],
    exact: &mut dyn ExactTable,
    packet: Packet<'_>,
    facts: &Facts,
) -> Evaluated {
    let Packet { parsed, data, inner } = packet;
    let length = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
    let mut table = Table(exact);
    let env = RuleEnv {
        nodes: rules.nodes.as_ptr(),
        classes: rules.classes.as_ptr(),
        // LiveCounts are the same words, as atomics.
        counts: counts.as_ptr().cast_mut().cast(),
        node_count: length(rules.nodes.len()),
        class_count: length(rules.classes.len()),
        count_count: length(counts.len()),
        pad: 0,
        exact_rules: std::ptr::from_mut(&mut table).cast(),
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
    let mut evaluated = Evaluated::default();
    // SAFETY: all pointers are those of references and slices that outlive the call, with the slices' lengths beside
    // them, which C compares each index with. C writes `evaluated`, and of `counts` only in the way that atomics are
    // written: aligned words, one at a time (LiveCounts says why that is allowed behind a shared reference). It calls
    // `find` and `insert` with `exact_rules`, which is `table`, and uses an entry that was found only until the next of
    // these calls, so that the borrow of `table` that gave it is still the last one; and `has` with `members`, which is
    // only read. None of them unwinds into C: an extern "C" function aborts where it would.
    unsafe { wl_native_evaluate(&env, &*rules.set, parsed, inner.into(), facts, &mut evaluated) };
    evaluated
}
