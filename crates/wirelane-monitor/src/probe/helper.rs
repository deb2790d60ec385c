//! Helper process of a probe or a monitor: reads its configuration again and runs programs, which the sandbox forbids.
//!
//! The capturing process drops these privileges, so a helper is started before: this program again, with a hidden
//! subcommand, as the user that the command changes to. It receives requests through a non-blocking pipe, and answers
//! through another. Both carry frames: a length of four bytes, a letter, and the contents.

use std::io::{self, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::fs::OFlags;
use serde::Serialize;
use wirelane::sandbox::Identity;
use wirelane_probe::config::LONGEST;

/// Maximum length of an answer.
const LONGEST_ANSWER: usize = 256 << 20;
/// Maximum concurrent programs.
const JOBS: usize = 4;
/// Maximum waiting programs.
const WAITING: usize = 64;
/// Maximum length of a request: a pipe accepts it completely or not at all (PIPE_BUF, pipe(7)).
const LONGEST_QUESTION: usize = 4096;
/// Maximum time to wait for the configuration.
const PATIENCE: Duration = Duration::from_secs(10);
/// Interval of checks whether a program has ended.
const LOOK: Duration = Duration::from_millis(10);

/// What became of programs.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Commands {
    /// Ended with status 0.
    pub commands_done: u64,
    /// Ended otherwise, or could not be started.
    pub commands_failed: u64,
    /// Killed because of the time limit.
    pub commands_timed_out: u64,
    /// Not started, because too many were running and waiting.
    pub commands_refused: u64,
}

impl Commands {
    /// Number of all requested programs.
    pub fn sum(&self) -> u64 {
        self.commands_done + self.commands_failed + self.commands_timed_out + self.commands_refused
    }
}

/// Counted by the listening thread and by the requesting one; read when both are done. Relaxed: these are numbers, and
/// threads are joined before they are summed.
#[derive(Debug, Default)]
struct Counts {
    done: AtomicU64,
    failed: AtomicU64,
    timed_out: AtomicU64,
    refused: AtomicU64,
}

impl Counts {
    fn count(&self, letter: u8, what: &str) {
        let counter = match letter {
            DONE => &self.done,
            TIMED_OUT => &self.timed_out,
            REFUSED => &self.refused,
            _ => &self.failed,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        if letter != DONE {
            tracing::warn!("an alarm's program: {}", wirelane_screen::table::printable(what));
        }
    }
}

/// Requests.
const RUN: u8 = b'R';
const CONFIG: u8 = b'C';
/// Answers.
const TEXT: u8 = b'T';
const UNREADABLE: u8 = b'U';
const DONE: u8 = b'D';
const FAILED: u8 = b'F';
const TIMED_OUT: u8 = b'L';
const REFUSED: u8 = b'N';

fn frame(letter: u8, what: &[u8]) -> Vec<u8> {
    let mut bytes = ((what.len() + 1) as u32).to_le_bytes().to_vec();
    bytes.push(letter);
    bytes.extend_from_slice(what);
    bytes
}

/// The next frame of at most this length; `None` at the end.
fn next_frame(from: &mut impl Read, most: usize) -> io::Result<Option<(u8, Vec<u8>)>> {
    let mut length = [0; 4];
    match from.read_exact(&mut length) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let length = u32::from_le_bytes(length) as usize;
    if length == 0 || length > most {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a frame of invalid length"));
    }
    let mut bytes = vec![0; length];
    from.read_exact(&mut bytes)?;
    let what = bytes.split_off(1);
    Ok(Some((bytes[0], what)))
}

/// The started helper, before privileges are dropped.
pub struct Helper {
    child: Child,
    stdin: ChildStdin,
    stdout: ChildStdout,
}

impl Helper {
    /// Starts the helper, a hidden subcommand, as this user, with this configuration.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(subcommand: &str, identity: Option<Identity>, config: Option<&Path>) -> Result<Helper> {
        let mut helper = Command::new("/proc/self/exe");
        if let Some((uid, gid)) = identity.map(|identity| identity.ids()) {
            helper.uid(uid).gid(gid);
        }
        helper.arg0(format!("wirelane-{subcommand}")).args([subcommand, "--"]).args(config);
        let mut child = helper
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .context("starting the helper process")?;
        let stdin = child.stdin.take().context("no pipe to the helper process")?;
        let stdout = child.stdout.take().context("no pipe from the helper process")?;
        // A stopped helper must not block us.
        let flags = rustix::fs::fcntl_getfl(&stdin)?;
        rustix::fs::fcntl_setfl(&stdin, flags | OFlags::NONBLOCK)?;
        Ok(Helper { child, stdin, stdout })
    }

    /// Starts the listening thread. To be called after privileges are dropped: existing threads keep theirs.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn listen(self) -> Result<Listening> {
        let counts = Arc::new(Counts::default());
        let (answers, inbox) = mpsc::channel();
        let counting = Arc::clone(&counts);
        let stdout = self.stdout;
        let thread = std::thread::Builder::new().name("wl-helper".into()).spawn(move || {
            let mut stdout = BufReader::new(stdout);
            while let Ok(Some((letter, what))) = next_frame(&mut stdout, LONGEST_ANSWER) {
                let text = String::from_utf8_lossy(&what).into_owned();
                let answered = match letter {
                    TEXT => answers.send(Ok(text)).is_ok(),
                    UNREADABLE => answers.send(Err(text)).is_ok(),
                    _ => {
                        counting.count(letter, &text);
                        true
                    }
                };
                if !answered {
                    // The requests have ended; programs are still counted.
                    continue;
                }
            }
        })?;
        let texts = Arc::new(Mutex::new(inbox));
        Ok(Listening { child: self.child, stdin: Some(self.stdin), counts, texts, thread })
    }
}

/// Texts of configurations, or error messages.
type Texts = mpsc::Receiver<std::result::Result<String, String>>;

/// The helper with its listening thread.
pub struct Listening {
    child: Child,
    stdin: Option<ChildStdin>,
    counts: Arc<Counts>,
    texts: Arc<Mutex<Texts>>,
    thread: JoinHandle<()>,
}

/// A requested configuration.
pub struct Asked {
    sent: bool,
    texts: Arc<Mutex<Texts>>,
}

impl Asked {
    /// Waits for the text of the configuration, or an error message.
    pub fn wait(self) -> std::result::Result<String, String> {
        if !self.sent {
            return Err("the helper that reads it is not running".into());
        }
        let texts = self.texts.lock().unwrap_or_else(PoisonError::into_inner);
        texts.recv_timeout(PATIENCE).unwrap_or_else(|_| Err("the helper that reads it did not answer".into()))
    }
}

impl Listening {
    fn send(&mut self, letter: u8, what: &[u8]) -> bool {
        let bytes = frame(letter, what);
        let Some(stdin) = &mut self.stdin else { return false };
        bytes.len() <= LONGEST_QUESTION && stdin.write(&bytes).is_ok_and(|written| written == bytes.len())
    }

    /// Requests to run a program, unless too many are running.
    pub fn run(&mut self, words: &[String], timeout_ns: u64) {
        let mut what = timeout_ns.to_le_bytes().to_vec();
        what.extend_from_slice(words.join("\0").as_bytes());
        if !self.send(RUN, &what) {
            self.counts.count(
                REFUSED,
                "not started: its arguments are too long, or the helper that starts it is not running",
            );
        }
    }

    /// Requests the configuration.
    pub fn ask(&mut self) -> Asked {
        // Late answers to earlier requests must not be taken for the answer to this one.
        while self.texts.lock().unwrap_or_else(PoisonError::into_inner).try_recv().is_ok() {}
        Asked { sent: self.send(CONFIG, &[]), texts: Arc::clone(&self.texts) }
    }

    /// Waits for the last program; each has a time limit.
    pub fn end(mut self) -> Commands {
        drop(self.stdin.take());
        if self.thread.join().is_err() || !self.child.wait().is_ok_and(|status| status.success()) {
            tracing::warn!("the helper that runs programs ended early: some may not have run");
        }
        let number = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Commands {
            commands_done: number(&self.counts.done),
            commands_failed: number(&self.counts.failed),
            commands_timed_out: number(&self.counts.timed_out),
            commands_refused: number(&self.counts.refused),
        }
    }
}

/// The helper of a probe. `config`: the file of the configuration, where it can be read again.
///
/// # Errors
/// Where questions cannot be read.
pub fn run_helper(config: Option<&Path>) -> Result<()> {
    serve(|| read_config(config))
}

/// A helper itself, which answers requests for the configuration with what `read` returns, or its error.
///
/// # Errors
/// Where questions cannot be read.
pub fn serve(read: impl Fn() -> std::result::Result<String, String>) -> Result<()> {
    // Whoever stops the capture by a signal to all wants the last programs to be run as well.
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register(signal, Arc::default())?;
    }
    let (sender, jobs) = mpsc::channel::<Vec<u8>>();
    let (jobs, waiting) = (Mutex::new(jobs), AtomicUsize::new(0));
    std::thread::scope(|scope| -> Result<()> {
        for _ in 0..JOBS {
            scope.spawn(|| {
                loop {
                    // The lock is held while waiting: the other threads would only wait for the same channel.
                    let next = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok(job) = next else { break };
                    waiting.fetch_sub(1, Ordering::Relaxed);
                    let (letter, what) = run_program(&job);
                    answer(letter, what.as_bytes());
                }
            });
        }
        let mut stdin = io::stdin().lock();
        while let Some((letter, what)) =
            next_frame(&mut stdin, LONGEST_QUESTION).context("reading questions")?
        {
            if letter == CONFIG {
                match read() {
                    Ok(text) => answer(TEXT, text.as_bytes()),
                    Err(reason) => answer(UNREADABLE, reason.as_bytes()),
                }
            } else if waiting.load(Ordering::Relaxed) >= WAITING {
                answer(REFUSED, b"not started: too many are running and waiting");
            } else {
                waiting.fetch_add(1, Ordering::Relaxed);
                if sender.send(what).is_err() {
                    break;
                }
            }
        }
        drop(sender);
        Ok(())
    })
}

fn answer(letter: u8, what: &[u8]) {
    // If the reader has ended, programs must still run.
    let mut out = io::stdout().lock();
    let _ = out.write_all(&frame(letter, what)).and_then(|()| out.flush());
}

fn read_config(path: Option<&Path>) -> std::result::Result<String, String> {
    let path = path.ok_or("it is not a file that could be read again")?;
    let mut text = String::new();
    let read =
        std::fs::File::open(path).and_then(|file| file.take(LONGEST as u64 + 1).read_to_string(&mut text));
    match read {
        Ok(_) => Ok(text),
        Err(error) => {
            let user = rustix::process::geteuid().as_raw();
            Err(format!("{}: {error} (user {user}, which the command has become: --user)", path.display()))
        }
    }
}

/// Runs a program and returns its result.
fn run_program(job: &[u8]) -> (u8, String) {
    let Some((timeout, words)) = job.split_first_chunk::<8>() else { return (FAILED, "no program".into()) };
    let timeout = Duration::from_nanos(u64::from_le_bytes(*timeout));
    let words = String::from_utf8_lossy(words);
    let mut words = words.split('\0');
    let program = words.next().unwrap_or_default().to_owned();
    let spawned =
        Command::new(&program).args(words).stdin(Stdio::null()).stdout(io::stderr()).process_group(0).spawn();
    let mut child = match spawned {
        Ok(child) => child,
        Err(error) => return (FAILED, format!("{program} cannot be started: {error}")),
    };
    let end = Instant::now() + timeout;
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return (DONE, program),
            Ok(Some(status)) => return (FAILED, format!("{program} ended with {status}")),
            Ok(None) if Instant::now() < end => std::thread::sleep(LOOK),
            outcome => {
                // Also kill its children: the program has its own process group.
                if let Some(group) = rustix::process::Pid::from_raw(child.id().cast_signed()) {
                    let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
                }
                let _ = child.wait();
                return match outcome {
                    Err(error) => (FAILED, format!("{program} cannot be waited for: {error}")),
                    _ => (TIMED_OUT, format!("{program} was ended, as it had not ended in {timeout:?}")),
                };
            }
        }
    }
}
