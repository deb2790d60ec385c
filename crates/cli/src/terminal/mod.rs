//! A terminal's screen, and its keys: for commands that show what happens now.
mod keys;
mod screen;

pub use keys::Keys;
pub use screen::{Screen, View, is_terminal, restore};
