//! The Rust side of `bpf/lib/filter.h`: compiled filter expressions.
//!
//! Structs and constants are generated from the C header, as in [`crate::layout`].

pub use crate::abi::{Filter, Step};

/// Maximum number of steps of a filter (`WL_FILTER_STEPS`).
pub const MAX_STEPS: usize = crate::abi::WL_FILTER_STEPS as usize;
/// Bytes of an expression that are stored beside its steps, for display (`WL_FILTER_TEXT`).
pub const MAX_TEXT: usize = crate::abi::WL_FILTER_TEXT as usize;
/// Words of memory available to steps (`WL_FILTER_MEMORY`).
pub const MEMORY: u32 = crate::abi::WL_FILTER_MEMORY;
/// Filters of a group, one of them in use (`WL_GROUP_FILTERS`).
pub const PER_GROUP: usize = crate::abi::WL_GROUP_FILTERS as usize;
/// Mask of the entry in the value of a group's filter (`WL_FILTER_ENTRY`).
pub const ENTRY: u32 = crate::abi::WL_FILTER_ENTRY;
/// Shift of the number of its instructions in the value of a group's filter (`WL_FILTER_NUMBER`).
pub const NUMBER: u32 = crate::abi::WL_FILTER_NUMBER;
/// Filters that a program has as instructions (`WL_FILTER_CODES`).
pub const MAX_CODES: usize = crate::abi::WL_FILTER_CODES as usize;
/// The direction of a transmitted packet, as classic BPF numbers it (`WL_FILTER_GONE_OUT`).
pub const GONE_OUT: u32 = crate::abi::WL_FILTER_GONE_OUT;

/// Values of [`Step::op`] (`enum wl_step_op`, which documents each).
pub mod op {
    #![expect(missing_docs, reason = "bpf/lib/filter.h says what each does")]
    pub const REFUSE: u8 = crate::abi::WL_STEP_REFUSE as u8;
    pub const ACCEPT: u8 = crate::abi::WL_STEP_ACCEPT as u8;
    pub const IF_A: u8 = crate::abi::WL_STEP_IF_A as u8;
    pub const LOAD: u8 = crate::abi::WL_STEP_LOAD as u8;
    pub const HEADER: u8 = crate::abi::WL_STEP_HEADER as u8;
    pub const EQUAL: u8 = crate::abi::WL_STEP_EQUAL as u8;
    pub const GREATER: u8 = crate::abi::WL_STEP_GREATER as u8;
    pub const AT_LEAST: u8 = crate::abi::WL_STEP_AT_LEAST as u8;
    pub const SOME_BIT: u8 = crate::abi::WL_STEP_SOME_BIT as u8;
    pub const A_IS: u8 = crate::abi::WL_STEP_A_IS as u8;
    pub const A_LENGTH: u8 = crate::abi::WL_STEP_A_LENGTH as u8;
    pub const A_DIRECTION: u8 = crate::abi::WL_STEP_A_DIRECTION as u8;
    pub const A_RECALL: u8 = crate::abi::WL_STEP_A_RECALL as u8;
    pub const X_IS: u8 = crate::abi::WL_STEP_X_IS as u8;
    pub const X_IS_A: u8 = crate::abi::WL_STEP_X_IS_A as u8;
    pub const X_LENGTH: u8 = crate::abi::WL_STEP_X_LENGTH as u8;
    pub const X_RECALL: u8 = crate::abi::WL_STEP_X_RECALL as u8;
    pub const KEEP_A: u8 = crate::abi::WL_STEP_KEEP_A as u8;
    pub const KEEP_X: u8 = crate::abi::WL_STEP_KEEP_X as u8;
    pub const ADD: u8 = crate::abi::WL_STEP_ADD as u8;
    pub const SUBTRACT: u8 = crate::abi::WL_STEP_SUBTRACT as u8;
    pub const MULTIPLY: u8 = crate::abi::WL_STEP_MULTIPLY as u8;
    pub const DIVIDE: u8 = crate::abi::WL_STEP_DIVIDE as u8;
    pub const MODULO: u8 = crate::abi::WL_STEP_MODULO as u8;
    pub const AND: u8 = crate::abi::WL_STEP_AND as u8;
    pub const OR: u8 = crate::abi::WL_STEP_OR as u8;
    pub const XOR: u8 = crate::abi::WL_STEP_XOR as u8;
    pub const LEFT: u8 = crate::abi::WL_STEP_LEFT as u8;
    pub const RIGHT: u8 = crate::abi::WL_STEP_RIGHT as u8;
    pub const NEGATE: u8 = crate::abi::WL_STEP_NEGATE as u8;
    pub const GO: u8 = crate::abi::WL_STEP_GO as u8;
}
