//! The unsafe leaf under everything: `kernel/` built both ways.
//!
//! * [`layout`]: the structs that kernel and user space share.
pub mod layout;
