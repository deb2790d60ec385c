//! The unsafe leaf under everything: `kernel/` built both ways.
//!
//! * [`layout`]: the structs that kernel and user space share.
//! * [`native`]: the packet functions, compiled natively.
//! * [`skel`]: the kernel programs, ready to be loaded.
pub mod layout;
pub mod native;
pub mod skel;
