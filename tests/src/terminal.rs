//! A terminal for commands with a full-screen display.

use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZero;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use crate::numbers::LIMIT;
use crate::{Lab, wirelane_binary};

/// A command on a pseudo-terminal of its own, which is its controlling terminal.
pub struct Terminal {
    child: Child,
    ours: File,
    theirs: OwnedFd,
    before: LocalModes,
    emulator: Arc<Mutex<vt100::Parser>>,
    written: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    /// Starts a `wirelane` command on the lab's receiver.
    pub fn start(lab: &Lab, columns: u16, rows: u16, words: &[&str]) -> Terminal {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        let name = ptsname(&ours, Vec::new()).unwrap();
        let theirs = rustix::fs::open(name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
        let before = tcgetattr(&theirs).unwrap().local_modes;
        let end = || Stdio::from(theirs.try_clone().unwrap());
        // In a session of its own with this controlling terminal, so that Ctrl-C becomes a signal.
        let mut command = lab.command(&lab.receiver().namespace, "setsid");
        command.args(["--ctty", "--wait"]).arg(wirelane_binary().unwrap()).args(words);
        resize(&ours, columns, rows);
        let child = command.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
        let emulator = Arc::new(Mutex::new(vt100::Parser::new(some(rows), some(columns), 0)));
        let written = Arc::<Mutex<Vec<u8>>>::default();
        let (mut from, to) = (File::from(ours.try_clone().unwrap()), Arc::clone(&emulator));
        let all = Arc::clone(&written);
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(read @ 1..) = from.read(&mut buffer) {
                to.lock().unwrap().process(&buffer[..read]);
                all.lock().unwrap().extend(&buffer[..read]);
            }
        });
        Terminal { child, ours: File::from(ours), theirs, before, emulator, written }
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
        resize(&self.ours, columns, rows);
    }

    /// Types text.
    pub fn type_in(&mut self, text: &str) {
        self.ours.write_all(text.as_bytes()).unwrap();
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

    /// Waits for the end: the exit status, and the rows of the restored screen.
    pub fn ended(mut self) -> (ExitStatus, Vec<String>) {
        let end = Instant::now() + LIMIT;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if Instant::now() >= end {
                self.child.kill().unwrap();
                panic!("it has not ended: {:#?}", self.rows());
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        assert_eq!(tcgetattr(&self.theirs).unwrap().local_modes, self.before);
        self.until("the screen of before", |_| {
            let emulator = self.emulator.lock().unwrap();
            !emulator.screen().alternate_screen() && !emulator.screen().hide_cursor()
        });
        let rows = self.rows();
        (status, rows)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
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
