//! `wirelane probe --top`: measurements with their past, the rows of one, and what is raised, on a terminal's screen.
//!
//! ```text
//! Desk (results, alarms) -> Board -> terminal::Top
//! keys   -> Board (which measurement, by what its rows are sorted, whether time stands still)
//! ```

mod board;
mod view;

pub use board::Board;

/// The screen.
pub type Top = crate::terminal::Top<Board>;
