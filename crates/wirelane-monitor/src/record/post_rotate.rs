//! `--post-rotate`: a command for every finished file.
//!
//! The capturing process drops the privilege to start programs, so a helper is started before: this program again, with
//! a hidden subcommand. It receives the paths of finished files through a pipe, each terminated by a NUL, runs the
//! commands, and answers through another pipe. It has its own process group, so that Ctrl-C ends the capture and not
//! the commands. It ends when its input ends, after the last command.
//!
//! Its input comes from the process that parses packets. So it has no capabilities and cannot gain any, unless the user
//! has requested root (`--user root`), accepts no path longer than the kernel does, and never makes one part of a
//! command.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::OFlags;
use wirelane::sandbox::Identity;

/// Name of the hidden subcommand.
const SUBCOMMAND: &str = "post-rotate-helper";

/// Bytes of a path, its end included (PATH_MAX).
const LONGEST: u64 = 4096;

/// Counts of the commands.
#[derive(Debug, Default)]
pub struct Outcomes {
    done: AtomicU64,
    failed: AtomicU64,
}

impl Outcomes {
    /// Counts `(done, failed)` so far.
    pub fn now(&self) -> (u64, u64) {
        (self.done.load(Ordering::Relaxed), self.failed.load(Ordering::Relaxed))
    }

    fn count(&self, path: &Path, outcome: &str) {
        if outcome == "ok" {
            self.done.fetch_add(1, Ordering::Relaxed);
        } else {
            self.failed.fetch_add(1, Ordering::Relaxed);
            tracing::warn!("the post-rotate command failed for {}: {outcome}", path.display());
        }
    }
}

/// The helper process, as seen by the capturing process.
pub struct PostRotate {
    child: Child,
    outcomes: Arc<Outcomes>,
    answers: Option<JoinHandle<()>>,
    pipes: Option<(ChildStdin, ChildStdout)>,
}

impl PostRotate {
    /// Starts the helper, as this user. To be called before privileges are dropped, after which no process can be
    /// started.
    pub fn start(command: &str, jobs: u16, identity: Option<Identity>) -> Result<PostRotate> {
        ensure!(!command.trim().is_empty(), "--post-rotate needs a command");
        let mut helper = Command::new("/proc/self/exe");
        if let Some((uid, gid)) = identity.map(|identity| identity.ids()) {
            helper.uid(uid).gid(gid);
        }
        let mut child = helper
            .arg0("wirelane-post-rotate")
            .args([SUBCOMMAND, "--"])
            .args([&jobs.to_string(), command])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .context("starting the helper for --post-rotate")?;
        let stdin = child.stdin.take().context("no pipe to the helper for --post-rotate")?;
        let stdout = child.stdout.take().context("no pipe from the helper for --post-rotate")?;
        // A stopped helper must not block us.
        let flags = rustix::fs::fcntl_getfl(&stdin)?;
        rustix::fs::fcntl_setfl(&stdin, flags | OFlags::NONBLOCK)?;
        Ok(PostRotate { child, outcomes: Arc::default(), answers: None, pipes: Some((stdin, stdout)) })
    }

    /// Counts of the commands.
    pub fn outcomes(&self) -> Arc<Outcomes> {
        Arc::clone(&self.outcomes)
    }

    /// Starts the thread that reads the helper's answers, and returns a function that passes a file to the helper
    /// without blocking. The helper's input ends when the function is dropped. To be called after privileges are
    /// dropped: existing threads keep theirs.
    pub fn listen(&mut self) -> Result<impl FnMut(&Path) + Send + 'static> {
        let (mut stdin, stdout) = self.pipes.take().context("the helper is listened to once")?;
        let counts = Arc::clone(&self.outcomes);
        self.answers = Some(std::thread::Builder::new().name("wl-post-rotate".into()).spawn(move || {
            let mut fields = BufReader::new(stdout).split(0);
            while let (Some(Ok(outcome)), Some(Ok(path))) = (fields.next(), fields.next()) {
                counts
                    .count(Path::new(std::ffi::OsStr::from_bytes(&path)), &String::from_utf8_lossy(&outcome));
            }
        })?);
        let outcomes = Arc::clone(&self.outcomes);
        // The helper has the same working directory, but a path that begins with a dash would be parsed as an option.
        let here = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("."));
        Ok(move |path: &Path| {
            let path = here.join(path);
            let mut message = path.as_os_str().as_bytes().to_vec();
            message.push(0);
            // A write of less than PIPE_BUF is atomic (pipe(7)).
            if let Err(error) = stdin.write(&message) {
                outcomes.count(&path, &format!("the helper that runs it is not running: {error}"));
            }
        })
    }

    /// Waits for the last command, after the sender is dropped. Returns `(done, failed)`.
    pub fn end(mut self) -> Result<(u64, u64)> {
        drop(self.pipes.take());
        ensure!(
            self.answers.take().is_none_or(|answers| answers.join().is_ok()),
            "the thread that counts post-rotate commands panicked; this is a bug"
        );
        let status = self.child.wait().context("waiting for the helper for --post-rotate")?;
        if !status.success() {
            bail!("the helper for --post-rotate ended early: {status}");
        }
        Ok(self.outcomes.now())
    }
}

/// The helper itself: runs `command` in sh for each path on standard input, `jobs` at once.
///
/// # Errors
/// Where paths cannot be read.
pub fn run_helper(jobs: usize, command: &str) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        wirelane::sandbox::without_capabilities()?;
    }
    // A signal to all processes ends the capture, but the last files must still be processed.
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register(signal, Arc::default())?;
    }
    let (sender, paths) = mpsc::channel::<PathBuf>();
    let paths = Mutex::new(paths);
    std::thread::scope(|scope| -> Result<()> {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| {
                loop {
                    // The lock is held while waiting: the other threads would only wait for the same channel.
                    let next = paths.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok(path) = next else { break };
                    let mut answer = run_command(command, &path).into_bytes();
                    answer.push(0);
                    answer.extend_from_slice(path.as_os_str().as_bytes());
                    answer.push(0);
                    // If the reader has ended, the commands must still run.
                    let mut out = io::stdout().lock();
                    let _ = out.write_all(&answer).and_then(|()| out.flush());
                }
            });
        }
        let mut input = BufReader::new(io::stdin().lock());
        loop {
            let mut path = Vec::new();
            let read = input.by_ref().take(LONGEST).read_until(0, &mut path).context("reading paths")?;
            if read == 0 {
                break;
            }
            ensure!(path.pop() == Some(0), "a path is longer than {LONGEST} bytes");
            let path = PathBuf::from(std::ffi::OsString::from_vec(path));
            if sender.send(path).is_err() {
                break;
            }
        }
        drop(sender);
        Ok(())
    })
}

/// Runs the command for one file; returns `ok`, or the error.
fn run_command(command: &str, path: &Path) -> String {
    // The path is an argument and never part of the shell's script.
    let status = Command::new("/bin/sh")
        .args(["-c", &format!("{command} \"$@\""), "sh"])
        .arg(path)
        .stdin(Stdio::null())
        .stdout(io::stderr())
        .status();
    match status {
        Ok(status) if status.success() => "ok".into(),
        Ok(status) => status.to_string(),
        Err(error) => format!("sh cannot be started: {error}"),
    }
}
