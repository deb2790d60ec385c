//! Queries and changes of a running capture from another process: used by `wirelane rules` and `wirelane probe set`.
//!
//! ```text
//!   wirelane rules          the capturing process
//!     Client -- socket -->    wl-rules: one thread serves all who are connected, and sweeps exact-match rules
//!        one JSON object a line, each way (protocol.rs)
//! ```
//! A capture started with `Builder::control` has a socket in `/run/wirelane` (for a user other than root: under
//! `$XDG_RUNTIME_DIR`). Only its user can connect to it, which is enforced by the file's mode and by the peer
//! credentials from the kernel. The process has dropped its other rights before it serves requests: it can change its
//! rules, and nothing else. The broker removes the file, however the process ends (`place.rs`).
//!
//! A program started with `Builder::service` also has a socket of the same kind for application-defined requests
//! ([`Service`]): a probe is changed through it.
//!
//! ```no_run
//! # use wirelane_control::{Client, Purpose, instances};
//! for instance in instances(Purpose::Rules)? {
//!     let mut client = Client::connect(&instance.path, Purpose::Rules)?;
//!     println!("{}: {} wildcard rules", client.status()?.devices.join(", "), client.stats()?.rules.len());
//! }
//! # Ok::<(), wirelane_control::Error>(())
//! ```

mod client;
mod connections;
mod converse;
mod error;
mod place;
mod protocol;
mod server;
mod service;

pub use self::client::{Client, Instance, instances};
#[doc(hidden)]
pub use self::converse::converse;
pub use self::error::{Error, Result};
pub use self::place::Purpose;
pub use self::place::{KIND, Listener, SharedSocket, folder};
pub use self::protocol::{Position, Status};
pub use self::server::{About, Answered, Cursor, Rules, Server};
pub use self::service::whereabouts;
pub use self::service::{Service, Serving};
