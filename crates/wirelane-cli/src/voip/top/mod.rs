//! `wirelane voip --top`: calls, the ladder of one, and how its streams sound, on a terminal's screen.
//!
//! ```text
//! worker  -> Board (calls that go on, counts)   -> terminal::Top
//! exports -> Board (messages, calls that are over)
//! keys    -> Board (which call is looked at)
//! ```

mod board;
mod view;

pub use board::Board;

/// The screen.
pub type Top = crate::terminal::Top<Board>;
