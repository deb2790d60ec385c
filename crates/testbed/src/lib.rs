//! The test-bed: batteries of traffic against any sensor, on one machine.
//!
//! ```text
//! battery.toml -> battery/: Battery, or mistakes with their places
//!                 schedule: Trials, in the order in which they are run; what is there already is left out
//!   run: for each     bed       two network namespaces, a veth pair, NAPI where the battery wants it
//!                     sensors/  any program, by an adapter: a command line, when it is ready, what it has counted
//!                     trial     the sensor's process, the generator's process, the account of every packet
//!                     search    trials at chosen rates: the highest with so much loss
//!                  -> results   trials.csv, a line as each trial ends
//!        summary -> text, chart, compare (what curves say), page
//! ```
//!
//! The manager is the process that runs this. What it starts is started by setpriv(1) with a signal for the death of its parent:
//! when the manager is gone, however it ends, the kernel ends its processes, and with the last process of a namespace the
//! namespace and its devices. Nothing has a name that could be left behind.

pub mod battery;
pub mod bed;
pub mod chart;
pub mod child;
pub mod compare;
pub mod machine;
pub mod page;
pub mod papers;
pub mod process;
pub mod results;
pub mod run;
pub mod schedule;
pub mod search;
pub mod sensors;
pub mod summary;
pub mod text;
pub mod trial;

pub use battery::Battery;
