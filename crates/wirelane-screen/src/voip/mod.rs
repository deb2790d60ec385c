//! `wirelane voip --top`: a live view of calls, the message ladder of one, and the quality of its streams.
//!
//! ```text
//! worker  -> TopModel (calls that go on, counts)   -> terminal::Top
//! exports -> TopModel (messages, calls that are over)
//! keys    -> TopModel (which call is looked at, which of its messages, what is saved)
//! ```

mod model;
mod view;

pub use model::TopModel;
