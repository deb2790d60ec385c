//! `wirelane probe --top`: measurements with their past, the rows of one, and what is raised, on a terminal's screen.
//!
//! ```text
//! Desk (results, alarms) -> Board -> View -> terminal::Screen
//! ledger ---------------------------->
//! keys   -> Board (which measurement, by what its rows are sorted, whether time stands still)
//! ```

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
        let told = Arc::clone(board);
        let keys = Keys::watch(&screen, move |typed| told.typed(&arrows_as_letters(typed)))?;
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

    /// An interval of the screen has ended.
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
