//! `wirelane voip --top`: calls, the ladder of one, and how its streams sound, on a terminal's screen.
//!
//! ```text
//! worker  -> TopModel (calls that go on, counts)   -> terminal::Top
//! exports -> TopModel (messages, calls that are over)
//! keys    -> TopModel (which call is looked at)
//! ```

mod model;
mod view;

pub use model::TopModel;

/// The screen.
pub type Top = crate::terminal::Top<TopModel>;
