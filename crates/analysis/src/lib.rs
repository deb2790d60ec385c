//! What packets come to, over records of any engine.
//!
//! * [`flows`]: who talked to whom, how much, from when to when.
//! * [`voip`]: calls, their streams, and how they sound.
pub mod flows;
pub mod voip;
