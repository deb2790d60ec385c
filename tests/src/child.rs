//! A process under test: its JSON lines are read with a time-out, and it is always ended.

use std::io::{BufRead, BufReader, Read};
use std::process::{ChildStderr, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::sys::{self, Signal};

/// A running process. When dropped, it is killed by its pid and waited for.
#[derive(Debug)]
pub struct Child {
    name: String,
    process: std::process::Child,
    lines: Receiver<String>,
    errors: Option<JoinHandle<String>>,
}

/// Exit status and remaining output of a process that has ended.
#[derive(Debug)]
pub struct Finished {
    /// Exit status.
    pub status: ExitStatus,
    /// Lines of standard output that had not been read before.
    pub lines: Vec<String>,
    /// All of standard error.
    pub stderr: String,
}

impl Finished {
    /// The remaining lines as JSON.
    ///
    /// # Errors
    /// If one of the lines is not JSON.
    pub fn json(&self) -> Result<Vec<Value>> {
        self.lines.iter().map(|line| parse(line)).collect()
    }

    /// The last line as JSON: the one with `"final": true` for a command that ended well.
    ///
    /// # Errors
    /// If there is no line left, or it is not JSON.
    pub fn last_json(&self) -> Result<Value> {
        parse(self.lines.last().with_context(|| format!("no output; standard error: {}", self.stderr))?)
    }
}

impl Child {
    /// Starts `command` with its output piped and no input.
    ///
    /// # Errors
    /// If the command cannot be started.
    pub fn spawn(command: &mut Command) -> Result<Child> {
        let name = format!("{command:?}");
        let mut process = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {name}"))?;
        let stdout = process.stdout.take().context("no pipe for standard output")?;
        let stderr = process.stderr.take().context("no pipe for standard error")?;
        Ok(Child { name, process, lines: read_lines(stdout), errors: Some(read_all(stderr)) })
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// The next line of standard output; `None` at its end.
    ///
    /// # Errors
    /// If no line came in time.
    pub fn next_line(&self, timeout: Duration) -> Result<Option<String>> {
        match self.lines.recv_timeout(timeout) {
            Ok(line) => Ok(Some(line)),
            Err(RecvTimeoutError::Disconnected) => Ok(None),
            Err(RecvTimeoutError::Timeout) => bail!("no line from {} within {timeout:?}", self.name),
        }
    }

    /// The next line of standard output as JSON; `None` at its end.
    ///
    /// # Errors
    /// If no line came in time, or it is not JSON.
    pub fn next_json(&self, timeout: Duration) -> Result<Option<Value>> {
        self.next_line(timeout)?.map(|line| parse(&line)).transpose()
    }

    /// Waits for the line `{"ready": true}` and skips others.
    ///
    /// # Errors
    /// If the line did not come in time, or the process ended first; the error has its standard error.
    pub fn wait_ready(&mut self, timeout: Duration) -> Result<()> {
        let end = Instant::now() + timeout;
        loop {
            match self.next_line(end.saturating_duration_since(Instant::now()))? {
                Some(line) => {
                    if serde_json::from_str::<Value>(&line).is_ok_and(|value| value["ready"] == true) {
                        return Ok(());
                    }
                }
                None => {
                    let stderr = self.errors.take().map(join).unwrap_or_default();
                    bail!("{} ended before it was ready: {}", self.name, stderr.trim());
                }
            }
        }
    }

    /// Sends the process a signal.
    ///
    /// # Errors
    /// If the process has already been waited for.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        sys::signal(self.pid(), signal).with_context(|| format!("{signal:?} to {}", self.name))
    }

    /// Everything on standard error of a process that has ended.
    pub fn errors(&mut self) -> String {
        self.errors.take().map(join).unwrap_or_default()
    }

    /// True while the process runs.
    ///
    /// # Errors
    /// If the kernel cannot report its state.
    pub fn is_running(&mut self) -> Result<bool> {
        Ok(self.process.try_wait()?.is_none())
    }

    /// Waits for the process to end.
    ///
    /// # Errors
    /// If the process does not end in time: then it is killed.
    pub fn finish(mut self, timeout: Duration) -> Result<Finished> {
        let end = Instant::now() + timeout;
        let mut lines = Vec::new();
        // Standard output ends before the process does. It is read to its end, because a full pipe would block the
        // process.
        loop {
            match self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) => lines.push(line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    bail!("{} did not end within {timeout:?}; it has been killed", self.name)
                }
            }
        }
        let status = loop {
            if let Some(status) = self.process.try_wait()? {
                break status;
            }
            if Instant::now() >= end {
                bail!("{} closed its output but did not end within {timeout:?}", self.name);
            }
            thread::sleep(Duration::from_millis(2));
        };
        let stderr = self.errors.take().map(join).unwrap_or_default();
        Ok(Finished { status, lines, stderr })
    }

    /// Ends the process with SIGTERM and waits for it.
    ///
    /// # Errors
    /// If the process does not end in time: then it is killed.
    pub fn terminate(self, timeout: Duration) -> Result<Finished> {
        self.signal(Signal::Terminate)?;
        self.finish(timeout)
    }
}

impl Finished {
    /// Lines on standard error other than the advice on native XDP.
    pub fn complaints(&self) -> Vec<&str> {
        self.stderr.lines().filter(|line| !line.contains("native XDP switches off")).collect()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // Both fail only if the process has already ended and been waited for.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn read_lines(stdout: ChildStdout) -> Receiver<String> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    receiver
}

fn read_all(mut stderr: ChildStderr) -> JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // Bytes that were read before an error are kept, to be shown.
        let _ = stderr.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

fn join(reader: JoinHandle<String>) -> String {
    reader.join().unwrap_or_default()
}

fn parse(line: &str) -> Result<Value> {
    serde_json::from_str(line).with_context(|| format!("not JSON: {line}"))
}
