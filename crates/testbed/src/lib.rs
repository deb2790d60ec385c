//! The test-bed: batteries of traffic against any sensor, on one machine or between two.
//!
//! ```text
//! battery.toml -> battery/: Battery, or mistakes with their places
//!                 schedule: Trials, in the order in which they are run; what is there already is left out
//!   run: for each     place     where it happens: a bed here, or agents on other machines (away/)
//!                     bed       two network namespaces, a veth pair, NAPI where the battery wants it
//!                     roles/    what injector and sensor do, wherever they are
//!                     sensors/  any program, by an adapter: a command line, when it is ready, what it has counted
//!                     calls     signalling and RTP of calls, as captures to replay
//!                     trial     what they are told to do, and the account of every packet
//!                     search    trials at chosen rates: the highest with so much loss
//!                  -> results   trials.csv, a line as each trial ends
//!        summary -> text, chart, compare (what curves say), page; columns, for Parquet
//! ```
//!
//! The manager is the process that runs this. What it starts is started by setpriv(1) with a signal for the death of its parent,
//! and a shell beside it kills what has forgotten that signal (`watcher`): when the manager is gone, however it ends, so are its
//! processes, and with the last process of a namespace the namespace and its devices. Nothing has a name that could be left behind.

pub mod away;
pub mod battery;
pub mod bed;
mod bitmap;
pub mod calls;
pub mod chart;
pub mod child;
pub mod columns;
pub mod compare;
pub mod holder;
pub mod machine;
pub mod page;
pub mod papers;
pub mod place;
pub mod process;
pub mod results;
pub mod roles;
pub mod run;
pub mod schedule;
pub mod search;
pub mod sensors;
pub mod summary;
pub mod text;
pub mod trial;
pub mod watcher;

pub use battery::Battery;
