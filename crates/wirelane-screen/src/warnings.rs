//! Warnings on standard error, which are held back while a live view is on the same terminal.

use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, PoisonError};

use wirelane::escape::printable_lines;

/// Bytes of warnings that are held back, at most: the first ones say most.
const HELD: usize = 256 << 10;

/// Warnings that are held back; none where they go to standard error at once.
static HELD_BACK: Mutex<Option<Vec<u8>>> = Mutex::new(None);

/// Destination of warnings: standard error, or nowhere yet while a screen is shown on the same terminal.
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
