//! Keys and size of the terminal during a live view.

use std::io::{IsTerminal, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::SIGINT;

use super::failed;
use super::screen::Screen;

/// Interval of checks for a changed terminal size, or the end.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The thread that reads keys.
pub struct Keys {
    thread: Option<JoinHandle<()>>,
    enough: Arc<AtomicBool>,
}

impl Keys {
    /// Starts reading keys: `q` ends the capture like Ctrl-C, for which the terminal sends a signal. `typed` receives
    /// other keys, and returns whether the screen must be redrawn.
    pub fn watch(screen: &Arc<Screen>, typed: impl Fn(&[u8]) -> bool + Send + 'static) -> Result<Keys> {
        let enough = Arc::new(AtomicBool::new(false));
        let (screen, flag) = (Arc::clone(screen), Arc::clone(&enough));
        let thread = std::thread::Builder::new().name("wl-keys".into());
        let thread = thread
            .spawn(move || read(&screen, &flag, typed))
            .map_err(|e| failed("starting the thread for keys", &e))?;
        Ok(Keys { thread: Some(thread), enough })
    }
}

/// The typed text, with the arrow keys up and down as `k` and `j`, in the encodings of both keypad modes.
pub fn arrows_as_letters(typed: &[u8]) -> String {
    let arrows = [("\x1b[B", "j"), ("\x1bOB", "j"), ("\x1b[A", "k"), ("\x1bOA", "k")];
    let typed = String::from_utf8_lossy(typed).into_owned();
    arrows.iter().fold(typed, |typed, (arrow, letter)| typed.replace(arrow, letter))
}

impl Drop for Keys {
    fn drop(&mut self) {
        self.enough.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has already restored the terminal and printed its message.
            let _ = thread.join();
        }
    }
}

fn read(screen: &Screen, enough: &AtomicBool, typed: impl Fn(&[u8]) -> bool) {
    let input = std::io::stdin();
    let mut reads = input.is_terminal();
    while !enough.load(Ordering::Relaxed) {
        screen.fit();
        if !reads {
            std::thread::sleep(LOOK_EVERY);
            continue;
        }
        let mut fds = [PollFd::new(&input, PollFlags::IN)];
        let most = Timespec::try_from(LOOK_EVERY).ok();
        if !matches!(poll(&mut fds, most.as_ref()), Ok(1..)) {
            continue;
        }
        let mut bytes = [0; 64];
        match rustix::io::read(&input, &mut bytes) {
            // The terminal is gone.
            Ok(0) | Err(rustix::io::Errno::IO) => {
                end();
                reads = false;
            }
            Ok(read) if bytes[..read].contains(&b'q') => {
                end();
                // A second `q` would be a second signal, which leaves work unfinished; that requires Ctrl-C.
                reads = false;
            }
            Ok(read) if typed(&bytes[..read]) => screen.again(),
            Ok(_) | Err(_) => {}
        }
    }
}

/// Ends the capture like Ctrl-C.
fn end() {
    // The signal has a handler (session.rs), so the process does not end here.
    let _ = signal_hook::low_level::raise(SIGINT);
}
