//! `wirelane voip --top`: calls, the ladder of one, and how its streams sound, on a terminal's screen.
//!
//! ```text
//! worker  -> Board (calls that go on, counts)            -> View -> terminal::Screen
//! exports -> Board (messages, calls that are over)            |
//! ledger  ---------------------------------------------------->
//! keys    -> Board (which call is looked at)
//! ```
//! The board is read while it is drawn: at each interval, and when a key is pressed.

mod board;
mod view;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use wirelane::{Capture, Ledger};

pub use board::Board;
use view::View;

use crate::terminal::{Keys, Screen, arrows_as_letters, restore};

/// The screen.
pub struct Top {
    screen: Arc<Screen>,
    keys: Option<Keys>,
    board: Arc<Board>,
    title: String,
}

impl Top {
    /// Takes the terminal over; whatever ends this gives it back.
    ///
    /// # Errors
    /// What the terminal says.
    pub fn begin(capture: &Capture, board: &Arc<Board>) -> Result<Top> {
        let names: Vec<String> = capture.devices().iter().map(|device| device.name.clone()).collect();
        let title = format!("{}  engine {}", names.join(" "), capture.engine());
        let screen = Arc::new(Screen::take_over().context("taking over the terminal")?);
        let moved = Arc::clone(board);
        let keys = Keys::watch(&screen, move |typed| {
            let typed = arrows_as_letters(typed);
            let count = |letter: char| typed.matches(letter).count() as isize;
            let rows = count('j') - count('k');
            if rows != 0 {
                moved.told().step_by(rows);
            }
            rows != 0
        })?;
        let top = Top { screen, keys: Some(keys), board: Arc::clone(board), title };
        top.screen.show(top.view(None, Duration::ZERO))?;
        Ok(top)
    }

    fn view(&self, ledger: Option<&Ledger>, elapsed: Duration) -> View {
        View {
            title: self.title.clone(),
            elapsed,
            ledger: ledger.map(|ledger| ledger.total).unwrap_or_default(),
            balances: ledger.is_none_or(Ledger::balances),
            board: Arc::clone(&self.board),
            message: crate::out::last_held(),
        }
    }

    /// An interval has ended.
    ///
    /// # Errors
    /// What the terminal says.
    pub fn interval(&mut self, ledger: &Ledger, elapsed: Duration) -> Result<()> {
        self.screen.show(self.view(Some(ledger), elapsed))
    }
}

impl Drop for Top {
    fn drop(&mut self) {
        // First nobody draws any more.
        drop(self.keys.take());
        restore();
    }
}
