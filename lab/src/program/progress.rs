//! Progress of a suite: a bar on a terminal, lines elsewhere, both on standard error.

use std::io::IsTerminal;
use std::time::Duration;

use crate::run::Progress;
use crate::trial::Measured;
use indicatif::{ProgressBar, ProgressStyle};
use wirelane::escape::printable;

use super::out;

/// Display of the progress.
pub struct Shown {
    bar: Option<ProgressBar>,
}

impl Shown {
    /// On standard error.
    pub fn new() -> Shown {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(0);
            let style = ProgressStyle::with_template("[{bar:24}] {pos}/{len}  {msg}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> "));
            bar
        });
        Shown { bar }
    }

    /// Removes the bar.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    fn line(&self, text: &str) {
        let text = printable(text).into_owned();
        match &self.bar {
            Some(bar) => bar.suspend(|| out::note(&text)),
            None => out::note(&text),
        }
    }
}

/// Duration as text like `1h 5m`, in whole seconds.
pub fn time(duration: Duration) -> String {
    humantime::format_duration(Duration::from_secs(duration.as_secs())).to_string()
}

impl Progress for Shown {
    fn begins(&mut self, ended: usize, of: usize, left: Duration, what: &str) {
        match &self.bar {
            Some(bar) => {
                bar.set_length(of as u64);
                bar.set_position(ended as u64);
                bar.set_message(printable(&format!("{} left: {what}", time(left))).into_owned());
            }
            None => self.line(&format!("{} of {of}, about {} left: {what}", ended + 1, time(left))),
        }
    }

    fn ended(&mut self, what: &str, measured: &Measured) {
        if !measured.fault.is_empty() {
            self.line(&format!("{what} went wrong: {}", measured.fault));
        } else if !measured.invalid.is_empty() && self.bar.is_none() {
            self.line(&format!("{what} does not count: {}", measured.invalid));
        }
    }

    fn note(&mut self, text: &str) {
        self.line(text);
    }
}
