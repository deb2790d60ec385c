//! What packets come to, over records of any engine.
//!
//! * [`flows`]: who talked to whom, how much, from when to when.
//! * [`http`]: HTTP requests and their responses.
pub mod flows;
pub mod http;
