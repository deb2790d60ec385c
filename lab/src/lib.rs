//! The test-bed: suites of traffic against any sensor, on one machine or between two.
//!
//! ```text
//! suite.toml   -> suite/: Suite, or mistakes with their places
//!                 schedule: Trials, in the order in which they are run; what is there already is left out
//!   run: for each     site      where it happens: a network topology here, or agents on other machines (remote/)
//!                     topology  two network namespaces, a veth pair, NAPI where the suite wants it
//!                     roles/    what injector and sensor do, wherever they are (station)
//!                     duts/     any program (device under test), by an adapter: a command line, when it is ready, what it has counted
//!                     calls     signalling and RTP of calls, as captures to replay
//!                     trial     what they are told to do, and the account of every packet
//!                     overload  what becomes of a sensor at twice its highest rate
//!                     search    trials at chosen rates: the highest with so much loss
//!                  -> results   trials.csv, a line as each trial ends
//!   collection    suites that are shipped: published measurements, our own benchmarks
//!   bench/        receivers, generators and measurements of single parts for our benchmarks
//!   web           web traffic, recorded and sent again
//!        summary -> text, chart, compare (what curves say), judge (which published conclusions hold), page
//!        spread  -> mean and standard deviation of each case; two results compared
//!   program/      the command line
//! ```
//!
//! The manager is the process that runs this. It starts its processes with setpriv(1) and a signal for the death of
//! their parent, and a shell beside it kills processes that have lost that signal (`watcher`): when the manager ends,
//! for any reason, so do its processes, and with the last process of a namespace the namespace and its devices. No
//! named objects are left behind.

#[cfg(feature = "bench")]
mod bench;
mod bitmap;
mod calls;
pub mod chart;
mod child;
mod collection;
mod compare;
mod conclusions;
pub mod duts;
mod holder;
mod judge;
mod machine;
mod orders;
mod overload;
mod page;
mod process;
pub mod program;
pub mod remote;
mod results;
mod roles;
pub mod run;
mod scaling;
pub mod schedule;
mod search;
mod site;
mod spread;
pub mod suite;
mod summary;
mod text;
mod topology;
mod trial;
mod watcher;
mod web;

pub use suite::Suite;
