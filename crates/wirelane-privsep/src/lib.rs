//! Privilege separation: how a program that needs root's rights at its start runs without them.
//!
//! A program that parses untrusted data should not be able to do harm when that data exploits a bug in it. So it
//! performs privileged operations first, and then gives the rights up for good. A small process beside it, forked while
//! the rights were available, does the few things that need rights later, and undoes the changes at the end.
//!
//! ```text
//!   start, all rights        capability::require     says what is missing, and how to grant it
//!                            broker::Broker          forked; keeps the few rights that its tasks take
//!   before the first packet  Broker::seal            takes no further tasks
//!                            sandbox::Sandbox::apply gives all rights up
//!   running                  Channel::send           requests that a registered task checks and serves
//!                            Registration::undo      "undo this now", of the process's own changes
//!   end, however it comes    the broker undoes what is left
//! ```
//! * [`capability`]: Linux capabilities of this process, and an error that names those that are missing.
//! * [`sandbox`]: user, capabilities, Landlock and seccomp, given up in one call.
//! * [`forked`]: a process without exec, with an allow-list of capabilities and folders.
//! * [`process`]: processes by id and start time.
//! * [`broker`]: the broker. It does not know its tasks: each crate that changes something, or needs a right later, defines
//!   a [`broker::Kind`].
//!
//! The crate depends on no other crate of Wirelane and knows nothing of packets.

pub mod broker;
pub mod capability;
mod error;
pub mod forked;
pub mod process;
pub mod sandbox;

pub use capability::{Capability, Privileges, require};
pub use error::{Error, Result};
pub use sandbox::{Identity, Sandbox, Work};
