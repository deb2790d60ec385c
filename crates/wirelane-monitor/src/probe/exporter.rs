//! Export of alarms: a thread per target, which never blocks the probe.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use serde::Serialize;
use wirelane_export::alarms::AlarmOutput;
use wirelane_probe::{AlarmEvent, Config};

use wirelane_screen::table::{amount, printable};

/// Maximum alarms that wait for one target.
const WAITING: usize = 1024;
/// Maximum time for sending an alarm.
const PATIENCE: Duration = Duration::from_secs(2);
/// Maximum time for sending an alarm after the capture has ended.
const HASTE: Duration = Duration::from_millis(200);

/// Results of exported alarms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Exports {
    /// Sent, or written.
    pub alarms_exported: u64,
    /// Not sent: no receiver, or the disk is full.
    pub exports_failed: u64,
    /// Given up, because too many alarms waited.
    pub exports_refused: u64,
}

/// Relaxed: counters that are read after the threads have ended.
#[derive(Debug, Default)]
struct Counts {
    done: AtomicU64,
    failed: AtomicU64,
}

/// Targets opened before privileges are dropped, by the index of their actions.
pub struct Opened(Vec<(usize, AlarmOutput)>);

/// Running export threads.
pub struct Exporter {
    targets: Vec<(usize, mpsc::SyncSender<AlarmEvent>, JoinHandle<()>)>,
    counts: Arc<Counts>,
    /// Set at the end. Relaxed: it only shortens the threads' time limits.
    ending: Arc<AtomicBool>,
    refused: u64,
}

impl Opened {
    /// Opens the targets of a configuration; `None` if it has none. Adds their TCP ports and the files that are
    /// reopened to `rights`.
    ///
    /// # Errors
    /// If a target cannot be opened.
    pub fn open(
        config: &Config,
        owner: Option<(u32, u32)>,
        (tcp_ports, logs): (&mut Vec<u16>, &mut Vec<PathBuf>),
    ) -> Result<Option<Opened>> {
        let opened = config.targets().into_iter().map(|(place, target)| {
            let output = AlarmOutput::open(target, owner).map_err(|error| match error {
                wirelane_export::Error::Target { target, reason } => anyhow!("export to {target}: {reason}"),
                other => other.into(),
            })?;
            tcp_ports.extend(output.tcp_ports());
            logs.extend(output.rotates().map(Path::to_owned));
            Ok((place, output))
        });
        let opened = opened.collect::<Result<Vec<_>>>()?;
        Ok((!opened.is_empty()).then_some(Opened(opened)))
    }

    /// Starts the threads. To be called after privileges are dropped: existing threads keep theirs.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn start(self) -> Result<Exporter> {
        let (counts, ending) = (Arc::new(Counts::default()), Arc::new(AtomicBool::new(false)));
        let begun = self.0.into_iter().map(|(place, output)| {
            let (sender, inbox) = mpsc::sync_channel(WAITING);
            let (counts, ending) = (Arc::clone(&counts), Arc::clone(&ending));
            let thread = std::thread::Builder::new().name("wl-alarms".into());
            let thread = thread.spawn(move || run(output, &inbox, &counts, &ending));
            Ok((place, sender, thread.context("starting a thread for alarms")?))
        });
        let targets = begun.collect::<Result<Vec<_>>>()?;
        Ok(Exporter { targets, counts, ending, refused: 0 })
    }
}

/// Main loop of a target's thread.
fn run(mut output: AlarmOutput, inbox: &mpsc::Receiver<AlarmEvent>, counts: &Counts, ending: &AtomicBool) {
    let mut said = String::new();
    for alarm in inbox {
        let patience = if ending.load(Ordering::Relaxed) { HASTE } else { PATIENCE };
        match output.send(&alarm, patience) {
            Ok(()) => {
                counts.done.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => {
                counts.failed.fetch_add(1, Ordering::Relaxed);
                // Warn once, and again when the error changes.
                let why = error.to_string();
                if why != said {
                    tracing::warn!("alarms to {}: {}", printable(output.name()), printable(&why));
                    said = why;
                }
            }
        }
    }
}

impl Exporter {
    /// Sends an alarm to the target of this action.
    pub fn export(&mut self, place: usize, alarm: &AlarmEvent) {
        let target = self.targets.iter().find(|(one, ..)| *one == place);
        let Some((_, sender, _)) = target else { return };
        if sender.try_send(alarm.clone()).is_err() {
            if self.refused == 0 {
                tracing::warn!("an alarm is not exported, as too many wait");
            }
            self.refused += 1;
        }
    }

    /// Sends the waiting alarms, or gives them up soon, after the last alarm.
    pub fn finish(self) -> Exports {
        self.ending.store(true, Ordering::Relaxed);
        for (_, sender, thread) in self.targets {
            drop(sender);
            if thread.join().is_err() {
                tracing::warn!("a thread for alarms panicked; this is a bug");
            }
        }
        Exports {
            alarms_exported: self.counts.done.load(Ordering::Relaxed),
            exports_failed: self.counts.failed.load(Ordering::Relaxed),
            exports_refused: self.refused,
        }
    }
}

impl Exports {
    /// The results for people.
    pub fn text(&self) -> String {
        format!(
            "alarms exported: {}, {} failed, {} given up as too many waited\n",
            amount(self.alarms_exported),
            amount(self.exports_failed),
            amount(self.exports_refused)
        )
    }
}
