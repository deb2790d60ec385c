//! Warnings on standard error, which are held back while a live view is on the same terminal, and which have their level
//! where the journal of systemd reads them.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::sync::{Mutex, OnceLock, PoisonError};

use wirelane::escape::printable_lines;

/// Bytes of warnings that are held back, at most: the first ones say most.
const HELD: usize = 256 << 10;

/// Warnings that are held back; none where they go to standard error at once.
static HELD_BACK: Mutex<Option<Vec<u8>>> = Mutex::new(None);

/// Priority of errors (syslog(3)).
pub const ERROR: u8 = 3;
/// Priority of warnings.
pub const WARNING: u8 = 4;
/// Priority of messages that report normal work.
pub const INFO: u8 = 6;
/// Priority of messages for the search for faults.
pub const DEBUG: u8 = 7;

/// Destination of warnings: standard error, or nowhere yet while a screen is shown on the same terminal.
#[derive(Debug)]
pub struct Warnings {
    priority: u8,
}

impl Warnings {
    /// For messages of this priority.
    pub fn of(priority: u8) -> Warnings {
        Warnings { priority }
    }
}

/// The prefix of a line of this priority (sd-daemon(3)); empty where standard error is not the journal.
pub fn prefix(priority: u8) -> String {
    static JOURNAL: OnceLock<bool> = OnceLock::new();
    if *JOURNAL.get_or_init(is_journal) { format!("<{priority}>") } else { String::new() }
}

/// Whether standard error is the stream to the journal whose device and inode JOURNAL_STREAM has (systemd.exec(5)).
fn is_journal() -> bool {
    let Some(expected) = std::env::var("JOURNAL_STREAM").ok() else { return false };
    let file = io::stderr().as_fd().try_clone_to_owned().map(File::from).and_then(|file| file.metadata());
    file.is_ok_and(|file| expected == format!("{}:{}", file.dev(), file.ino()))
}

impl Write for Warnings {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let length = bytes.len();
        let text = warning(&String::from_utf8_lossy(bytes));
        let prefix = prefix(self.priority);
        let text = text.split_inclusive('\n').map(|line| format!("{prefix}{line}")).collect::<String>();
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
