//! Standard output, which holds results only.
//!
//! It is an [`AppendFile`]: if it is redirected to a file on a full disk, lines wait and are written completely once
//! there is space; lines beyond the buffer are counted, and the command fails at its end.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use wirelane_export::{AppendFile, OutputOptions};

/// The reader of the output has closed it: `wirelane count | head -1`. Not a failure, and not reported.
#[derive(Debug)]
pub struct ReaderGone;

impl fmt::Display for ReaderGone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the reader of the output has gone")
    }
}

impl std::error::Error for ReaderGone {}

/// Whether to colour this stream: a terminal, unless the user wants no colours (NO_COLOR, no-color.org).
pub fn in_colour(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Standard output; `None` if it cannot be used.
static STANDARD: Mutex<Option<AppendFile>> = Mutex::new(None);

/// Opens standard output, before privileges are dropped. After a failure, each write fails.
pub fn open() {
    let file = AppendFile::open("-".as_ref(), OutputOptions::default(), None, Vec::new());
    *STANDARD.lock().unwrap_or_else(PoisonError::into_inner) = file.ok();
}

/// Writes to standard output, immediately or as soon as it is writable. `text` consists of whole lines.
///
/// # Errors
/// [`ReaderGone`], or an error if standard output is closed.
pub fn print(text: impl AsRef<[u8]>) -> Result<()> {
    let mut standard = STANDARD.lock().unwrap_or_else(PoisonError::into_inner);
    let file = standard.as_mut().context("standard output is closed")?;
    for line in text.as_ref().split_inclusive(|byte| *byte == b'\n') {
        file.append(1, |bytes| bytes.extend_from_slice(line));
    }
    file.flush();
    if file.is_closed() { Err(ReaderGone.into()) } else { Ok(()) }
}

/// Number of lines on standard output that were given up so far for lack of space.
pub fn unwritten() -> u64 {
    let standard = STANDARD.lock().unwrap_or_else(PoisonError::into_inner);
    standard.as_ref().map_or(0, |file| file.counts().unwritten)
}

/// Ends the output: a last attempt to write waiting lines.
///
/// # Errors
/// The number of missing lines, and the reason.
pub fn finish() -> Result<()> {
    let mut standard = STANDARD.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(mut file) = standard.take().filter(|file| !file.is_closed()) else { return Ok(()) };
    file.finish();
    let counts = file.counts();
    ensure!(
        counts.unwritten == 0 || file.is_closed(),
        "standard output: {}; {} missing from it",
        counts.error.as_deref().unwrap_or_default(),
        wirelane_export::words::counted(counts.unwritten, "line")
    );
    Ok(())
}

/// Writes results to standard error, if standard output contains a recording.
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
