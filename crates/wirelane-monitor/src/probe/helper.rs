//! The command helper of a probe: reads its configuration again and runs programs of alarms.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;
use wirelane::sandbox::Identity;
use wirelane_screen::table::printable;

use crate::helper::{Helper, Kind, Listening, Permitted, Requests};

/// Maximum concurrent programs.
const JOBS: usize = 4;
/// Maximum time to wait for the configuration.
const PATIENCE: Duration = Duration::from_secs(10);

/// Outcomes of programs.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Commands {
    /// Ended with status 0.
    pub commands_done: u64,
    /// Ended otherwise, or could not be started.
    pub commands_failed: u64,
    /// Killed because of the time limit.
    pub commands_timed_out: u64,
    /// Not started, because too many were running and waiting.
    pub commands_refused: u64,
}

impl Commands {
    /// Number of all requested programs.
    pub fn sum(&self) -> u64 {
        self.commands_done + self.commands_failed + self.commands_timed_out + self.commands_refused
    }
}

/// Counted by the listening thread and by the requesting one; read when both are done. Relaxed: these are numbers, and
/// threads are joined before they are summed.
#[derive(Debug, Default)]
struct Counts {
    done: AtomicU64,
    failed: AtomicU64,
    timed_out: AtomicU64,
    refused: AtomicU64,
}

impl Counts {
    fn count(&self, kind: Kind, program: &str, text: &str) {
        let counter = match kind {
            Kind::Done => &self.done,
            Kind::TimedOut => &self.timed_out,
            Kind::Refused => &self.refused,
            _ => &self.failed,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        if kind != Kind::Done {
            tracing::warn!("an alarm's program: {} {text}", printable(program));
        }
    }
}

/// Starts the helper of a probe, as this user, without these environment variables, with this configuration, where it can be
/// read again. To be called before privileges are dropped.
///
/// # Errors
/// If it cannot be started.
pub fn start(identity: Option<Identity>, config: Option<PathBuf>, secrets: &[String]) -> Result<Helper> {
    Helper::start(&Permitted { jobs: JOBS, config, ..Permitted::default() }, identity, secrets)
}

/// Texts of configurations, or error messages.
type Texts = mpsc::Receiver<std::result::Result<String, String>>;

/// The helper with its listening thread.
pub struct ProbeHelper {
    requests: Requests,
    listening: Listening,
    counts: Arc<Counts>,
    texts: Arc<Mutex<Texts>>,
}

/// A requested configuration.
pub struct Asked {
    sent: bool,
    texts: Arc<Mutex<Texts>>,
}

impl Asked {
    /// Waits for the text of the configuration, or an error message.
    pub fn wait(self) -> std::result::Result<String, String> {
        if !self.sent {
            return Err("the helper that reads it is not running".into());
        }
        let texts = self.texts.lock().unwrap_or_else(PoisonError::into_inner);
        texts.recv_timeout(PATIENCE).unwrap_or_else(|_| Err("the helper that reads it did not answer".into()))
    }
}

impl ProbeHelper {
    /// Starts the listening thread. To be called after privileges are dropped: existing threads keep theirs.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn listen(helper: Helper) -> Result<ProbeHelper> {
        let counts = Arc::new(Counts::default());
        let (sender, inbox) = mpsc::channel();
        let counting = Arc::clone(&counts);
        let (requests, listening) = helper.listen(move |answer| match answer.kind {
            // If nobody waits any more, programs are still counted.
            Kind::Config => drop(sender.send(Ok(answer.text))),
            Kind::Unreadable => drop(sender.send(Err(answer.text))),
            kind => counting.count(kind, &answer.of.to_string_lossy(), &answer.text),
        })?;
        Ok(ProbeHelper { requests, listening, counts, texts: Arc::new(Mutex::new(inbox)) })
    }

    /// Requests to run a program, unless too many are running.
    pub fn run(&mut self, words: &[String], timeout_ns: u64) {
        if let Err(error) = self.requests.run(words, timeout_ns) {
            let program = words.first().map_or("", String::as_str);
            let text = format!("was not started: the helper that starts it does not take it: {error}");
            self.counts.count(Kind::Refused, program, &text);
        }
    }

    /// Requests the configuration.
    pub fn ask(&mut self) -> Asked {
        // Late answers to earlier requests must not be taken for the answer to this one.
        while self.texts.lock().unwrap_or_else(PoisonError::into_inner).try_recv().is_ok() {}
        Asked { sent: self.requests.config().is_ok(), texts: Arc::clone(&self.texts) }
    }

    /// Waits for the last program; each has a time limit.
    pub fn end(self) -> Commands {
        drop(self.requests);
        if let Err(error) = self.listening.end() {
            tracing::warn!("{error}");
        }
        let number = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Commands {
            commands_done: number(&self.counts.done),
            commands_failed: number(&self.counts.failed),
            commands_timed_out: number(&self.counts.timed_out),
            commands_refused: number(&self.counts.refused),
        }
    }
}
