//! A terminal's screen and keys, for live views.
mod controls;
mod keys;
mod page;
mod screen;
mod top;

pub use controls::Controls;
use keys::Keys;
pub use keys::{Effect, Key};
#[cfg(test)]
pub use page::drawn;
pub use page::{Page, cut, ledger_rows};
use screen::Screen;
pub use screen::{View, is_terminal, restore};
pub use top::{Shown, Top, TopModel};

/// The error, with the action that failed in front of it.
fn failed(action: &str, error: &std::io::Error) -> std::io::Error {
    std::io::Error::new(error.kind(), format!("{action}: {error}"))
}
