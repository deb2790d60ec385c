//! Standard output, which holds results only.
//!
//! It is an [`AppendFile`]: while a file that it was redirected to is on a full disk, lines wait and are written once there
//! is room, whole; what finds no room is counted, and the command fails at its end.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use wirelane_export::{AppendFile, OutputOptions};

/// Whoever read the output has gone: `wirelane count | head -1`. No failure, and nothing to tell anybody.
#[derive(Debug)]
pub struct ReaderGone;

impl fmt::Display for ReaderGone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the reader of the output has gone")
    }
}

impl std::error::Error for ReaderGone {}

/// Whether to colour what goes here: a terminal, unless the user wants no colours (NO_COLOR, no-color.org).
pub fn in_colour(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Standard output; none where it cannot be used.
static STANDARD: Mutex<Option<AppendFile>> = Mutex::new(None);

/// Opens standard output, before rights are given up. Where that fails, each write says so.
pub fn open() {
    let file = AppendFile::open("-".as_ref(), OutputOptions::default(), None, Vec::new());
    *STANDARD.lock().unwrap_or_else(PoisonError::into_inner) = file.ok();
}

/// Writes to standard output, at once, or as soon as it can be written to. `text` is lines.
///
/// # Errors
/// [`ReaderGone`]; where there is no standard output.
pub fn print(text: impl AsRef<[u8]>) -> Result<()> {
    let mut standard = STANDARD.lock().unwrap_or_else(PoisonError::into_inner);
    let file = standard.as_mut().context("standard output is closed")?;
    for line in text.as_ref().split_inclusive(|byte| *byte == b'\n') {
        file.append(1, |bytes| bytes.extend_from_slice(line));
    }
    file.flush();
    if file.is_closed() { Err(ReaderGone.into()) } else { Ok(()) }
}

/// Lines on standard output that were given up so far, as there was no room for them.
pub fn unwritten() -> u64 {
    let standard = STANDARD.lock().unwrap_or_else(PoisonError::into_inner);
    standard.as_ref().map_or(0, |file| file.counts().unwritten)
}

/// The end: a last attempt to write what waits.
///
/// # Errors
/// How many lines are missing, and why.
pub fn finish() -> Result<()> {
    let mut standard = STANDARD.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(mut file) = standard.take().filter(|file| !file.is_closed()) else { return Ok(()) };
    file.finish();
    let counts = file.counts();
    ensure!(
        counts.unwritten == 0 || file.is_closed(),
        "standard output: {}; {} lines are missing from it",
        counts.error.as_deref().unwrap_or_default(),
        counts.unwritten
    );
    Ok(())
}

/// Writes to standard error what belongs to the results, where standard output holds a recording.
///
/// # Errors
/// As [`print`].
pub fn print_aside(text: &str) -> Result<()> {
    written(io::stderr().write_all(text.as_bytes()), "writing to standard error")
}

fn written(result: io::Result<()>, what: &'static str) -> Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(ReaderGone.into()),
        result => result.context(what),
    }
}
