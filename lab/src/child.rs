//! A process of the test-bed: its output is stored, and its end is guaranteed.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::watcher;

/// Maximum stored output of a process; the rest is read and dropped.
const MOST_SAID: usize = 8 << 20;

/// A running process. When dropped, it is killed with its whole session, and waited for.
#[derive(Debug)]
pub struct Child {
    name: String,
    process: std::process::Child,
    lines: Receiver<String>,
    said: String,
}

/// Result of a finished process.
#[derive(Debug)]
pub struct Finished {
    /// Exit status.
    pub status: ExitStatus,
    /// Output on standard output and standard error.
    pub said: String,
}

impl Child {
    /// Starts a process without input; `name` is for messages.
    pub fn spawn(name: &str, command: &mut Command) -> Result<Child> {
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().with_context(|| format!("starting {name}"))?;
        let known = watcher::started(process.id());
        let (sender, lines) = channel();
        if let Some(output) = process.stdout.take() {
            pass_on(output, sender.clone());
        }
        if let Some(errors) = process.stderr.take() {
            pass_on(errors, sender);
        }
        // If this is an error, dropping the child kills it.
        let child = Child { name: name.to_owned(), process, lines, said: String::new() };
        known.map(|()| child)
    }

    /// Id of the process and of its session.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Waits for a line that satisfies the condition, within this time.
    pub fn wait_for(&mut self, timeout: Duration, mut is_it: impl FnMut(&str) -> bool) -> Result<()> {
        let end = Instant::now() + timeout;
        loop {
            match self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    let found = is_it(&line);
                    self.keep(&line);
                    if found {
                        return Ok(());
                    }
                }
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
                    bail!("{} was not ready within {timeout:?}; it said: {}", self.name, self.said.trim())
                }
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => {
                    bail!("{} ended before it was ready: {}", self.name, self.said.trim())
                }
            }
        }
    }

    /// Whether it is still running.
    pub fn is_running(&mut self) -> Result<bool> {
        Ok(self.process.try_wait().context("waiting")?.is_none())
    }

    /// Output so far.
    pub fn said(&mut self) -> &str {
        while let Ok(line) = self.lines.try_recv() {
            self.keep(&line);
        }
        &self.said
    }

    fn keep(&mut self, line: &str) {
        if self.said.len() + line.len() < MOST_SAID {
            self.said += line;
            self.said.push('\n');
        }
    }

    /// Waits for its end.
    pub fn finish(mut self, timeout: Duration) -> Result<Finished> {
        let end = Instant::now() + timeout;
        // Wait for the process and not for the end of its output, which its descendants may keep open.
        let status = loop {
            if let Some(status) = self.process.try_wait().context("waiting")? {
                break status;
            }
            if Instant::now() >= end {
                let said = self.said().trim().to_owned();
                bail!("{} did not end within {timeout:?} and was killed; it said: {said}", self.name);
            }
            thread::sleep(Duration::from_millis(2));
        };
        // Its last lines may come late on a busy machine; at the end of its output the wait ends.
        let rest = Instant::now() + Duration::from_secs(2);
        while let Ok(line) = self.lines.recv_timeout(rest.saturating_duration_since(Instant::now())) {
            self.keep(&line);
        }
        // Descendants get time to clean up; the remaining ones are then killed.
        let most = Instant::now() + Duration::from_secs(1);
        while i32::try_from(self.pid()).is_ok_and(|pid| killpg(Pid::from_raw(pid), None).is_ok())
            && Instant::now() < most
        {
            thread::sleep(Duration::from_millis(2));
        }
        let said = std::mem::take(&mut self.said);
        Ok(Finished { status, said })
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if let Ok(pid) = i32::try_from(self.process.id()) {
            // Its session, if it has created one; an ended session has no processes.
            let _ = killpg(Pid::from_raw(pid), Signal::SIGKILL);
        }
        let _ = self.process.kill();
        // The process id may be reused from here on.
        watcher::ended(self.process.id());
        let _ = self.process.wait();
    }
}

/// Starts a thread that reads lines until the end of the output.
fn pass_on(output: impl Read + Send + 'static, lines: Sender<String>) {
    thread::spawn(move || {
        let mut reader = BufReader::new(output);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0) {
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            if lines.send(text).is_err() {
                break;
            }
            line.clear();
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Child {
        Child::spawn("sh", Command::new("setsid").args(["sh", "-c", script])).unwrap()
    }

    #[test]
    fn what_it_says_is_kept_and_waited_for() {
        let mut child = shell("echo one; echo two >&2; echo ready; echo late");
        child.wait_for(Duration::from_secs(20), |line| line == "ready").unwrap();
        let finished = child.finish(Duration::from_secs(20)).unwrap();
        assert!(finished.status.success());
        let mut lines: Vec<&str> = finished.said.lines().collect();
        lines.sort_unstable();
        assert_eq!(lines, ["late", "one", "ready", "two"]);
    }

    #[test]
    fn one_that_ends_or_hangs_is_told_with_its_words() {
        let mut child = shell("echo no such device >&2; exit 1");
        let error = child.wait_for(Duration::from_secs(20), |_| false).unwrap_err().to_string();
        assert!(error.contains("no such device"), "{error}");
        let error = shell("echo busy; sleep 60").finish(Duration::from_millis(300)).unwrap_err().to_string();
        assert!(error.contains("did not end"), "{error}");
    }

    #[test]
    fn what_it_has_started_ends_with_it() {
        let mut child = shell("sleep 61 & echo $!; wait");
        let mut sleeper = 0;
        child
            .wait_for(Duration::from_secs(20), |line| line.parse().map(|pid: u32| sleeper = pid).is_ok())
            .unwrap();
        assert!(std::fs::exists(format!("/proc/{sleeper}")).unwrap());
        drop(child);
        let state = || std::fs::read_to_string(format!("/proc/{sleeper}/stat")).unwrap_or_default();
        let end = Instant::now() + Duration::from_secs(20);
        // Gone, or a zombie that its new parent has not reaped.
        while !(state().is_empty() || state().contains(") Z ")) {
            assert!(Instant::now() < end, "it still runs");
            thread::sleep(Duration::from_millis(5));
        }
    }
}
