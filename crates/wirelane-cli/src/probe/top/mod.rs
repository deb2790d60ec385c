//! `wirelane probe --top`: measurements with their past, the rows of one, and what is raised, on a terminal's screen.
//!
//! ```text
//! Controller (results, alarms) -> TopModel -> terminal::Top
//! keys   -> TopModel (which measurement, by what its rows are sorted, whether time stands still)
//! ```

mod model;
mod view;

pub use model::TopModel;

/// The screen.
pub type Top = crate::terminal::Top<TopModel>;
