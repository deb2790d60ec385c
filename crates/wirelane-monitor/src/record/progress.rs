//! Progress of reading a long file, on a terminal.

use std::io::{IsTerminal, Write, stderr};
use std::time::Duration;

use wirelane::{Capture, FileProgress};

/// A line that is rewritten at every interval. Disabled without an input file, or without a terminal.
pub struct Progress {
    file: Option<FileProgress>,
}

impl Progress {
    /// Creates the progress line of this capture.
    pub fn new(capture: &Capture, json: bool) -> Progress {
        let seen = !json && stderr().is_terminal();
        Progress { file: capture.progress().filter(|_| seen) }
    }

    /// Whether the line is shown.
    pub fn is_shown(&self) -> bool {
        self.file.is_some()
    }

    /// Rewrites the line.
    pub fn show(&self, elapsed: Duration) {
        let Some(file) = &self.file else { return };
        // A failed write is ignored.
        let _ = write!(stderr(), "\r{}\x1b[K", line(file.read(), file.total(), elapsed));
    }

    /// Removes the line.
    pub fn end(&self) {
        if self.is_shown() {
            let _ = write!(stderr(), "\r\x1b[K");
        }
    }
}

fn line(read: u64, total: u64, elapsed: Duration) -> String {
    const MB: f64 = 1e6;
    let (done, all, seconds) = (read.min(total) as f64, total as f64, elapsed.as_secs_f64());
    let share = if total == 0 { 1.0 } else { done / all };
    let rate = if seconds > 0.0 { done / seconds } else { 0.0 };
    let left = if rate > 0.0 { format!(", {:.0} s left", (all - done) / rate) } else { String::new() };
    format!("{:3.0} % of {:.1} MB read, {:.1} MB/s{left}", share * 100.0, all / MB, rate / MB)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_how_far_and_how_long() {
        let ten = Duration::from_secs(10);
        assert_eq!(line(25_000_000, 100_000_000, ten), " 25 % of 100.0 MB read, 2.5 MB/s, 30 s left");
        assert_eq!(line(0, 100_000_000, Duration::ZERO), "  0 % of 100.0 MB read, 0.0 MB/s");
        // The file has grown while it was read.
        assert_eq!(line(7, 5, ten), "100 % of 0.0 MB read, 0.0 MB/s, 0 s left");
    }
}
