//! The files of logs.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::Serialize;
use wirelane_analysis::http::Transaction;

use super::{LOG_FORMATS, LogFormat};
use crate::{AppendFile, Error, Limiter, OnWire, OutputLimit, OutputOptions, Result};

/// A log, as the user writes it: `FORMAT:PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// As it was written, for people.
    pub name: String,
    /// What its lines are.
    pub format: LogFormat,
    /// Its file; `-` is standard output.
    pub path: PathBuf,
}

impl Log {
    /// Reads `FORMAT:PATH`.
    ///
    /// # Errors
    /// [`Error::Log`] with what is wrong and what would be right.
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

/// What has become of the transactions in one log.
#[derive(Clone, Debug, Default, Serialize)]
pub struct LogCounts {
    /// The log, as it was asked for.
    pub target: String,
    /// Lines that were written, of a transaction each.
    pub lines: u64,
    /// Transactions beyond what the log may write.
    pub suppressed: u64,
    /// Transactions that were given up: a full disk, no room to wait.
    pub unwritten: u64,
    /// Transactions that wait for room on the disk: in the end none.
    #[serde(skip_serializing_if = "is_none")]
    pub waiting: u64,
    /// Bytes, those of the header too.
    pub bytes: u64,
    /// What went wrong last.
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
    /// Opens the files. `owner`: whom they are given to. `extra`: names of fields that are kept beside the usual ones.
    /// `limit`: what each log may write. `backlog`: bytes that may wait for room on the disk.
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

    /// The files that are opened again where they are renamed.
    pub fn rotating(&self) -> impl Iterator<Item = &Path> {
        self.outlets.iter().filter_map(|outlet| outlet.file.rotates())
    }

    /// Writes transactions. A file that cannot be written to ends nothing else.
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

    /// Writes what waits.
    pub fn flush(&mut self) {
        self.outlets.iter_mut().for_each(|outlet| outlet.file.flush());
    }

    /// There are no more transactions.
    pub fn finish(&mut self) {
        self.outlets.iter_mut().for_each(|outlet| outlet.file.finish());
    }

    /// What has become of the transactions, in each log.
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

    /// The first log that lacks transactions, and why.
    pub fn failure(&self) -> Option<Error> {
        let broken = self.outlets.iter().find(|outlet| outlet.file.counts().unwritten > 0)?;
        let counts = broken.file.counts();
        let reason = counts.error.clone().unwrap_or_default();
        let missing = format!("{reason}; {} transactions are missing from it", counts.unwritten);
        Some(Error::Log { target: broken.target.clone(), reason: missing })
    }
}
