//! Changing the rules of a running capture from another process: what `wirelane rules` does.
//!
//! ```text
//!   wirelane rules          the capturing process
//!     Client -- socket -->    wl-rules: one thread serves all who are connected, and sweeps precise rules
//!        one JSON object a line, each way (protocol.rs)
//! ```
//! A capture that is started with [`crate::Builder::control`] has a socket in `/run/wirelane` (of a user who is not
//! root: below `$XDG_RUNTIME_DIR`), which only its user can connect to: by the file's mode, and by who the kernel says
//! is at the other end. The process has given its other rights up by the time that it serves: it can change its rules,
//! and nothing else. The guardian removes the file, however the process ends (`place.rs`).
//!
//! ```no_run
//! # use wirelane::control::{Client, instances};
//! for instance in instances()? {
//!     let mut client = Client::connect(&instance.path)?;
//!     println!("{}: {} wildcard rules", client.status()?.devices.join(", "), client.stats()?.rules.len());
//! }
//! # Ok::<(), wirelane::Error>(())
//! ```

mod client;
mod place;
mod protocol;
mod server;

pub use self::client::{Client, Instance, instances};
pub(crate) use self::place::{Listener, SocketFile, folder};
pub use self::protocol::{Position, Status};
pub(crate) use self::server::{About, Server};
