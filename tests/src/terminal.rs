//! A terminal for commands with a full-screen display.

use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZero;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use crate::numbers::LIMIT;
use crate::{Lab, wirelane_binary};

/// A command on a pseudo-terminal of its own, which is its controlling terminal.
pub struct Terminal {
    child: Child,
    ours: Option<File>,
    reader: Option<JoinHandle<()>>,
    enough: Arc<AtomicBool>,
    theirs: OwnedFd,
    before: LocalModes,
    emulator: Arc<Mutex<vt100::Parser>>,
    written: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    /// Starts a `wirelane` command on the lab's receiver.
    pub fn start(lab: &Lab, columns: u16, rows: u16, words: &[&str]) -> Terminal {
        Terminal::with_errors(lab, (columns, rows), words, None)
    }

    /// Starts a `wirelane` command on the lab's receiver. `errors`: its standard error, in place of the terminal.
    pub fn with_errors(
        lab: &Lab,
        (columns, rows): (u16, u16),
        words: &[&str],
        errors: Option<File>,
    ) -> Terminal {
        Terminal::of(lab, (columns, rows), &wirelane_binary().unwrap(), words, errors)
    }

    /// Starts another program in the same way.
    pub fn of(
        lab: &Lab,
        (columns, rows): (u16, u16),
        program: &Path,
        words: &[&str],
        errors: Option<File>,
    ) -> Terminal {
        // A copy of this end in another process would keep the terminal open.
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        let name = ptsname(&ours, Vec::new()).unwrap();
        let theirs =
            rustix::fs::open(name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let before = tcgetattr(&theirs).unwrap().local_modes;
        let end = || Stdio::from(theirs.try_clone().unwrap());
        // In a session of its own with this controlling terminal, so that Ctrl-C becomes a signal.
        let mut command = lab.command(&lab.receiver().namespace, "setsid");
        command.args(["--ctty", "--wait"]).arg(program).args(words);
        resize(&ours, columns, rows);
        let errors = errors.map_or_else(end, Stdio::from);
        let child = command.stdin(end()).stdout(end()).stderr(errors).spawn().unwrap();
        let emulator = Arc::new(Mutex::new(vt100::Parser::new(some(rows), some(columns), 0)));
        let written = Arc::<Mutex<Vec<u8>>>::default();
        let (mut from, to) = (File::from(ours.try_clone().unwrap()), Arc::clone(&emulator));
        let (all, enough) = (Arc::clone(&written), Arc::<AtomicBool>::default());
        let ends = Arc::clone(&enough);
        let reader = std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            loop {
                let wait = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
                if poll(&mut [PollFd::new(&from, PollFlags::IN)], Some(&wait)) == Ok(0) {
                    // All that was written has been read.
                    if ends.load(Ordering::Relaxed) {
                        break;
                    }
                    continue;
                }
                let Ok(read @ 1..) = from.read(&mut buffer) else { break };
                to.lock().unwrap().process(&buffer[..read]);
                all.lock().unwrap().extend(&buffer[..read]);
            }
        });
        let (ours, reader) = (Some(File::from(ours)), Some(reader));
        Terminal { child, ours, reader, enough, theirs, before, emulator, written }
    }

    /// All bytes that the command has written to the terminal.
    pub fn written(&self) -> Vec<u8> {
        self.written.lock().unwrap().clone()
    }

    /// Rows of the screen without trailing blanks.
    pub fn rows(&self) -> Vec<String> {
        let emulator = self.emulator.lock().unwrap();
        let columns = emulator.screen().size().1;
        emulator.screen().rows(0, columns.get()).map(|row| row.trim_end().to_owned()).collect()
    }

    /// Waits until the rows are `wanted`.
    pub fn until(&self, what: &str, wanted: impl Fn(&[String]) -> bool) {
        let end = Instant::now() + LIMIT;
        loop {
            let rows = self.rows();
            if wanted(&rows) {
                return;
            }
            assert!(Instant::now() < end, "{what}: {rows:#?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until this text is on the screen.
    pub fn until_text(&self, text: &str) {
        self.until(text, |rows| rows.join("\n").contains(text));
    }

    /// Resizes the terminal.
    pub fn resize(&self, columns: u16, rows: u16) {
        self.emulator.lock().unwrap().screen_mut().set_size(some(rows), some(columns));
        resize(self.ours.as_ref().unwrap(), columns, rows);
    }

    /// Types text.
    pub fn type_in(&mut self, text: &str) {
        self.ours.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
    }

    /// Process id of the program itself: the child is setsid, unless setsid has replaced itself by the program.
    pub fn pid(&self) -> u32 {
        let comm = std::fs::read_to_string(format!("/proc/{}/comm", self.child.id())).unwrap_or_default();
        if comm.trim() != "setsid" {
            return self.child.id();
        }
        let children = format!("/proc/{0}/task/{0}/children", self.child.id());
        let first = std::fs::read_to_string(children).unwrap_or_default();
        first.split_whitespace().next().map_or(self.child.id(), |pid| pid.parse().unwrap())
    }

    /// Hangs up, as when the window of a terminal is closed: the program gets SIGHUP, and its reads and writes fail.
    /// Waits for its end.
    pub fn hung_up(mut self) -> ExitStatus {
        self.read_all();
        self.ours = None;
        self.status()
    }

    /// Reads what has been written, and nothing after it.
    fn read_all(&mut self) {
        self.enough.store(true, Ordering::Relaxed);
        self.reader.take().unwrap().join().unwrap();
    }

    /// Waits for the end of the program.
    fn status(&mut self) -> ExitStatus {
        let end = Instant::now() + LIMIT;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < end, "it has not ended: {:#?}", self.rows());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits for the end: the exit status, and the rows of the restored screen.
    pub fn ended(mut self) -> (ExitStatus, Vec<String>) {
        let status = self.status();
        assert_eq!(tcgetattr(&self.theirs).unwrap().local_modes, self.before);
        self.read_all();
        {
            let emulator = self.emulator.lock().unwrap();
            let screen = emulator.screen();
            assert!(!screen.alternate_screen() && !screen.hide_cursor(), "the screen of before");
        }
        let rows = self.rows();
        (status, rows)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.enough.store(true, Ordering::Relaxed);
        // Fails only if the process has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn some(number: u16) -> NonZero<u16> {
    NonZero::new(number).unwrap()
}

fn resize(terminal: impl AsFd, columns: u16, rows: u16) {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(terminal, size).unwrap();
}
