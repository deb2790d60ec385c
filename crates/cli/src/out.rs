//! Standard output, which holds results only.

use std::fmt;
use std::io::{self, IsTerminal, Write};

use anyhow::{Context, Result};

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

/// Writes to standard output, at once.
///
/// # Errors
/// [`ReaderGone`], or what the kernel says.
pub fn print(text: impl AsRef<[u8]>) -> Result<()> {
    let mut out = io::stdout().lock();
    written(out.write_all(text.as_ref()).and_then(|()| out.flush()), "writing to standard output")
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
