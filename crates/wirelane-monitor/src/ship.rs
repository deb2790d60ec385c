//! The shipper beside a monitor: `wirelane ship` as a process of its own, without rights of a capture.
//!
//! ```text
//! monitor -- starts, before it drops its privileges --> wirelane ship: reads the store, connects to the targets
//!    |  <---------- status of each target, a JSON line -------|
//!    '-- end of its input: it ships what is complete, and ends
//! ```
//! A monitor that is killed ends its shipper in the same way. A shipper that fails does not end the capture: the store keeps
//! what is not shipped, and the status of the monitor says why.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::SystemTime;

use anyhow::{Context as _, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use wirelane_export::OutputState;
use wirelane_export::metrics::{Registry, ShipMetrics};

use crate::status::AnalysisStatus;

/// Name of the section and of the command.
pub const SHIP: &str = "ship";

/// Status of a target, as `wirelane ship --json` prints it.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct ShipStatus {
    to: String,
    shipped_rows: u64,
    shipped_files: u64,
    batches: u64,
    waiting_files: u64,
    waiting_bytes: u64,
    lag_s: f64,
    retries: u64,
    damaged_files: u64,
    unshipped_rows: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl ShipStatus {
    /// The results for people.
    pub fn text(&self) -> String {
        use wirelane_screen::table::{amount, counted, printable};
        let mut text = format!(
            "{}: {} in {}, {} unshipped",
            printable(&self.to),
            counted(self.shipped_rows, "row"),
            if self.batches == 1 {
                "1 batch".to_owned()
            } else {
                format!("{} batches", amount(self.batches))
            },
            counted(self.waiting_files, "file")
        );
        if let Some(error) = &self.error {
            text += &format!("; {}", printable(error));
        }
        text + "\n"
    }
}

/// Reports of the process.
#[derive(Debug, Default)]
struct Told {
    /// The latest status of each target, and since when it has failed.
    targets: BTreeMap<String, (ShipStatus, Option<SystemTime>)>,
    /// When the process has ended.
    ended: Option<SystemTime>,
}

/// The started process, before privileges are dropped.
#[derive(Debug)]
pub struct Shipper {
    child: Child,
    stdin: ChildStdin,
    stdout: ChildStdout,
    metrics: Option<ShipMetrics>,
}

impl Shipper {
    /// Starts `wirelane ship` with these words, without the environment variables `secrets`. To be called before privileges are dropped, after which no process can be
    /// started.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(words: &[String], secrets: &[String]) -> Result<Shipper> {
        let mut command = Command::new("/proc/self/exe");
        for name in secrets {
            command.env_remove(name);
        }
        let mut child = command
            .arg0("wirelane-ship")
            .arg(SHIP)
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C ends the capture, whose last files are still to be shipped.
            .process_group(0)
            .spawn()
            .context("starting the shipper")?;
        let stdin = child.stdin.take().context("no pipe to the shipper")?;
        let stdout = child.stdout.take().context("no pipe from the shipper")?;
        Ok(Shipper { child, stdin, stdout, metrics: None })
    }

    /// Registers the metrics of shipping.
    pub fn metrics(&mut self, registry: &mut Registry) {
        self.metrics = Some(ShipMetrics::new(registry));
    }

    /// Starts the thread that reads the status. To be called after privileges are dropped.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn listen(self) -> Result<Shipping> {
        let Shipper { child, stdin, stdout, metrics } = self;
        let told = Arc::new(Mutex::new(Told::default()));
        let board = Arc::clone(&told);
        let thread = std::thread::Builder::new().name("wl-shipper".into()).spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(|line| line.ok()) {
                let Ok(status) = serde_json::from_str::<ShipStatus>(&line) else { continue };
                if let Some(metrics) = &metrics {
                    metrics.set(&status.to, status.lag_s, status.retries);
                }
                let mut told = board.lock().unwrap_or_else(PoisonError::into_inner);
                let target = told.targets.entry(status.to.clone()).or_default();
                let failing = status.error.as_ref().map(|_| target.1.unwrap_or_else(SystemTime::now));
                *target = (status, failing);
            }
            board.lock().unwrap_or_else(PoisonError::into_inner).ended = Some(SystemTime::now());
        })?;
        Ok(Shipping { child, stdin, told, thread })
    }
}

/// The process and the thread that reads its status.
#[derive(Debug)]
pub struct Shipping {
    child: Child,
    stdin: ChildStdin,
    told: Arc<Mutex<Told>>,
    thread: JoinHandle<()>,
}

impl Shipping {
    /// The latest status.
    pub fn status(&self) -> AnalysisStatus {
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let statuses = || told.targets.values().map(|(status, _)| status);
        let sum = |of: fn(&ShipStatus) -> u64| statuses().map(of).sum::<u64>();
        let counts = [
            ("batches", sum(|status| status.batches)),
            ("retries", sum(|status| status.retries)),
            ("waiting_files", sum(|status| status.waiting_files)),
            ("damaged_files", sum(|status| status.damaged_files)),
            ("seconds_of_lag", statuses().map(|status| status.lag_s.ceil() as u64).max().unwrap_or(0)),
        ];
        let gone =
            told.ended.map(|_| "the shipper has ended: its messages say why; restart the monitor".to_owned());
        let mut outputs: Vec<OutputState> = told
            .targets
            .values()
            .map(|(status, failing)| OutputState {
                written: status.shipped_rows,
                lost: status.unshipped_rows,
                waiting_bytes: status.waiting_bytes,
                ..OutputState::new(
                    &status.to,
                    told.ended.or(*failing),
                    gone.as_ref().or(status.error.as_ref()),
                )
            })
            .collect();
        // It has ended before its first status.
        if outputs.is_empty() && gone.is_some() {
            outputs.push(OutputState::new("wirelane ship", told.ended, gone.as_ref()));
        }
        AnalysisStatus {
            name: SHIP.to_owned(),
            counts: counts.into_iter().map(|(name, number)| (name.to_owned(), number)).collect(),
            outputs,
        }
    }

    /// Lets the process ship what is complete, waits for its end, and returns the last status of each target.
    ///
    /// # Errors
    /// If it has failed, or something is not shipped.
    pub fn finish(self) -> (Vec<ShipStatus>, Result<()>) {
        let Shipping { mut child, stdin, told, thread } = self;
        drop(stdin);
        let ended = (|| {
            ensure!(
                thread.join().is_ok(),
                "the thread that reads the status of shipping panicked; this is a bug"
            );
            let status = child.wait().context("waiting for the shipper")?;
            if !status.success() {
                bail!("[{SHIP}]: not everything was shipped; the store keeps the rest ({status})");
            }
            Ok(())
        })();
        let told = std::mem::take(&mut *told.lock().unwrap_or_else(PoisonError::into_inner));
        (told.targets.into_values().map(|(status, _)| status).collect(), ended)
    }
}
