//! Application-defined requests on the control socket, with the same access control.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use wirelane_privsep::cleanup::CleanupProcess;

use super::connections::{Connections, Thread};
use super::place::{Listener, Purpose};
use super::protocol::{Answer, Ask};
use super::server::About;
use crate::Error;
use crate::Result;
use wirelane_netdev::sys;

/// Most bytes of a question.
const LONGEST: usize = 1 << 20;
/// How long the thread sleeps where nobody asks.
const NOBODY: Duration = Duration::from_secs(60);

/// The name of this process as the kernel has it, and the cookie of its network namespace, neither of which can be asked
/// for once rights are given up.
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

/// A socket at which this program is asked, before anybody answers: see `Builder::service`. The file is gone
/// when this is, and when the process is, however it ends.
#[derive(Debug)]
pub struct Service {
    listener: Listener,
    about: About,
}

/// The thread that answers; it ends when this is dropped.
#[derive(Debug)]
pub struct Serving {
    _thread: Thread,
}

impl Service {
    /// Takes the place; `None`, with a warning, where this user has none.
    ///
    /// # Errors
    /// [`Error::Kernel`] where the socket cannot be had.
    pub fn open(cleanup: &Arc<CleanupProcess>) -> Result<Option<Service>> {
        let listener = match Listener::open(cleanup, Purpose::Probe) {
            Err(e @ Error::Unsupported { .. }) => {
                tracing::warn!("{e}; without, '{}' cannot reach this capture", Purpose::Probe.command());
                return Ok(None);
            }
            listener => listener?,
        };
        let (command, namespace) = whereabouts()?;
        let (engine, devices) = ("", Vec::new());
        let about =
            About { engine, command, devices, egress_devices: Vec::new(), plugins: Vec::new(), namespace };
        Ok(Some(Service { listener, about }))
    }

    /// What captures has been started.
    pub fn of(mut self, engine: &'static str, mut names: Vec<String>) -> Service {
        names.dedup();
        (self.about.engine, self.about.devices) = (engine, names);
        self
    }

    /// Answers from now on, by a thread of its own: one question after the other. An error is a refusal, in words for who
    /// has asked.
    ///
    /// # Errors
    /// [`Error::Kernel`].
    pub fn serve(
        self,
        mut answer: impl FnMut(Value) -> std::result::Result<Value, String> + Send + 'static,
    ) -> Result<Serving> {
        let status = self.about.status();
        let mut connections = Connections::new(Some(self.listener), LONGEST);
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
