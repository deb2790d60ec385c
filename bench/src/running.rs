//! A receiver that runs: when this is dropped, however that comes, no process and no file of it is left.
//!
//! It may be several processes, of which one does not end with the other (pmacctd and its plug-in). They are a process group:
//! receivers have a session of their own ([`crate::bed::Bed::receiver`]).

use std::fs;
use std::process::Command;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process_group};
use wirelane_tests::Child;

use crate::probes;
use crate::receiver::Receiver;

/// See the head of this file.
#[derive(Debug)]
pub struct Running {
    receiver: Receiver,
    child: Option<Child>,
}

impl Running {
    /// Nothing has been started or made for it yet.
    pub fn new(receiver: Receiver) -> Running {
        Running { receiver, child: None }
    }

    /// Starts it. The command begins a session.
    ///
    /// # Errors
    /// Where it cannot be started.
    pub fn start(&mut self, command: &mut Command) -> Result<&mut Child> {
        Ok(self.child.insert(Child::spawn(command)?))
    }

    /// The process that was started.
    ///
    /// # Errors
    /// Where none was, or it has been taken.
    pub fn child(&self) -> Result<&Child> {
        self.child.as_ref().with_context(|| format!("{} does not run", self.receiver.label()))
    }

    /// The process that was started, to be waited for.
    ///
    /// # Errors
    /// Those of [`Running::child`].
    pub fn take(&mut self) -> Result<Child> {
        self.child.take().with_context(|| format!("{} does not run", self.receiver.label()))
    }

    /// Kills all of its processes.
    ///
    /// # Errors
    /// Where there are none.
    pub fn kill(&self) -> Result<()> {
        // It has not been waited for, so its number is nobody else's.
        let group =
            i32::try_from(self.child()?.pid()).ok().and_then(Pid::from_raw).context("no process id")?;
        kill_process_group(group, Signal::KILL).with_context(|| format!("killing {}", self.receiver.label()))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.child.is_some() {
            // Fails where it has no session yet, and so no other process: its own is killed below.
            let _ = self.kill();
            self.child = None;
        }
        for file in self.receiver.file().into_iter().chain(probes::files(self.receiver)) {
            // Not every trial gets as far as making them.
            let _ = if file.is_dir() { fs::remove_dir_all(file) } else { fs::remove_file(file) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::process::children;

    #[test]
    fn nothing_is_left_of_a_receiver_whose_trial_fails() {
        let mut running = Running::new(Receiver::Pmacctd);
        let files = probes::files(Receiver::Pmacctd);
        assert!(!files.is_empty());
        for file in &files {
            fs::write(file, "settings").unwrap();
        }
        // As pmacctd is: another process, that does not end with the first one.
        let both = "sleep 600 & echo '{\"ready\": true}'; wait";
        let child = running.start(Command::new("setsid").args(["sh", "-c", both])).unwrap();
        child.wait_ready(Duration::from_secs(20)).unwrap();
        let other = children(child.pid());
        assert_eq!(other.len(), 1);
        drop(running);
        // Whoever takes in orphans waits for it.
        let lives = || {
            let stat = fs::read_to_string(format!("/proc/{}/stat", other[0])).unwrap_or_default();
            stat.contains("(sleep)") && !stat.contains("(sleep) Z")
        };
        let start = Instant::now();
        while lives() {
            assert!(start.elapsed() < Duration::from_secs(20), "the other process goes on");
            std::thread::sleep(Duration::from_millis(2));
        }
        assert!(files.iter().all(|file| !file.exists()));
    }
}
