//! The command helper: a process without rights that runs commands of the user and reads configurations, which the
//! sandbox forbids.
//!
//! The capturing process drops these privileges, so the helper is started before: this program again, with a hidden
//! subcommand, as the user that the command changes to. It receives requests through a non-blocking pipe, and answers
//! through another. Both carry frames: a length of four bytes, a letter, and the contents. It has its own process group,
//! so that Ctrl-C ends the capture and not the commands. It ends when its input ends, after the last command.
//!
//! Its requests come from the process that parses packets. So it has no capabilities and cannot gain any, unless the
//! user has requested root (`--user root`), and it serves only the kind of requests that its arguments permit. It is not
//! part of the broker (`wirelane_privsep::broker`), whose restrictions the commands would inherit, and which must not
//! wait for them.

use std::ffi::{OsStr, OsString};
use std::io::{self, BufReader, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::OFlags;
use wirelane::sandbox::Identity;
use wirelane_probe::config::LONGEST;

/// Name of the hidden subcommand.
const SUBCOMMAND: &str = "command-helper";
/// Maximum waiting programs.
const WAITING: usize = 64;
/// Maximum length of a request: a pipe accepts it completely or not at all (PIPE_BUF, pipe(7)).
const LONGEST_REQUEST: usize = 4096;
/// Maximum length of an answer: the rules of a monitor are in it.
const LONGEST_ANSWER: usize = 256 << 20;
/// Interval of checks whether a program has ended.
const LOOK: Duration = Duration::from_millis(10);

/// Request: run a program, with its time limit in nanoseconds and its words.
const RUN: u8 = b'R';
/// Request: run the shell command for a finished file.
const FINISHED: u8 = b'W';
/// Request: read the configuration.
const CONFIG: u8 = b'C';

/// The requests that a helper serves, fixed at its start: with `shell` commands for finished files, else programs and
/// reading the configuration.
#[derive(Debug, Default)]
pub struct Permitted {
    /// Commands that run at once.
    pub jobs: usize,
    /// The text for the shell.
    pub shell: Option<String>,
    /// The configuration of a probe; `None`: it cannot be read again.
    pub config: Option<PathBuf>,
    /// The file of a monitor, which is read and checked.
    pub monitor: Option<PathBuf>,
}

/// Reads and checks the file of a monitor. Returns the answer, or an explanation.
pub type Check = fn(&Path) -> std::result::Result<String, String>;

/// An answer of the helper.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// See [`Kind`].
    pub kind: Kind,
    /// The program or the finished file; empty for a configuration.
    pub of: OsString,
    /// The text of the configuration, or an explanation.
    pub text: String,
}

/// Kind of an answer; as a byte, its letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// The command ended with status 0.
    Done = b'D',
    /// The command ended otherwise, or could not be started.
    Failed = b'F',
    /// The command was killed because of the time limit.
    TimedOut = b'L',
    /// The command was not started, because too many were running and waiting.
    Refused = b'N',
    /// The configuration.
    Config = b'T',
    /// The configuration cannot be read.
    Unreadable = b'U',
}

impl Answer {
    fn new(kind: Kind, of: impl Into<OsString>, text: impl Into<String>) -> Answer {
        Answer { kind, of: of.into(), text: text.into() }
    }

    fn bytes(&self) -> Vec<u8> {
        frame(self.kind as u8, &[self.of.as_bytes(), &[0], self.text.as_bytes()].concat())
    }

    fn read(letter: u8, contents: &[u8]) -> Option<Answer> {
        let all = [Kind::Done, Kind::Failed, Kind::TimedOut, Kind::Refused, Kind::Config, Kind::Unreadable];
        let kind = all.into_iter().find(|kind| *kind as u8 == letter)?;
        let end = contents.iter().position(|byte| *byte == 0)?;
        let of = OsString::from_vec(contents[..end].to_vec());
        Some(Answer::new(kind, of, String::from_utf8_lossy(&contents[end + 1..])))
    }
}

fn frame(letter: u8, contents: &[u8]) -> Vec<u8> {
    let mut bytes = ((contents.len() + 1) as u32).to_le_bytes().to_vec();
    bytes.push(letter);
    bytes.extend_from_slice(contents);
    bytes
}

/// The next frame of at most `longest` bytes; `None` at the end.
fn next_frame(from: &mut impl Read, longest: usize) -> io::Result<Option<(u8, Vec<u8>)>> {
    let mut length = [0; 4];
    match from.read_exact(&mut length) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let length = u32::from_le_bytes(length) as usize;
    if length == 0 || length > longest {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a frame of invalid length"));
    }
    let mut bytes = vec![0; length];
    from.read_exact(&mut bytes)?;
    let contents = bytes.split_off(1);
    Ok(Some((bytes[0], contents)))
}

/// The started helper, before privileges are dropped.
pub struct Helper {
    child: Child,
    stdin: ChildStdin,
    stdout: ChildStdout,
}

/// Sends requests without blocking. The helper's input ends when it is dropped.
pub struct Requests(ChildStdin);

/// The helper with its listening thread.
pub struct Listening {
    child: Child,
    thread: JoinHandle<()>,
}

impl Helper {
    /// Starts the helper, as this user, without the environment variables `secrets`, so that its commands do not inherit
    /// them. To be called before privileges are dropped, after which no process can be started.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(permitted: &Permitted, identity: Option<Identity>, secrets: &[String]) -> Result<Helper> {
        let mut helper = Command::new("/proc/self/exe");
        if let Some((uid, gid)) = identity.map(|identity| identity.ids()) {
            helper.uid(uid).gid(gid);
        }
        let option =
            |name: &str, value: &OsStr| OsString::from_vec([name.as_bytes(), value.as_bytes()].concat());
        let shell = permitted.shell.as_ref().map(|shell| option("--shell=", shell.as_ref()));
        let config = permitted.config.as_ref().map(|config| option("--config=", config.as_ref()));
        let monitor = permitted.monitor.as_ref().map(|file| option("--monitor=", file.as_ref()));
        for name in secrets {
            helper.env_remove(name);
        }
        let mut child = helper
            .arg0("wirelane-helper")
            .args([SUBCOMMAND, &permitted.jobs.to_string()])
            .args(shell.into_iter().chain(config).chain(monitor))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .context("starting the command helper")?;
        let stdin = child.stdin.take().context("no pipe to the command helper")?;
        let stdout = child.stdout.take().context("no pipe from the command helper")?;
        // A stopped helper must not block us.
        let flags = rustix::fs::fcntl_getfl(&stdin)?;
        rustix::fs::fcntl_setfl(&stdin, flags | OFlags::NONBLOCK)?;
        Ok(Helper { child, stdin, stdout })
    }

    /// Starts the thread that hands answers to `answered`. To be called after privileges are dropped: existing threads
    /// keep theirs.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn listen(self, mut answered: impl FnMut(Answer) + Send + 'static) -> Result<(Requests, Listening)> {
        let Helper { child, stdin, stdout } = self;
        let thread = std::thread::Builder::new().name("wl-helper".into()).spawn(move || {
            let mut stdout = BufReader::new(stdout);
            while let Ok(Some((letter, contents))) = next_frame(&mut stdout, LONGEST_ANSWER) {
                if let Some(answer) = Answer::read(letter, &contents) {
                    answered(answer);
                }
            }
        })?;
        Ok((Requests(stdin), Listening { child, thread }))
    }
}

/// Each request is an error if it is too long, or if the helper does not run or read.
impl Requests {
    /// Requests a program with these words.
    pub fn run(&mut self, words: &[String], timeout_ns: u64) -> io::Result<()> {
        self.send(RUN, &[&timeout_ns.to_le_bytes(), words.join("\0").as_bytes()].concat())
    }

    /// Requests the command for a finished file.
    pub fn finished(&mut self, path: &Path) -> io::Result<()> {
        self.send(FINISHED, path.as_os_str().as_bytes())
    }

    /// Requests the configuration.
    pub fn config(&mut self) -> io::Result<()> {
        self.send(CONFIG, &[])
    }

    fn send(&mut self, letter: u8, contents: &[u8]) -> io::Result<()> {
        let bytes = frame(letter, contents);
        if bytes.len() > LONGEST_REQUEST {
            return Err(io::ErrorKind::ArgumentListTooLong.into());
        }
        self.0.write_all(&bytes)
    }
}

impl Listening {
    /// Waits for the last command, after [`Requests`] has been dropped.
    ///
    /// # Errors
    /// If the helper ended before: some commands may not have run.
    pub fn end(mut self) -> Result<()> {
        ensure!(
            self.thread.join().is_ok(),
            "the thread that counts commands panicked; this is a bug: please report it"
        );
        let status = self.child.wait().context("waiting for the command helper")?;
        if !status.success() {
            bail!("the command helper ended early, and some commands may not have run: {status}");
        }
        Ok(())
    }
}

/// A command to run.
struct Job {
    of: OsString,
    words: Vec<OsString>,
    timeout: Option<Duration>,
}

impl Permitted {
    /// The command that this request is for.
    fn job(&self, letter: u8, contents: Vec<u8>) -> Result<Job> {
        match (&self.shell, letter) {
            (Some(command), FINISHED) => {
                let of = OsString::from_vec(contents);
                // The path is an argument and never part of the shell's script.
                let script = format!("{command} \"$@\"");
                let shell = ["/bin/sh", "-c", &script, "sh"].map(OsString::from);
                let words = shell.into_iter().chain([of.clone()]).collect();
                Ok(Job { of, words, timeout: None })
            }
            (None, RUN) => {
                let (timeout, words) =
                    contents.split_first_chunk::<8>().context("a request without a limit")?;
                let words: Vec<OsString> =
                    words.split(|byte| *byte == 0).map(|word| OsString::from_vec(word.to_vec())).collect();
                let timeout = Some(Duration::from_nanos(u64::from_le_bytes(*timeout)));
                Ok(Job { of: words[0].clone(), words, timeout })
            }
            _ => bail!("a request that is not permitted"),
        }
    }
}

/// The helper itself.
///
/// # Errors
/// If requests cannot be read, or violate the protocol.
pub fn run(permitted: &Permitted, check: Check) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        wirelane::sandbox::without_capabilities()?;
    }
    // A signal to all processes ends the capture, but the last commands must still run.
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register(signal, Arc::default())?;
    }
    let most = if permitted.shell.is_some() { usize::MAX } else { WAITING };
    let (sender, inbox) = mpsc::channel::<Job>();
    let (inbox, waiting) = (Mutex::new(inbox), AtomicUsize::new(0));
    std::thread::scope(|scope| -> Result<()> {
        for _ in 0..permitted.jobs.max(1) {
            scope.spawn(|| {
                loop {
                    // The lock is held while waiting: the other threads would only wait for the same channel.
                    let next = inbox.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok(job) = next else { break };
                    waiting.fetch_sub(1, Ordering::Relaxed);
                    say(&run_job(job));
                }
            });
        }
        // Dropped at the end of the requests, also after an error: threads wait for it.
        let sender = sender;
        let mut stdin = io::stdin().lock();
        while let Some((letter, contents)) =
            next_frame(&mut stdin, LONGEST_REQUEST).context("reading requests")?
        {
            if letter == CONFIG && permitted.shell.is_none() {
                let read = match &permitted.monitor {
                    Some(file) => check(file),
                    None => read_config(permitted.config.as_deref()),
                };
                say(&match read {
                    Ok(text) => Answer::new(Kind::Config, "", text),
                    Err(reason) => Answer::new(Kind::Unreadable, "", reason),
                });
                continue;
            }
            let job = permitted.job(letter, contents)?;
            if waiting.load(Ordering::Relaxed) >= most {
                say(&Answer::new(Kind::Refused, job.of, "was not started: too many are running and waiting"));
                continue;
            }
            waiting.fetch_add(1, Ordering::Relaxed);
            if sender.send(job).is_err() {
                break;
            }
        }
        Ok(())
    })
}

fn say(answer: &Answer) {
    // If the reader has ended, the commands must still run.
    let mut out = io::stdout().lock();
    let _ = out.write_all(&answer.bytes()).and_then(|()| out.flush());
}

fn read_config(path: Option<&Path>) -> std::result::Result<String, String> {
    let path = path.ok_or("it is not a file that could be read again")?;
    let mut text = String::new();
    let read =
        std::fs::File::open(path).and_then(|file| file.take(LONGEST as u64 + 1).read_to_string(&mut text));
    let user = rustix::process::geteuid().as_raw();
    read.map_err(|error| {
        format!("{}: {error} (user {user}, which the command has become: --user)", path.display())
    })?;
    Ok(text)
}

/// Runs a command to its end.
fn run_job(Job { of, words, timeout }: Job) -> Answer {
    let spawned = Command::new(&words[0])
        .args(&words[1..])
        .stdin(Stdio::null())
        .stdout(io::stderr())
        .process_group(0)
        .spawn();
    let mut child = match spawned {
        Ok(child) => child,
        Err(error) => return Answer::new(Kind::Failed, of, format!("cannot be started: {error}")),
    };
    match wait(&mut child, timeout) {
        Ok(Some(status)) if status.success() => Answer::new(Kind::Done, of, ""),
        Ok(Some(status)) => Answer::new(Kind::Failed, of, format!("ended with {status}")),
        unfinished => {
            // Also kill its children: the program has its own process group.
            if let Some(group) = rustix::process::Pid::from_raw(child.id().cast_signed()) {
                let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
            }
            let _ = child.wait();
            let text = match unfinished {
                Err(error) => return Answer::new(Kind::Failed, of, format!("cannot be waited for: {error}")),
                Ok(_) => format!("was ended, as it had not ended in {:?}", timeout.unwrap_or_default()),
            };
            Answer::new(Kind::TimedOut, of, text)
        }
    }
}

/// Waits for the end of a process; `None`: it has not ended in this time.
fn wait(child: &mut Child, timeout: Option<Duration>) -> io::Result<Option<ExitStatus>> {
    let Some(timeout) = timeout else { return child.wait().map(Some) };
    let end = Instant::now() + timeout;
    loop {
        match child.try_wait()? {
            None if Instant::now() < end => std::thread::sleep(LOOK),
            ended => return Ok(ended),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_permitted_requests_become_commands() {
        let finished = Permitted { shell: Some("gzip -9".into()), ..Permitted::default() };
        let programs = Permitted::default();
        let job = finished.job(FINISHED, b"/a/$(x).pcapng".to_vec()).unwrap();
        assert_eq!(
            job.words,
            ["/bin/sh", "-c", "gzip -9 \"$@\"", "sh", "/a/$(x).pcapng"].map(OsString::from)
        );
        let request = [&7u64.to_le_bytes()[..], b"/bin/echo\0a b\0"].concat();
        let job = programs.job(RUN, request.clone()).unwrap();
        assert_eq!(job.words, ["/bin/echo", "a b", ""].map(OsString::from));
        assert_eq!((job.of, job.timeout), ("/bin/echo".into(), Some(Duration::from_nanos(7))));
        for (permitted, letter, contents) in [
            (&finished, RUN, request.clone()),
            (&finished, CONFIG, Vec::new()),
            (&programs, FINISHED, b"/a".to_vec()),
            (&programs, RUN, b"short".to_vec()),
            (&programs, b'x', request),
        ] {
            assert!(permitted.job(letter, contents).is_err(), "{letter} of {permitted:?}");
        }
    }

    #[test]
    fn answers_come_as_they_were_sent() {
        let sent = Answer::new(Kind::Failed, OsString::from_vec(vec![b'/', 0xff]), "ended with 1");
        let (letter, contents) = next_frame(&mut &sent.bytes()[..], LONGEST_ANSWER).unwrap().unwrap();
        assert_eq!(Answer::read(letter, &contents), Some(sent));
        assert_eq!(Answer::read(b'?', b"a\0b"), None);
        assert!(next_frame(&mut &[0, 0, 0, 0][..], LONGEST_ANSWER).is_err());
        assert!(next_frame(&mut &[0xff; 8][..], LONGEST_ANSWER).is_err());
    }

    #[test]
    fn a_command_ends_by_itself_or_at_its_limit() {
        let job = |words: &[&str], timeout| {
            run_job(Job { of: "it".into(), words: words.iter().map(OsString::from).collect(), timeout })
        };
        assert_eq!(job(&["/bin/true"], None), Answer::new(Kind::Done, "it", ""));
        let limit = Some(Duration::from_secs(60));
        let failed = Answer::new(Kind::Failed, "it", "ended with exit status: 3");
        assert_eq!(job(&["/bin/sh", "-c", "exit 3"], limit), failed);
        let long = job(&["/bin/sleep", "600"], Some(Duration::from_millis(50)));
        assert_eq!((long.kind, &*long.text), (Kind::TimedOut, "was ended, as it had not ended in 50ms"));
        let none = job(&["/no/such/program"], limit);
        assert!(none.kind == Kind::Failed && none.text.contains("cannot be started"), "{none:?}");
    }
}
