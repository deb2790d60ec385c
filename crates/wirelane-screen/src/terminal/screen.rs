//! A terminal that is taken over, and given back whatever happens.
//!
//! Everything is drawn on the alternate screen, so that what was on the terminal before is there again afterwards. Its
//! settings are changed so that keys come at once and are not shown; signals are still made of Ctrl-C. Who ends while
//! the screen is shown calls [`restore`]: whoever has taken it over when it goes, the panic hook, and a second signal.

use std::io::{self, IsTerminal, Result, Write};
use std::os::fd::BorrowedFd;
use std::panic;
use std::sync::{Mutex, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use ratatui::backend::CrosstermBackend;
use ratatui::layout::Rect;
use ratatui::{Frame, Terminal, TerminalOptions, Viewport};
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr,
};

use super::failed;
use crate::warnings;

/// The terminal's settings before it was taken over; none while it is not.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);
/// Held while something is drawn.
static DRAWING: Mutex<()> = Mutex::new(());
/// How long drawing may take before the terminal is given back all the same: it may be the one that has failed, or hangs.
const DRAWN_WITHIN: Duration = Duration::from_millis(300);

/// To the alternate screen, without a cursor, and back. (xterm's control sequences 1049 and 25, which every terminal
/// of the last thirty years knows.)
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l\x1b[2J";
const LEAVE: &[u8] = b"\x1b[?25h\x1b[?1049l";

/// A size to go by where the terminal does not know its own.
const UNKNOWN: (u16, u16) = (80, 24);

/// Whether standard output is a terminal.
pub fn is_terminal() -> bool {
    io::stdout().is_terminal()
}

fn terminal() -> BorrowedFd<'static> {
    rustix::stdio::stdout()
}

/// Gives the terminal back as it was, if it was taken over; what was not shown meanwhile goes to standard error.
pub fn restore() {
    let Some(before) = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
    // From here on nothing new is drawn.
    let end = Instant::now() + DRAWN_WITHIN;
    while matches!(DRAWING.try_lock(), Err(TryLockError::WouldBlock)) && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(5));
    }
    // Where the terminal is gone there is nothing to be given back.
    let mut output = io::stdout();
    let _ = output.write_all(LEAVE).and_then(|()| output.flush());
    let _ = tcsetattr(terminal(), OptionalActions::Now, &before);
    warnings::release();
}

/// What is shown.
pub trait View: Send {
    /// Draws all of it.
    fn draw(&self, frame: &mut Frame<'_>);
}

/// Nothing yet.
struct Nothing;

impl View for Nothing {
    fn draw(&self, _: &mut Frame<'_>) {}
}

/// What is drawn on.
pub struct Screen(Mutex<Drawn>);

struct Drawn {
    terminal: Terminal<CrosstermBackend<io::Stdout>>,
    size: (u16, u16),
    view: Box<dyn View>,
}

impl Screen {
    /// Takes the terminal over.
    ///
    /// # Errors
    /// What the terminal says.
    pub fn take_over() -> Result<Screen> {
        let before =
            tcgetattr(terminal()).map_err(|e| failed("reading the terminal's settings", &e.into()))?;
        let mut now = before.clone();
        now.local_modes &= !(LocalModes::ICANON | LocalModes::ECHO);
        now.special_codes[SpecialCodeIndex::VMIN] = 1;
        now.special_codes[SpecialCodeIndex::VTIME] = 0;
        // A program that is stopped or killed from the keyboard would leave its screen behind. 0 is _POSIX_VDISABLE.
        for code in [SpecialCodeIndex::VSUSP, SpecialCodeIndex::VQUIT] {
            now.special_codes[code] = 0;
        }
        let size = size();
        let viewport = Viewport::Fixed(area(size));
        let terminal_of =
            Terminal::with_options(CrosstermBackend::new(io::stdout()), TerminalOptions { viewport });
        let terminal_of = terminal_of.map_err(|e| failed("drawing", &e))?;
        let said = panic::take_hook();
        panic::set_hook(Box::new(move |what| {
            restore();
            said(what);
        }));
        *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) = Some(before);
        warnings::hold();
        let taken = tcsetattr(terminal(), OptionalActions::Now, &now)
            .map_err(io::Error::from)
            .and_then(|()| io::stdout().write_all(ENTER))
            .and_then(|()| io::stdout().flush());
        if let Err(error) = taken {
            restore();
            return Err(error.into());
        }
        Ok(Screen(Mutex::new(Drawn { terminal: terminal_of, size, view: Box::new(Nothing) })))
    }

    /// Shows this.
    ///
    /// # Errors
    /// What the terminal says.
    pub fn show(&self, view: impl View + 'static) -> Result<()> {
        let mut drawn = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        drawn.view = Box::new(view);
        drawn.draw(size()).map_err(|e| failed("drawing on the terminal", &e))
    }

    /// Draws the same again, which may tell something else by now.
    pub fn again(&self) {
        let mut drawn = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // What cannot be drawn fails at the next interval too, where somebody is told.
        let _ = drawn.draw(size());
    }

    /// Draws again, if the terminal has another size.
    pub fn fit(&self) {
        let mut drawn = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let size = size();
        if size != drawn.size {
            // What cannot be drawn fails at the next interval too, where somebody is told.
            let _ = drawn.draw(size);
        }
    }
}

impl Drawn {
    fn draw(&mut self, size: (u16, u16)) -> io::Result<()> {
        // Whoever has given the terminal back meanwhile must not find it drawn upon.
        let _drawing = DRAWING.lock().unwrap_or_else(PoisonError::into_inner);
        if BEFORE.lock().unwrap_or_else(PoisonError::into_inner).is_none() {
            return Ok(());
        }
        if size != self.size {
            self.size = size;
            self.terminal.resize(area(size))?;
        }
        let view = &self.view;
        self.terminal.draw(|frame| view.draw(frame)).map(|_| ())
    }
}

fn area((columns, rows): (u16, u16)) -> Rect {
    Rect::new(0, 0, columns, rows)
}

/// Columns and rows. Asked of the terminal alone: a library's fallbacks would start a program, which nobody may any more.
fn size() -> (u16, u16) {
    match tcgetwinsize(terminal()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col, size.ws_row),
        _ => UNKNOWN,
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::{AsFd, OwnedFd};
    use std::process::{Command, Stdio};

    use rustix::fs::{Mode, OFlags};
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

    use super::*;

    struct Titled;

    impl View for Titled {
        fn draw(&self, frame: &mut Frame<'_>) {
            frame.render_widget("titled", frame.area());
        }
    }

    /// What [`a_panic_gives_the_terminal_back`] runs on a terminal of its own.
    #[test]
    #[ignore = "it panics: another test runs it"]
    fn panics_while_the_screen_is_shown() {
        let screen = Screen::take_over().unwrap();
        screen.show(Titled).unwrap();
        panic!("a bug of ours");
    }

    /// A terminal's two ends: ours, and the program's.
    fn pseudo_terminal() -> (OwnedFd, OwnedFd) {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        let name = ptsname(&ours, Vec::new()).unwrap();
        let theirs = rustix::fs::open(name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
        (ours, theirs)
    }

    #[test]
    fn a_panic_gives_the_terminal_back() {
        let (ours, theirs) = pseudo_terminal();
        let before = tcgetattr(&theirs).unwrap();
        let end = |fd: &OwnedFd| Stdio::from(fd.try_clone().unwrap());
        let name = "terminal::screen::tests::panics_while_the_screen_is_shown";
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--ignored", "--nocapture", "--test-threads=1"])
            .stdin(end(&theirs))
            .stdout(end(&theirs))
            .stderr(end(&theirs))
            .spawn()
            .unwrap();
        let status = child.wait().unwrap();
        assert!(!status.success());
        let after = tcgetattr(theirs.as_fd()).unwrap();
        assert_eq!(after.local_modes, before.local_modes);
        assert_eq!(
            after.special_codes[SpecialCodeIndex::VSUSP],
            before.special_codes[SpecialCodeIndex::VSUSP]
        );
        drop(theirs);
        let (mut said, mut buffer) = (Vec::new(), [0; 4096]);
        let mut ours = File::from(ours);
        // The other end is closed, which reads as an error once everything was read.
        while let Ok(read @ 1..) = ours.read(&mut buffer) {
            said.extend_from_slice(&buffer[..read]);
        }
        let said = String::from_utf8_lossy(&said).into_owned();
        let at = |text: &str| said.find(text).unwrap_or_else(|| panic!("no {text:?} in {said:?}"));
        let (entered, left) = (at("\u{1b}[?1049h"), at("\u{1b}[?1049l"));
        assert!(entered < at("titled") && at("titled") < left && left < at("a bug of ours"), "{said:?}");
    }
}
