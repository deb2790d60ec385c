//! `--top`: a live view of a capture.
//!
//! ```text
//! whoever counts -> TopModel -> Shown -> Screen
//! ledger -------------------->
//! keys -----------> TopModel (what is chosen, and looked at)
//! ```
//! The model is read while it is drawn: at each interval, and when a key has changed the view.

use std::io::Result;
use std::sync::Arc;
use std::time::Duration;

use wirelane::ledger::Counters;
use wirelane::{Capture, Ledger};

use super::{Effect, Key, Keys, Screen, View, failed, restore};

/// Contents of the live view, except the capture itself: updated by other threads, and controlled by keys.
pub trait TopModel: Send + Sync + 'static {
    /// Handles a key.
    fn typed(&self, key: Key) -> Effect;
    /// Called at the end of an interval, before it is shown.
    fn interval(&self, _ledger: &Ledger, _elapsed: Duration) {}
}

/// Complete contents of the screen, which a command draws.
pub struct Shown<B> {
    /// Names of the devices and the engine.
    pub title: String,
    /// Time since the capture began.
    pub elapsed: Duration,
    /// The ledger at the end of the last interval.
    pub ledger: Counters,
    /// Whether the ledger balances.
    pub balances: bool,
    /// The command's model.
    pub model: Arc<B>,
    /// The last message that was held back from standard error.
    pub message: Option<String>,
}

/// The terminal, taken over until drop.
struct Taken {
    screen: Arc<Screen>,
    keys: Option<Keys>,
}

impl Taken {
    /// Takes the terminal over. `typed` receives keys.
    ///
    /// # Errors
    /// An error of the terminal.
    fn over(typed: impl Fn(Key) -> Effect + Send + 'static) -> Result<Taken> {
        let screen = Arc::new(Screen::take_over().map_err(|e| failed("taking over the terminal", &e))?);
        let keys = Keys::watch(&screen, typed)?;
        Ok(Taken { screen, keys: Some(keys) })
    }

    /// Shows a view.
    ///
    /// # Errors
    /// An error of the terminal.
    fn show(&self, view: impl View + 'static) -> Result<()> {
        self.screen.show(view)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        // First end the thread that draws.
        drop(self.keys.take());
        restore();
    }
}

/// Title of a capture's screen.
fn title(capture: &Capture) -> String {
    let mut names: Vec<String> = capture.devices().iter().map(|device| device.name.clone()).collect();
    // A device is listed for each direction.
    names.dedup();
    format!("{}  engine {}", names.join(" "), capture.engine())
}

/// The screen of a capture, with a model: the only live view of all commands.
pub struct Top<B> {
    terminal: Taken,
    model: Arc<B>,
    title: String,
}

impl<B: TopModel> Top<B>
where
    Shown<B>: View,
{
    /// Takes the terminal over; it is restored on drop.
    ///
    /// # Errors
    /// An error of the terminal.
    pub fn begin(capture: &Capture, model: &Arc<B>) -> Result<Top<B>> {
        let told = Arc::clone(model);
        let terminal = Taken::over(move |key| told.typed(key))?;
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

    /// Called at the end of an interval of the screen.
    ///
    /// # Errors
    /// An error of the terminal.
    pub fn interval(&mut self, ledger: &Ledger, elapsed: Duration) -> Result<()> {
        self.model.interval(ledger, elapsed);
        self.show(Some(ledger), elapsed)
    }
}
