//! `wirelane probe --top`: a live view of measurements with their history, the rows of one, and raised alarms.
//!
//! ```text
//! Controller (results, alarms) -> TopModel -> terminal::Top
//! keys   -> TopModel (which measurement, by what its rows are sorted, whether time stands still)
//! ```

mod model;
mod view;

pub use model::TopModel;

/// The live view.
pub type Top = crate::terminal::Top<TopModel>;
