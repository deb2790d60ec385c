//! Asking a running capture, and changing it, from another process: what `wirelane rules` and `wirelane probe set` do.
//!
//! ```text
//!   wirelane rules          the capturing process
//!     Client -- socket -->    wl-rules: one thread serves all who are connected, and sweeps exact-match rules
//!        one JSON object a line, each way (protocol.rs)
//! ```
//! A capture that is started with `Builder::control` has a socket in `/run/wirelane` (of a user who is not
//! root: below `$XDG_RUNTIME_DIR`), which only its user can connect to: by the file's mode, and by who the kernel says
//! is at the other end. The process has given its other rights up by the time that it serves: it can change its rules,
//! and nothing else. The cleanup process removes the file, however the process ends (`place.rs`).
//!
//! A program that is started with `Builder::service` has a socket of the same kind beside that, at which it
//! answers by itself ([`Service`]): a probe is changed there.
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
pub use self::place::{CLEANUP, Listener, folder};
pub use self::protocol::{Position, Status};
pub use self::server::{About, Answered, Cursor, Rules, Server};
pub use self::service::whereabouts;
pub use self::service::{Service, Serving};
