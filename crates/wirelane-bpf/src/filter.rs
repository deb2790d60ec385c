//! The Rust side of `bpf/lib/filter.h`: compiled filter expressions.
//!
//! As in [`crate::layout`], the C header is the source and a test compares the two.

/// Most steps of a filter (`WL_FILTER_STEPS`).
pub const MAX_STEPS: usize = 4096;
/// Bytes of an expression that are kept beside its steps, for people (`WL_FILTER_TEXT`).
pub const MAX_TEXT: usize = 1016;
/// Words of memory that steps have (`WL_FILTER_MEMORY`).
pub const MEMORY: u32 = 16;
/// Filters of a group, of which one is in use (`WL_GROUP_FILTERS`).
pub const PER_GROUP: usize = 2;
/// The direction of a packet on its way out, as classic BPF numbers it (`WL_FILTER_GONE_OUT`).
pub const GONE_OUT: u32 = 4;

/// One step of a filter (`struct wl_step`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Step {
    /// See [`op`].
    pub op: u8,
    /// 1: the operand is the index, 0: it is `value`.
    pub with_x: u8,
    /// Bytes of a load: 1, 2 or 4.
    pub size: u8,
    #[doc(hidden)]
    pub pad: u8,
    /// How many steps further it goes on; 1 where nothing is asked.
    pub yes: u16,
    /// The same where what is asked is not so.
    pub no: u16,
    /// The operand.
    pub value: u32,
    #[doc(hidden)]
    pub pad2: u32,
}

/// A compiled expression as an instance keeps it (`struct wl_filter`).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Filter {
    /// Number of steps.
    pub count: u32,
    /// Bytes of the whole expression.
    pub text_length: u32,
    /// As much of it as fits.
    pub text: [u8; MAX_TEXT],
    /// The steps; those behind `count` refuse.
    pub steps: [Step; MAX_STEPS],
}

/// Values of [`Step::op`] (`enum wl_step_op`, where each is explained).
pub mod op {
    #![expect(missing_docs, reason = "bpf/lib/filter.h says what each does")]
    pub const REFUSE: u8 = 0;
    pub const ACCEPT: u8 = 1;
    pub const IF_A: u8 = 2;
    pub const LOAD: u8 = 3;
    pub const HEADER: u8 = 4;
    pub const EQUAL: u8 = 5;
    pub const GREATER: u8 = 6;
    pub const AT_LEAST: u8 = 7;
    pub const SOME_BIT: u8 = 8;
    pub const A_IS: u8 = 9;
    pub const A_LENGTH: u8 = 10;
    pub const A_DIRECTION: u8 = 11;
    pub const A_RECALL: u8 = 12;
    pub const X_IS: u8 = 13;
    pub const X_IS_A: u8 = 14;
    pub const X_LENGTH: u8 = 15;
    pub const X_RECALL: u8 = 16;
    pub const KEEP_A: u8 = 17;
    pub const KEEP_X: u8 = 18;
    pub const ADD: u8 = 19;
    pub const SUBTRACT: u8 = 20;
    pub const MULTIPLY: u8 = 21;
    pub const DIVIDE: u8 = 22;
    pub const MODULO: u8 = 23;
    pub const AND: u8 = 24;
    pub const OR: u8 = 25;
    pub const XOR: u8 = 26;
    pub const LEFT: u8 = 27;
    pub const RIGHT: u8 = 28;
    pub const NEGATE: u8 = 29;
    pub const GO: u8 = 30;
}
