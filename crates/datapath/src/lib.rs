//! The unsafe leaf under everything: `kernel/` built both ways.
//!
//! * [`instance`]: what a capture program and its users share.
//! * [`layout`]: the structs that kernel and user space share.
//! * [`skel`]: the kernel programs, ready to be loaded.
pub mod instance;
pub mod layout;
pub mod skel;
