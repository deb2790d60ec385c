//! A terminal's screen, and its keys: for commands that show what happens now.
mod keys;
mod page;
mod screen;

pub use keys::{Keys, arrows_as_letters};
#[cfg(test)]
pub use page::drawn;
pub use page::{Page, cut, header};
pub use screen::{Screen, View, is_terminal, restore};
