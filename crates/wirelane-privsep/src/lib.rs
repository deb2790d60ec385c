//! Privilege separation: how a program that needs root's rights at its start runs without them.
//!
//! A program that parses untrusted data should not be able to do harm when that data exploits a bug in it. So it
//! performs privileged operations first, and then gives the rights up for good. A small process beside it, forked while
//! the rights were available, undoes the changes that need rights at the end.
//!
//! ```text
//!   start, all rights        capability::require     says what is missing, and how to grant it
//!                            cleanup::CleanupProcess forked; keeps the few rights that undoing takes
//!                            forked::start           other helpers that keep one right each
//!   before the first packet  CleanupProcess::seal    takes no further actions
//!                            sandbox::Sandbox::apply gives all rights up
//!   running                  Registration::run       "undo this now", of the process's own changes
//!   end, however it comes    the cleanup process undoes what is left
//! ```
//! * [`capability`]: Linux capabilities of this process, and an error that names those that are missing.
//! * [`sandbox`]: user, capabilities, Landlock and seccomp, given up in one call.
//! * [`forked`]: helper processes without exec, with an allow-list of capabilities and folders.
//! * [`process`]: processes by id and start time.
//! * [`cleanup`]: the cleanup process. It does not know what it undoes: each crate that changes something defines an
//!   [`cleanup::ActionKind`].
//!
//! The crate depends on no other crate of Wirelane and knows nothing of packets.

pub mod capability;
pub mod cleanup;
mod error;
pub mod forked;
pub mod process;
pub mod sandbox;

pub use capability::{Capability, Privileges, require};
pub use error::{Error, Result};
pub use sandbox::{Identity, Sandbox, Work};
