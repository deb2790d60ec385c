//! `--top`: a capture on the screen, as it goes.
//!
//! ```text
//! whoever counts -> TopModel -> Shown -> Screen
//! ledger -------------------->
//! keys -----------> TopModel (what is chosen, and looked at)
//! ```
//! The model is read while it is drawn: at each interval, and when a key has changed what is shown.

use std::io::Result;
use std::sync::Arc;
use std::time::Duration;

use wirelane::ledger::Counters;
use wirelane::{Capture, Ledger};

use super::{Keys, Screen, View, arrows_as_letters, failed, restore};

/// What is to be shown, but for the capture itself: others tell it, and keys choose in it.
pub trait TopModel: Send + Sync + 'static {
    /// These keys were typed, arrows as `k` and `j`. Returns whether the screen shows something else then.
    fn typed(&self, keys: &str) -> bool;
}

/// All that is on the screen: what a command draws.
pub struct Shown<B> {
    /// The devices, and the engine.
    pub title: String,
    /// Since the capture began.
    pub elapsed: Duration,
    /// Where packets went until the last interval's end.
    pub ledger: Counters,
    /// Whether the ledger balances.
    pub balances: bool,
    /// The rest.
    pub model: Arc<B>,
    /// The last message of what would have gone to standard error.
    pub message: Option<String>,
}

/// The terminal, taken over until this goes.
pub struct Taken {
    screen: Arc<Screen>,
    keys: Option<Keys>,
}

impl Taken {
    /// Takes the terminal over. `typed` is told of keys, and says whether the screen shows something else then.
    ///
    /// # Errors
    /// What the terminal says.
    pub fn over(typed: impl Fn(&str) -> bool + Send + 'static) -> Result<Taken> {
        let screen = Arc::new(Screen::take_over().map_err(|e| failed("taking over the terminal", &e))?);
        let keys = Keys::watch(&screen, move |keys| typed(&arrows_as_letters(keys)))?;
        Ok(Taken { screen, keys: Some(keys) })
    }

    /// Shows this from now on.
    ///
    /// # Errors
    /// What the terminal says.
    pub fn show(&self, view: impl View + 'static) -> Result<()> {
        self.screen.show(view)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        // First nobody draws any more.
        drop(self.keys.take());
        restore();
    }
}

/// What a capture is called on its screen.
pub fn title(capture: &Capture) -> String {
    let mut names: Vec<String> = capture.devices().iter().map(|device| device.name.clone()).collect();
    // A device is listed for each direction.
    names.dedup();
    format!("{}  engine {}", names.join(" "), capture.engine())
}

/// The screen of a capture, and of a model.
pub struct Top<B> {
    terminal: Taken,
    model: Arc<B>,
    title: String,
}

impl<B: TopModel> Top<B>
where
    Shown<B>: View,
{
    /// Takes the terminal over; whatever ends this gives it back.
    ///
    /// # Errors
    /// What the terminal says.
    pub fn begin(capture: &Capture, model: &Arc<B>) -> Result<Top<B>> {
        let told = Arc::clone(model);
        let terminal = Taken::over(move |keys| told.typed(keys))?;
        let top = Top { terminal, model: Arc::clone(model), title: title(capture) };
        top.show(None, Duration::ZERO)?;
        Ok(top)
    }

    fn show(&self, ledger: Option<&Ledger>, elapsed: Duration) -> Result<()> {
        self.terminal.show(Shown {
            title: self.title.clone(),
            elapsed,
            ledger: ledger.map(|ledger| ledger.total).unwrap_or_default(),
            balances: ledger.is_none_or(Ledger::balances),
            model: Arc::clone(&self.model),
            message: crate::warnings::last_held(),
        })
    }

    /// An interval of the screen has ended.
    ///
    /// # Errors
    /// What the terminal says.
    pub fn interval(&mut self, ledger: &Ledger, elapsed: Duration) -> Result<()> {
        self.show(Some(ledger), elapsed)
    }
}
