//! Application-defined requests on the control socket, with the same access control.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use wirelane_privsep::broker::Broker;

use super::connections::{Connections, Thread};
use super::place::{Listener, Purpose, SharedSocket};
use super::protocol::{Answer, Ask};
use super::server::About;
use crate::Error;
use crate::Result;
use wirelane_netdev::sys;

/// Maximum bytes of a request.
const LONGEST: usize = 1 << 20;
/// Maximum sleep of the thread without requests.
const NOBODY: Duration = Duration::from_secs(60);

/// The name of this process according to the kernel, and the cookie of its network namespace, neither of which can be
/// queried after rights are dropped.
///
/// # Errors
/// [`Error::Kernel`].
pub fn whereabouts() -> Result<(String, u64)> {
    let namespace = sys::socket(libc::AF_INET, libc::SOCK_DGRAM, 0)
        .and_then(|socket| sys::namespace_cookie(&socket))
        .map_err(|source| Error::kernel("asking for the network namespace", source))?;
    let command = std::fs::read_to_string("/proc/self/comm").unwrap_or_default().trim_end().to_owned();
    Ok((command, namespace))
}

/// A socket for application-defined requests, before the thread that answers them is started: see `Builder::service`.
/// The file is removed when this value is dropped, and when the process ends, however it ends.
#[derive(Debug)]
pub struct Service {
    listeners: Vec<Listener>,
    about: About,
}

/// The thread that answers; it ends when this value is dropped.
#[derive(Debug)]
pub struct Serving {
    _thread: Thread,
}

impl Service {
    /// Creates the socket for this purpose, and the `shared` one; `None`, with a warning, if this user has no folder for the
    /// first one and there is no other.
    ///
    /// # Errors
    /// [`Error::Kernel`] or [`Error::Control`] if a socket cannot be created.
    pub fn open(
        broker: &Arc<Broker>,
        purpose: Purpose,
        shared: Option<&SharedSocket>,
    ) -> Result<Option<Service>> {
        let shared = shared.map(|socket| Listener::shared(broker, purpose, socket)).transpose()?;
        let own = match Listener::open(broker, purpose) {
            Err(e @ Error::Unsupported { .. }) => {
                if shared.is_none() {
                    tracing::warn!("{e}; without, '{}' cannot reach this capture", purpose.command());
                    return Ok(None);
                }
                None
            }
            listener => Some(listener?),
        };
        let listeners = own.into_iter().chain(shared).collect();
        let (command, namespace) = whereabouts()?;
        let (engine, devices) = ("", Vec::new());
        let (egress_devices, plugins, maps) = Default::default();
        let about = About { engine, command, devices, egress_devices, plugins, maps, namespace };
        Ok(Some(Service { listeners, about }))
    }

    /// Sets the engine and the devices of the capture.
    pub fn of(mut self, engine: &'static str, mut names: Vec<String>) -> Service {
        names.dedup();
        (self.about.engine, self.about.devices) = (engine, names);
        self
    }

    /// Starts a thread that answers one request after the other. An error is a refusal, worded for the client.
    ///
    /// # Errors
    /// [`Error::Kernel`].
    pub fn serve(
        self,
        mut answer: impl FnMut(Value) -> std::result::Result<Value, String> + Send + 'static,
    ) -> Result<Serving> {
        let status = self.about.status();
        let mut connections = Connections::new(self.listeners, LONGEST);
        let thread = Thread::start("wl-service", move |stop| {
            loop {
                match connections.wait(stop, NOBODY) {
                    Ok(false) => {}
                    Ok(true) => return,
                    Err(e) => {
                        tracing::error!("waiting for questions: {e}; none is answered any more");
                        return;
                    }
                }
                connections.serve(|ask| match ask {
                    Ask::Status => Answer::Status(status.clone()),
                    Ask::Program(question) => answer(question).map_or_else(Answer::Refused, Answer::Program),
                    _ => Answer::Refused("this socket is not for a capture's rules".into()),
                });
            }
        })?;
        Ok(Serving { _thread: thread })
    }
}
