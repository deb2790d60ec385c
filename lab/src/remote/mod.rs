//! The roles on other machines: the manager here, an agent there, frames of JSON over TLS between them.
//!
//! ```text
//! manager                                            agent
//!   Agents -> Link -> thread  <== wire, tls ==>  serve: a thread for each connection -> worker: roles/
//! ```
//! An agent starts `wirelane send` and sensors out of adapters that it has itself, and what a manager says are names and numbers:
//! its certificate is no remote shell. It works for one manager at a time and for one role. Both sides say something every second;
//! who hears nothing for ten takes the other for gone. An agent whose manager is gone kills what it has started for it, and what
//! an agent has started ends with it (`holder`).

mod agents;
mod link;
mod message;
mod serve;
mod tls;
mod wire;
mod work;

use std::time::Duration;

pub use agents::Agents;
pub use message::{PROTOCOL, VERSION};
pub use serve::{Agent, Options};
pub use tls::{Files, Manager};

#[cfg(test)]
mod tests;

/// How long a handshake may take, and connecting.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Who says nothing for so long is gone.
const SILENCE: Duration = Duration::from_secs(10);
/// How often each side says something.
const PING: Duration = Duration::from_secs(1);
/// No time to speak of.
const AT_ONCE: Duration = Duration::from_millis(1);
/// How soon an end that waits for one thing sees to the other.
const SOON: Duration = Duration::from_millis(100);
