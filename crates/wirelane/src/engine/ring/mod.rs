//! The `ring` engine: from the capture program's rings, in place.
//!
//! ```text
//!  attach.rs     the hooks of a device: what hangs there, and how ours gets there
//!  clsact/       tc where it has no links: filters, and what removes them
//!  instance.rs   one capture program on a device: found where it runs, loaded where it does not
//!  group.rs      joining it as a group: a place, the rings' memory, the ledger's lines
//!  reader.rs     the reader's half of the ring protocol (the writer's half: kernel/programs/ring.h)
//!  source.rs     a worker: all rings that lead to it; spin, sleep, wake
//!  bell.rs       the wake-up
//!  memory.rs     mappings: where the unsafe code is
//!  model/        tests only: the ring protocol under loom
//! ```

pub(crate) mod attach;
pub(crate) mod bell;
mod clsact;
pub(crate) mod group;
pub(crate) mod instance;
pub(crate) mod memory;
#[cfg(test)]
mod model;
pub(crate) mod reader;
pub(crate) mod source;
