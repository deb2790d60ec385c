//! The Rust side of payload searching: `bpf/lib/search.h`, and its tables in `bpf/lib/rules.h`.

pub use crate::abi::{
    SearchEnds as Ends, SearchOutput as Output, SearchOutputs as Outputs, SearchPage as Page,
};
use std::alloc::Layout;
use std::fmt;

/// Maximum number of payload bytes that are searched (`WL_SEARCH_BYTES`).
pub const MAX_BYTES: usize = crate::abi::WL_SEARCH_BYTES as usize;
/// Bytes that are searched in one step (`WL_SEARCH_BLOCK`).
pub const BLOCK: usize = crate::abi::WL_SEARCH_BLOCK as usize;
/// Maximum number of pattern ends that are evaluated in one packet (`WL_SEARCH_OUTPUTS`).
pub const MAX_OUTPUTS: usize = crate::abi::WL_SEARCH_OUTPUTS as usize;
/// Maximum number of patterns that end at one position (`WL_SEARCH_AT_ONCE`).
pub const AT_ONCE: usize = crate::abi::WL_SEARCH_AT_ONCE as usize;
/// Ids of patterns in a record (`WL_SEARCH_FOUND`).
pub const FOUND: usize = crate::abi::WL_SEARCH_FOUND as usize;
/// States, and outputs, in one element of a map (`WL_SEARCH_PAGE`).
pub const PAGE: usize = crate::abi::WL_SEARCH_PAGE as usize;
/// A state in [`Page::next`] and in [`Search::roots`] is its number times this (`WL_SEARCH_STATE`).
pub const STATE: u32 = crate::abi::WL_SEARCH_STATE;
/// Maximum number of states.
pub const MAX_STATES: usize = 1 << 22;
/// Flag in [`Page::next`]: patterns end in that state (`WL_SEARCH_HIT`).
pub const HIT: u32 = crate::abi::WL_SEARCH_HIT;
/// Value of [`crate::rules::Set::search_root`]: the set has no such patterns (`WL_SEARCH_NONE`).
pub const NONE: u32 = crate::abi::WL_SEARCH_NONE;

/// In [`Output::opens`]: the gates that were saved; in [`Output::closes`]: gates that are open are saved
/// (`WL_GATE_KEPT`).
pub const KEPT: u8 = crate::abi::WL_GATE_KEPT as u8;

/// The automata of a set, as the kernel walks them.
#[derive(Clone, PartialEq, Eq)]
pub struct Search {
    /// Start states: for exact bytes, and for letters of either case. [`NONE`]: no automaton.
    pub roots: [u32; 2],
    /// No pattern matches if it ends after this many bytes of the payload.
    pub reach: u32,
    /// Number of states of both automata.
    pub states: usize,
    /// Number of outputs.
    pub outputs: usize,
    /// The states.
    pub pages: Box<[Page]>,
    /// Their outputs.
    pub output_pages: Box<[Outputs]>,
}

impl Search {
    /// Automata without patterns.
    pub fn none() -> Search {
        Search::new(0)
    }

    /// Automata with `states` states, all of which lead to state 0 so far, and have no outputs.
    ///
    /// # Panics
    /// If there are more than [`MAX_STATES`].
    pub fn new(states: usize) -> Search {
        assert!(states <= MAX_STATES, "{states} states");
        let pages = zeroed(states.div_ceil(PAGE));
        Search { roots: [NONE; 2], reach: 0, states, outputs: 0, pages, output_pages: Box::default() }
    }

    /// Replaces the outputs.
    pub fn set_outputs(&mut self, outputs: &[Output]) {
        self.outputs = outputs.len();
        self.output_pages = zeroed(outputs.len().div_ceil(PAGE));
        for (number, output) in outputs.iter().enumerate() {
            self.output_pages[number / PAGE].output[number % PAGE] = *output;
        }
    }

    /// The next states of a state, by its number.
    ///
    /// # Panics
    /// If the number is out of range.
    pub fn next(&mut self, state: usize) -> &mut [u32; 256] {
        &mut self.pages[state / PAGE].next[state % PAGE]
    }

    /// The patterns that end in a state, by its number.
    ///
    /// # Panics
    /// If the number is out of range.
    pub fn ends(&mut self, state: usize) -> &mut Ends {
        &mut self.pages[state / PAGE].ends[state % PAGE]
    }

    /// Size in bytes.
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

/// Types that consist of integers of one size and arrays of them, so without padding, with a size that is not 0.
trait Plain: Copy {}

impl Plain for Page {}
impl Plain for Outputs {}

impl Page {
    /// The page's bytes in the kernel's layout.
    pub fn bytes(&self) -> &[u8] {
        bytes(self)
    }
}

impl Outputs {
    /// The outputs' bytes in the kernel's layout.
    pub fn bytes(&self) -> &[u8] {
        bytes(self)
    }
}

fn bytes<T: Plain>(value: &T) -> &[u8] {
    // SAFETY: a Plain has no padding, so that each of its bytes has a value; the slice does not outlive the borrow.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

/// A slice of `count` zeroed values, allocated on the heap. They are too large for a stack.
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
    // SAFETY: allocated above with the layout of a Box of such a slice, owned by nobody else; zeros are a valid value
    // of a Plain.
    unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(memory, count)) }
}
