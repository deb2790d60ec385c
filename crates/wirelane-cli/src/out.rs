//! Standard output, which holds results only.
//!
//! It is an [`AppendFile`]: while a file that it was redirected to is on a full disk, lines wait and are written once there
//! is room, whole; what finds no room is counted, and the command fails at its end.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use wirelane::escape::printable_lines;
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

/// Bytes of warnings that are held back, at most: the first ones say most.
const HELD: usize = 256 << 10;

/// Warnings that are held back; none where they go to standard error at once.
static HELD_BACK: Mutex<Option<Vec<u8>>> = Mutex::new(None);

/// Where warnings go: standard error, or nowhere yet while a screen is shown on the same terminal.
#[derive(Debug, Default)]
pub struct Warnings;

impl Write for Warnings {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let length = bytes.len();
        let text = warning(&String::from_utf8_lossy(bytes));
        let bytes = text.as_bytes();
        match &mut *HELD_BACK.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(held) if held.len() + bytes.len() <= HELD => held.extend_from_slice(bytes),
            Some(_) => {}
            None => io::stderr().write_all(bytes)?,
        }
        Ok(length)
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// Escapes what a warning quotes. tracing-subscriber escapes C0, DEL and C1 in it, and its own colours are to stay.
fn warning(text: &str) -> String {
    text.split('\u{1b}').map(printable_lines).collect::<Vec<_>>().join("\u{1b}")
}

/// Holds warnings back from now on, where standard error is a terminal.
pub fn hold() {
    if io::stderr().is_terminal() {
        *HELD_BACK.lock().unwrap_or_else(PoisonError::into_inner) = Some(Vec::new());
    }
}

/// Lets the warnings out that were held back.
pub fn release() {
    let held = HELD_BACK.lock().unwrap_or_else(PoisonError::into_inner).take();
    // Nothing is left to do if standard error is closed.
    let _ = io::stderr().write_all(&held.unwrap_or_default());
}

/// The last warning that is held back, without what colours it.
pub fn last_held() -> Option<String> {
    let held = HELD_BACK.lock().unwrap_or_else(PoisonError::into_inner);
    let text = String::from_utf8_lossy(held.as_ref()?).into_owned();
    let line = text.lines().rfind(|line| !line.trim().is_empty())?;
    Some(without_colours(line))
}

/// A line without its escape sequences of colours (`ESC [ ... m`).
fn without_colours(line: &str) -> String {
    let mut parts = line.split("\u{1b}[");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        let code = part.find(|c: char| c != ';' && !c.is_ascii_digit());
        match code.map(|at| part.split_at(at)) {
            Some((_, rest)) if rest.starts_with('m') => text + &rest[1..],
            _ => text + "\u{1b}[" + part,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_go_and_other_sequences_stay_to_be_escaped() {
        assert_eq!(without_colours("\u{1b}[33m WARN\u{1b}[0m a\u{1b}[1;2mb"), " WARN ab");
        assert_eq!(without_colours("a\u{1b}[2Jb\u{1b}[9"), "a\u{1b}[2Jb\u{1b}[9");
    }
}
