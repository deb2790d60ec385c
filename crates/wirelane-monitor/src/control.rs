//! Requests to a running monitor: `wirelane status`, `wirelane reload`, and SIGHUP.
//!
//! ```text
//! socket: a thread (wirelane-control) -.-> Mailbox -> the main thread, which owns the capture
//! SIGHUP -> run_loop -> wl-reload -----'
//! ```

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use wirelane::control::{Service, Serving};

use crate::run_loop::Mailbox;
use crate::status::Status;

/// A request to a running monitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Question {
    /// Returns a [`Status`].
    Status,
    /// Reads the configuration again, and returns the names of what has changed.
    Reload,
}

/// Reads a configuration again.
pub trait Reload: Send {
    /// Reads the configuration, and changes the capture accordingly, or nothing. Returns the keys that have changed.
    ///
    /// # Errors
    /// The reasons why nothing has changed, a line each.
    fn reload(&mut self, mailbox: &Mailbox) -> Result<Vec<String>, String>;
}

/// State of [`Control`] for its threads.
struct Shared {
    mailbox: Mailbox,
    /// Locked during a reload, so that there is one at a time.
    reload: Mutex<Box<dyn Reload>>,
    // Relaxed: numbers for people.
    reloads: AtomicU64,
    refused: AtomicU64,
}

impl Shared {
    fn reload(&self) -> Result<Vec<String>, String> {
        wirelane_export::append::reopen();
        let result = self.reload.lock().unwrap_or_else(PoisonError::into_inner).reload(&self.mailbox);
        match &result {
            Ok(changed) => {
                self.reloads.fetch_add(1, Ordering::Relaxed);
                let changed = if changed.is_empty() { "nothing".to_owned() } else { changed.join(", ") };
                tracing::info!("the configuration was read again; changed: {changed}");
            }
            Err(reasons) => {
                self.refused.fetch_add(1, Ordering::Relaxed);
                tracing::warn!("the configuration stays as it was: {reasons}");
            }
        }
        result
    }

    fn answer(&self, question: serde_json::Value) -> Result<serde_json::Value, String> {
        let question =
            serde_json::from_value(question).map_err(|error| format!("invalid request: {error}"))?;
        let answer = match question {
            Question::Status => serde_json::to_value::<Status>(self.mailbox.status()?),
            Question::Reload => serde_json::to_value(self.reload()?),
        };
        answer.map_err(|error| error.to_string())
    }
}

/// Threads that answer requests until this value is dropped.
pub struct Control {
    shared: Arc<Shared>,
    hangups: mpsc::Sender<()>,
    _serving: Option<Serving>,
}

impl Control {
    /// Starts the threads, after privileges are dropped. `service`: the socket for requests of other processes.
    ///
    /// # Errors
    /// A thread that cannot be started.
    pub fn start(service: Option<Service>, reload: Box<dyn Reload>, mailbox: Mailbox) -> Result<Control> {
        let shared = Arc::new(Shared {
            mailbox,
            reload: Mutex::new(reload),
            reloads: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        });
        let answering = Arc::clone(&shared);
        let serve = |service: Service| service.serve(move |question| answering.answer(question));
        let serving = service.map(serve).transpose().context("serving requests")?;
        let (hangups, inbox) = mpsc::channel();
        let reloading = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("wl-reload".into());
        thread
            .spawn(move || {
                for () in inbox {
                    // The result is in the log.
                    let _ = reloading.reload();
                }
            })
            .context("starting the thread for SIGHUP")?;
        Ok(Control { shared, hangups, _serving: serving })
    }

    /// Reads the configuration again, in a thread.
    pub fn hangup(&self) {
        // The thread ends with this value only.
        let _ = self.hangups.send(());
    }

    /// How often the configuration became active again, and was refused.
    pub fn reloads(&self) -> (u64, u64) {
        (self.shared.reloads.load(Ordering::Relaxed), self.shared.refused.load(Ordering::Relaxed))
    }
}
