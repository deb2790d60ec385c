//! Takes a terminal over, and restores it in every case.
//!
//! Everything is drawn on the alternate screen, so that the earlier contents of the terminal reappear afterwards. Its
//! settings are changed so that keys are read immediately and not echoed; Ctrl-C still sends a signal. Every exit while
//! the screen is shown calls [`restore`]: the drop of its owner, the panic hook, and a second signal.

use std::io::{self, IsTerminal, Result, Write};
use std::mem::ManuallyDrop;
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

/// The terminal's settings before it was taken over; `None` while it is not.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);
/// Held during drawing.
static DRAWING: Mutex<()> = Mutex::new(());
/// Maximum time to wait for drawing before the terminal is restored: drawing may have failed, or may hang.
const DRAWN_WITHIN: Duration = Duration::from_millis(300);

/// Sequences to enter the alternate screen, without a cursor, and to leave it. (xterm's control sequences 1049 and 25,
/// which every terminal of the last thirty years supports.)
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l\x1b[2J";
const LEAVE: &[u8] = b"\x1b[?25h\x1b[?1049l";

/// Size that is used if the terminal does not report its own.
const UNKNOWN: (u16, u16) = (80, 24);

/// Whether standard output is a terminal.
pub fn is_terminal() -> bool {
    io::stdout().is_terminal()
}

fn terminal() -> BorrowedFd<'static> {
    rustix::stdio::stdout()
}

/// Restores the terminal, if it was taken over; messages held back meanwhile go to standard error.
pub fn restore() {
    let Some(before) = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
    // Nothing new is drawn from here on.
    let end = Instant::now() + DRAWN_WITHIN;
    while matches!(DRAWING.try_lock(), Err(TryLockError::WouldBlock)) && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(5));
    }
    // Errors are ignored: without a terminal there is nothing to restore.
    let mut output = io::stdout();
    let _ = output.write_all(LEAVE).and_then(|()| output.flush());
    let _ = tcsetattr(terminal(), OptionalActions::Now, &before);
    warnings::release();
}

/// Contents of the screen.
pub trait View: Send {
    /// Draws the whole view.
    fn draw(&self, frame: &mut Frame<'_>);
}

/// An empty view.
struct Nothing;

impl View for Nothing {
    fn draw(&self, _: &mut Frame<'_>) {}
}

/// The terminal as a drawing surface.
pub struct Screen(Mutex<Drawn>);

struct Drawn {
    /// Never dropped: its drop panics where it cannot report that the terminal is gone. `restore` shows the cursor.
    terminal: ManuallyDrop<Terminal<CrosstermBackend<io::Stdout>>>,
    size: (u16, u16),
    view: Box<dyn View>,
}

impl Screen {
    /// Takes the terminal over.
    ///
    /// # Errors
    /// An error of the terminal.
    pub fn take_over() -> Result<Screen> {
        let before =
            tcgetattr(terminal()).map_err(|e| failed("reading the terminal's settings", &e.into()))?;
        let mut now = before.clone();
        now.local_modes &= !(LocalModes::ICANON | LocalModes::ECHO);
        now.special_codes[SpecialCodeIndex::VMIN] = 1;
        now.special_codes[SpecialCodeIndex::VTIME] = 0;
        // A program stopped or killed from the keyboard would leave its screen behind. 0 is _POSIX_VDISABLE.
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
            return Err(error);
        }
        Ok(Screen(Mutex::new(Drawn {
            terminal: ManuallyDrop::new(terminal_of),
            size,
            view: Box::new(Nothing),
        })))
    }

    /// Shows a view.
    ///
    /// # Errors
    /// An error of the terminal.
    pub fn show(&self, view: impl View + 'static) -> Result<()> {
        let mut drawn = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        drawn.view = Box::new(view);
        drawn.draw(size()).map_err(|e| failed("drawing on the terminal", &e))
    }

    /// Draws the same view again, whose contents may have changed.
    pub fn again(&self) {
        let mut drawn = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A failed draw also fails at the next interval, where it is reported.
        let _ = drawn.draw(size());
    }

    /// Draws again, if the size of the terminal has changed.
    pub fn fit(&self) {
        let mut drawn = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let size = size();
        if size != drawn.size {
            // A failed draw also fails at the next interval, where it is reported.
            let _ = drawn.draw(size);
        }
    }
}

impl Drawn {
    fn draw(&mut self, size: (u16, u16)) -> io::Result<()> {
        // Must not draw on a terminal that was restored meanwhile.
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

/// Columns and rows. Uses only the terminal: a library's fallback would start a program, which the sandbox forbids.
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

    /// Run by [`a_panic_gives_the_terminal_back`] on a separate terminal.
    #[test]
    #[ignore = "it panics: another test runs it"]
    fn panics_while_the_screen_is_shown() {
        let screen = Screen::take_over().unwrap();
        screen.show(Titled).unwrap();
        panic!("a bug of ours");
    }

    /// The two ends of a pseudo terminal: ours, and the program's.
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
        // The other end is closed, which reads as an error after all data was read.
        while let Ok(read @ 1..) = ours.read(&mut buffer) {
            said.extend_from_slice(&buffer[..read]);
        }
        let said = String::from_utf8_lossy(&said).into_owned();
        let at = |text: &str| said.find(text).unwrap_or_else(|| panic!("no {text:?} in {said:?}"));
        let (entered, left) = (at("\u{1b}[?1049h"), at("\u{1b}[?1049l"));
        assert!(entered < at("titled") && at("titled") < left && left < at("a bug of ours"), "{said:?}");
    }
}
