//! What packets come to, over records of any engine.
//!
//! * [`flows`]: who talked to whom, how much, from when to when.
pub mod flows;
