//! The unsafe leaf under everything: `kernel/` built both ways.
//!
//! * [`layout`]: the structs that kernel and user space share.
//! * [`skel`]: the kernel programs, ready to be loaded.
pub mod layout;
pub mod skel;
