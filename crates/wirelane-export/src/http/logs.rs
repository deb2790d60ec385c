//! Log files.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::Serialize;
use wirelane_analysis::http::Transaction;

use super::{LOG_FORMATS, LogFormat};
use crate::words::counted;
use crate::{AppendFile, Error, Limiter, OnWire, OutputLimit, OutputOptions, OutputState, Result};

/// A log, as the user writes it: `FORMAT:PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// The log as the user wrote it.
    pub name: String,
    /// Format of the lines.
    pub format: LogFormat,
    /// Path of the file; `-` is standard output.
    pub path: PathBuf,
}

impl Log {
    /// Parses `FORMAT:PATH`.
    ///
    /// # Errors
    /// [`Error::Log`] with the fault and the expected form.
    pub fn parse(text: &str) -> Result<Log> {
        let names: Vec<&str> = LOG_FORMATS.iter().map(|(name, _)| *name).collect();
        let wrong = |what: String| Error::Log {
            target: text.to_owned(),
            reason: format!("{what}: write FORMAT:PATH, with one of the formats {}", names.join(", ")),
        };
        let (format, path) = text.split_once(':').ok_or_else(|| wrong("the format is missing".into()))?;
        let format = LogFormat::named(format).ok_or_else(|| wrong(format!("'{format}' is not a format")))?;
        if path.is_empty() {
            return Err(wrong("there is no file".into()));
        }
        Ok(Log { name: text.to_owned(), format, path: path.into() })
    }
}

/// Results of the transactions in one log.
#[derive(Clone, Debug, Default, Serialize)]
pub struct LogCounts {
    /// The log, as the user wrote it.
    pub target: String,
    /// Written lines, one per transaction.
    pub lines: u64,
    /// Transactions beyond the log's write limit.
    pub suppressed: u64,
    /// Transactions that were given up: a full disk, or no space in the buffer.
    pub unwritten: u64,
    /// Transactions that wait for space on the disk: 0 at the end.
    #[serde(skip_serializing_if = "is_none")]
    pub waiting: u64,
    /// Bytes, including the header.
    pub bytes: u64,
    /// The last error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

struct Outlet {
    target: String,
    format: LogFormat,
    file: AppendFile,
    limiter: Limiter,
}

/// All logs of one command.
pub struct Logs {
    outlets: Vec<Outlet>,
    extra: Vec<Box<str>>,
    number: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_none(number: &u64) -> bool {
    *number == 0
}

impl std::fmt::Debug for Logs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Logs").field("number", &self.number).finish_non_exhaustive()
    }
}

impl Logs {
    /// Opens the files. `owner`: owner of created files. `extra`: names of header fields that are recorded besides the
    /// usual ones. `limit`: write limit of each log. `backlog`: maximum bytes that wait for space on the disk.
    ///
    /// # Errors
    /// Those of [`AppendFile::open`].
    pub fn open(
        logs: &[Log],
        options: OutputOptions,
        owner: Option<(u32, u32)>,
        extra: Vec<Box<str>>,
        limit: OutputLimit,
        backlog: usize,
    ) -> Result<Logs> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now_ns = now.map_or(0, |now| now.as_nanos() as u64);
        let mut outlets = Vec::new();
        for log in logs {
            let header = log.format.header(now_ns).into_bytes();
            let file = AppendFile::open_lines(&log.path, options, owner, header)?.holding(backlog);
            let (target, limiter) = (log.name.clone(), Limiter::new(limit));
            outlets.push(Outlet { target, format: log.format, file, limiter });
        }
        Ok(Logs { outlets, extra, number: 0 })
    }

    /// The files that are reopened after they were renamed.
    pub fn rotating(&self) -> impl Iterator<Item = &Path> {
        self.outlets.iter().filter_map(|outlet| outlet.file.rotates())
    }

    /// Writes transactions. A file that cannot be written does not affect the others.
    pub fn write(&mut self, transactions: &[Transaction]) {
        for Outlet { format, file, limiter, .. } in &mut self.outlets {
            for (transaction, number) in transactions.iter().zip(self.number + 1..) {
                if !limiter.admits(transaction.wire_bytes()) {
                    continue;
                }
                file.append(1, |text| {
                    let before = text.len();
                    format.line(text, number, transaction, &self.extra);
                    limiter.spent(text.len() - before);
                });
            }
        }
        self.number += transactions.len() as u64;
    }

    /// Writes waiting lines.
    pub fn flush(&mut self) {
        self.outlets.iter_mut().for_each(|outlet| outlet.file.flush());
    }

    /// Ends the files after the last transaction.
    pub fn finish(&mut self) {
        self.outlets.iter_mut().for_each(|outlet| outlet.file.finish());
    }

    /// Results of the transactions, in each log.
    pub fn counts(&self) -> Vec<LogCounts> {
        let counts = |outlet: &Outlet| {
            let counts = outlet.file.counts();
            LogCounts {
                target: outlet.target.clone(),
                lines: counts.written,
                suppressed: outlet.limiter.suppressed(),
                unwritten: counts.unwritten,
                waiting: counts.waiting,
                bytes: counts.bytes,
                error: counts.error.clone(),
            }
        };
        self.outlets.iter().map(counts).collect()
    }

    /// State of each log.
    pub fn states(&self) -> Vec<OutputState> {
        let state = |outlet: &Outlet| {
            let counts = outlet.file.counts();
            OutputState {
                written: counts.written,
                lost: counts.unwritten,
                suppressed: outlet.limiter.suppressed(),
                waiting_bytes: outlet.file.waiting() as u64,
                ..OutputState::new(&outlet.target, outlet.file.failing(), counts.error.as_ref())
            }
        };
        self.outlets.iter().map(state).collect()
    }

    /// The first log with unwritten transactions, and the reason.
    pub fn failure(&self) -> Option<Error> {
        let broken = self.outlets.iter().find(|outlet| outlet.file.counts().unwritten > 0)?;
        let counts = broken.file.counts();
        let reason = counts.error.clone().unwrap_or_default();
        let missing = format!("{reason}; {} missing from it", counted(counts.unwritten, "transaction"));
        Some(Error::Log { target: broken.target.clone(), reason: missing })
    }
}
