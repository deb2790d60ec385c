//! The files of logs.

use std::io::Write as _;
use std::path::PathBuf;
use std::time::SystemTime;

use serde::Serialize;
use wirelane_analysis::http::Transaction;

use super::{LOG_FORMATS, LogFormat};
use crate::{Error, Output, OutputOptions, Result};

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
        let (format, path) = text.split_once(':').ok_or_else(|| wrong("there is no format".into()))?;
        let format = LogFormat::named(format).ok_or_else(|| wrong(format!("'{format}' is no format")))?;
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
    /// Transactions that were not.
    pub unwritten: u64,
    /// Bytes, those of the header too.
    pub bytes: u64,
    /// What went wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

struct Outlet {
    format: LogFormat,
    /// `None`: it could not be written on.
    output: Option<Output>,
    counts: LogCounts,
}

/// All logs of one command.
pub struct Logs {
    outlets: Vec<Outlet>,
    extra: Vec<Box<str>>,
    text: Vec<u8>,
    number: u64,
}

impl std::fmt::Debug for Logs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Logs").field("number", &self.number).finish_non_exhaustive()
    }
}

impl Logs {
    /// Opens the files. `owner`: whom they are given to. `extra`: names of fields that are kept beside the usual ones.
    ///
    /// # Errors
    /// Those of [`Output::open`].
    pub fn open(
        logs: &[Log],
        options: OutputOptions,
        owner: Option<(u32, u32)>,
        extra: Vec<Box<str>>,
    ) -> Result<Logs> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now_ns = now.map_or(0, |now| now.as_nanos() as u64);
        let mut outlets = Vec::new();
        for log in logs {
            let mut output = Output::open(&log.path, options)?;
            if let Some((uid, gid)) = owner {
                output.give_to(uid, gid)?;
            }
            let header = log.format.header(now_ns);
            output.write_all(header.as_bytes())?;
            let counts =
                LogCounts { target: log.name.clone(), bytes: header.len() as u64, ..LogCounts::default() };
            outlets.push(Outlet { format: log.format, output: Some(output), counts });
        }
        Ok(Logs { outlets, extra, text: Vec::new(), number: 0 })
    }

    /// Writes transactions. A file that cannot be written on ends nothing else, and is counted.
    pub fn write(&mut self, transactions: &[Transaction]) {
        for outlet in &mut self.outlets {
            let Some(output) = &mut outlet.output else {
                outlet.counts.unwritten += transactions.len() as u64;
                continue;
            };
            self.text.clear();
            for (transaction, number) in transactions.iter().zip(self.number + 1..) {
                outlet.format.line(&mut self.text, number, transaction, &self.extra);
            }
            match output.write_all(&self.text) {
                Ok(()) => {
                    outlet.counts.lines += transactions.len() as u64;
                    outlet.counts.bytes += self.text.len() as u64;
                }
                Err(error) => {
                    outlet.counts.unwritten += transactions.len() as u64;
                    outlet.fail(&error);
                }
            }
        }
        self.number += transactions.len() as u64;
    }

    /// Nothing comes at the moment, or ever: readers get what there is.
    pub fn flush(&mut self) {
        for outlet in &mut self.outlets {
            if let Some(Err(error)) = outlet.output.as_mut().map(|output| output.flush()) {
                outlet.fail(&error);
            }
        }
    }

    /// What has become of the transactions, in each log.
    pub fn counts(&self) -> Vec<LogCounts> {
        self.outlets.iter().map(|outlet| outlet.counts.clone()).collect()
    }

    /// The first log that could not be written, and why.
    pub fn failure(&self) -> Option<Error> {
        let broken = self.outlets.iter().find(|outlet| outlet.output.is_none())?;
        let counts = &broken.counts;
        let reason = counts.error.clone().unwrap_or_default();
        let missing = format!("{reason}; {} transactions may be missing from it", counts.unwritten);
        Some(Error::Log { target: counts.target.clone(), reason: missing })
    }
}

impl Outlet {
    fn fail(&mut self, error: &std::io::Error) {
        tracing::warn!("{}: {error}", self.counts.target);
        // How much of it reached the disk is not known: none of it is promised.
        self.counts.unwritten += std::mem::take(&mut self.counts.lines);
        self.counts.error = Some(error.to_string());
        self.output = None;
    }
}
