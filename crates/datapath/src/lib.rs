//! The unsafe leaf under everything: `kernel/` built both ways.
//!
//! * [`filter`]: compiled filter expressions.
//! * [`flow`]: what packets of one flow come to.
//! * [`flow_cache`]: the first-level flow cache.
//! * [`instance`]: what a capture program and its users share.
//! * [`judge`]: rules, judged natively.
//! * [`layout`]: the structs that kernel and user space share.
//! * [`members`]: named sets, which rules ask.
//! * [`native`]: the packet functions, compiled natively.
//! * [`rules`]: compiled rules.
//! * [`search`]: the automata that search payloads for patterns.
//! * [`skel`]: the kernel programs, ready to be loaded.
pub mod filter;
pub mod flow;
pub mod flow_cache;
pub mod instance;
pub mod judge;
pub mod layout;
pub mod members;
pub mod native;
pub mod rules;
pub mod search;
pub mod skel;
