//! Standard output, which holds results only, and standard error.

use std::io::{self, Write};

use anyhow::{Context, Result};

/// Writes to standard output, and flushes it. A closed pipe (`| head -1`) is not an error.
pub fn print(text: impl AsRef<[u8]>) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_ref()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.context("writing to standard output"),
    }
}

/// Writes a line to standard error. An error is ignored, as it must not end a measurement.
pub fn note(text: &str) {
    let _ = io::stderr().write_all((text.to_owned() + "\n").as_bytes());
}
