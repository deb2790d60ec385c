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

/// A key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// A printable character.
    Letter(char),
    /// The arrow up.
    Up,
    /// The arrow down.
    Down,
    /// Page up.
    PageUp,
    /// Page down.
    PageDown,
    /// Home.
    Home,
    /// End.
    End,
    /// Enter.
    Enter,
    /// Backspace.
    Backspace,
    /// Escape.
    Escape,
}

/// Rows that a page key moves.
const PAGE: isize = 10;

impl Key {
    /// Rows by which the key moves a selection, downwards; 0 for other keys.
    pub fn rows(self) -> isize {
        match self {
            Key::Down | Key::Letter('j') => 1,
            Key::Up | Key::Letter('k') => -1,
            Key::PageDown | Key::Letter(' ') => PAGE,
            Key::PageUp => -PAGE,
            Key::Home => isize::MIN,
            Key::End => isize::MAX,
            _ => 0,
        }
    }
}

/// The keys in bytes from a terminal, in the encodings of both keypad modes (xterm's control sequences). Unknown
/// sequences are skipped.
pub fn decode(typed: &[u8]) -> Vec<Key> {
    let typed = String::from_utf8_lossy(typed);
    let mut letters = typed.chars().peekable();
    let mut keys = Vec::new();
    while let Some(letter) = letters.next() {
        match letter {
            '\u{1b}' if letters.next_if(|next| matches!(next, '[' | 'O')).is_some() => {
                let mut sequence = String::new();
                for next in letters.by_ref() {
                    sequence.push(next);
                    if ('@'..='~').contains(&next) {
                        break;
                    }
                }
                keys.extend(match sequence.as_str() {
                    "A" => Some(Key::Up),
                    "B" => Some(Key::Down),
                    "5~" => Some(Key::PageUp),
                    "6~" => Some(Key::PageDown),
                    "H" | "1~" => Some(Key::Home),
                    "F" | "4~" => Some(Key::End),
                    _ => None,
                });
            }
            '\u{1b}' => keys.push(Key::Escape),
            '\r' | '\n' => keys.push(Key::Enter),
            '\u{7f}' | '\u{8}' => keys.push(Key::Backspace),
            letter if !letter.is_control() => keys.push(Key::Letter(letter)),
            _ => {}
        }
    }
    keys
}

/// Effect of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// None.
    Nothing,
    /// The screen must be redrawn.
    Redraw,
    /// The capture ends.
    Quit,
}

/// The thread that reads keys.
pub struct Keys {
    thread: Option<JoinHandle<()>>,
    enough: Arc<AtomicBool>,
}

impl Keys {
    /// Starts reading keys. [`Effect::Quit`] ends the capture like Ctrl-C, for which the terminal sends a signal.
    pub fn watch(screen: &Arc<Screen>, typed: impl Fn(Key) -> Effect + Send + 'static) -> Result<Keys> {
        let enough = Arc::new(AtomicBool::new(false));
        let (screen, flag) = (Arc::clone(screen), Arc::clone(&enough));
        let thread = std::thread::Builder::new().name("wl-keys".into());
        let thread = thread
            .spawn(move || read(&screen, &flag, typed))
            .map_err(|e| failed("starting the thread for keys", &e))?;
        Ok(Keys { thread: Some(thread), enough })
    }
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

fn read(screen: &Screen, enough: &AtomicBool, typed: impl Fn(Key) -> Effect) {
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
            Ok(read) => {
                let mut redraws = false;
                for key in decode(&bytes[..read]) {
                    match typed(key) {
                        Effect::Nothing => {}
                        Effect::Redraw => redraws = true,
                        Effect::Quit => {
                            end();
                            // Another `q` would be a second signal, which leaves work unfinished; that requires Ctrl-C.
                            reads = false;
                            break;
                        }
                    }
                }
                if redraws {
                    screen.again();
                }
            }
            Err(_) => {}
        }
    }
}

/// Ends the capture like Ctrl-C.
fn end() {
    // The signal has a handler (session.rs), so the process does not end here.
    let _ = signal_hook::low_level::raise(SIGINT);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_in_both_keypad_modes_and_unknown_sequences_are_skipped() {
        let keys = decode(b"a\x1b[A\x1bOB\x1b[5~\x1b[6~\x1b[H\x1b[4~\r\x7f\x1b[15;2~\x00\xc3\xa4\x1b");
        let expected = [
            Key::Letter('a'),
            Key::Up,
            Key::Down,
            Key::PageUp,
            Key::PageDown,
            Key::Home,
            Key::End,
            Key::Enter,
            Key::Backspace,
            Key::Letter('\u{e4}'),
            Key::Escape,
        ];
        assert_eq!(keys, expected);
    }
}
