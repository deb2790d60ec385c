//! The Rust side of searching payloads: `bpf/lib/search.h`, and its tables in `bpf/lib/rules.h`.

use std::alloc::Layout;
use std::fmt;

/// Bytes of a payload that are searched, at most (`WL_SEARCH_BYTES`).
pub const MAX_BYTES: usize = 16384;
/// Bytes that are searched in one go (`WL_SEARCH_BLOCK`).
pub const BLOCK: usize = 128;
/// Ends of patterns that are looked at in one packet, at most (`WL_SEARCH_OUTPUTS`).
pub const MAX_OUTPUTS: usize = 1024;
/// Patterns that end at one place, at most (`WL_SEARCH_AT_ONCE`).
pub const AT_ONCE: usize = 128;
/// Ids of patterns in a record (`WL_SEARCH_FOUND`).
pub const FOUND: usize = 4;
/// States, and outputs, in one element of a map (`WL_SEARCH_PAGE`).
pub const PAGE: usize = 64;
/// Of [`Node::next`]: patterns end in that state (`WL_SEARCH_HIT`).
pub const HIT: u32 = 0x8000_0000;
/// Of [`crate::rules::Set::search_root`]: there are no such patterns (`WL_SEARCH_NONE`).
pub const NONE: u32 = u32::MAX;

/// A state of an automaton (`struct wl_search_node`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Node {
    /// The next state, by byte, and [`HIT`].
    pub next: [u32; 256],
    /// The first of its outputs.
    pub first: u32,
    /// How many it has.
    pub count: u32,
}

/// States that are near each other (`struct wl_search_page`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Page {
    /// The states.
    pub node: [Node; PAGE],
}

/// Of [`Output::opens`]: the gates that were kept; of [`Output::closes`]: those that were open are kept
/// (`WL_GATE_KEPT`).
pub const KEPT: u8 = 0x80;

/// A pattern that ends in a state (`struct wl_search_output`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Output {
    /// From 1 on; 0: records do not have it.
    pub id: u32,
    /// It counts where it ends behind so many bytes of the payload, or more.
    pub from: u32,
    /// Or less.
    pub last: u32,
    /// Of [`crate::rules::dim::PAYLOAD`].
    pub bits: u8,
    /// Gates that have to be open.
    pub needs: u8,
    /// Gates that are open from then on, or [`KEPT`].
    pub opens: u8,
    /// Gates that are not, and perhaps [`KEPT`].
    pub closes: u8,
}

/// Outputs that are near each other (`struct wl_search_outputs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Outputs {
    /// The outputs.
    pub output: [Output; PAGE],
}

/// The automata of a set, as the kernel walks them.
#[derive(Clone, PartialEq, Eq)]
pub struct Search {
    /// Where each begins: for bytes as they are, and for letters of either case. [`NONE`]: there is none.
    pub roots: [u32; 2],
    /// No pattern counts that ends behind so many bytes of the payload.
    pub reach: u32,
    /// How many states both have.
    pub states: usize,
    /// How many outputs.
    pub outputs: usize,
    /// The states.
    pub pages: Box<[Page]>,
    /// Their outputs.
    pub output_pages: Box<[Outputs]>,
}

impl Search {
    /// For no patterns.
    pub fn none() -> Search {
        Search::new(0)
    }

    /// For so many states, all of which lead to state 0 so far, and have no outputs.
    pub fn new(states: usize) -> Search {
        let pages = zeroed(states.div_ceil(PAGE));
        Search { roots: [NONE; 2], reach: 0, states, outputs: 0, pages, output_pages: Box::default() }
    }

    /// Its outputs from now on.
    pub fn set_outputs(&mut self, outputs: &[Output]) {
        self.outputs = outputs.len();
        self.output_pages = zeroed(outputs.len().div_ceil(PAGE));
        for (number, output) in outputs.iter().enumerate() {
            self.output_pages[number / PAGE].output[number % PAGE] = *output;
        }
    }

    /// A state.
    ///
    /// # Panics
    /// There is none with this number.
    pub fn node(&mut self, state: usize) -> &mut Node {
        &mut self.pages[state / PAGE].node[state % PAGE]
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.pages) + size_of_val(&*self.output_pages)
    }
}

impl fmt::Debug for Search {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Search { roots, reach, states, outputs, .. } = self;
        write!(f, "Search {{ roots: {roots:?}, reach: {reach}, {states} states, {outputs} outputs }}")
    }
}

/// Integers of one size and arrays of them only, so without padding, of a size that is not 0.
trait Plain: Copy {}

impl Plain for Page {}
impl Plain for Outputs {}

impl Page {
    /// Its bytes, as the kernel has them.
    pub fn bytes(&self) -> &[u8] {
        bytes(self)
    }
}

impl Outputs {
    /// Their bytes, as the kernel has them.
    pub fn bytes(&self) -> &[u8] {
        bytes(self)
    }
}

fn bytes<T: Plain>(value: &T) -> &[u8] {
    // SAFETY: a Plain has no padding, so that each of its bytes has a value; the slice does not outlive the borrow.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

/// So many of them, all 0. They are too large for a stack.
fn zeroed<T: Plain>(count: usize) -> Box<[T]> {
    if count == 0 {
        return Box::default();
    }
    let layout = Layout::array::<T>(count).expect("a table that fits into memory");
    // SAFETY: the layout has a size, as neither `count` nor the size of a Plain is 0.
    let memory = unsafe { std::alloc::alloc_zeroed(layout) }.cast::<T>();
    if memory.is_null() {
        std::alloc::handle_alloc_error(layout);
    }
    // SAFETY: allocated above as a Box of such a slice is, owned by nobody else; zeros are a valid value of a Plain.
    unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(memory, count)) }
}
