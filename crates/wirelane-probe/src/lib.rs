//! The programmable probe: measures packets as a configuration defines, and runs actions.
//!
//! ```text
//!  text -> config/: Config, or mistakes with their places -> plan.rs: Plan, compiled once, read by all
//!
//!  worker.rs, one per worker:  record -> rules -> key.rs -> table.rs: Cell (cell.rs)     nobody else writes there
//!        at the end of an interval the tables are handed over, and new ones begun
//!  reader.rs, one:  tables of all workers -> merged -> timeline.rs: result.rs, alarm.rs, schedule.rs -> events for who shows them
//!
//!  config/set.rs: what is set while it runs -> the same text with that in it -> a plan that follows the one in force
//! ```
//!
//! This crate does not access files, devices or terminals: its input is records, its output is events, and its clock is
//! that of the packets.

mod alarm;
mod cell;
pub mod config;
mod entry;
mod event;
mod key;
mod packet_buffer;
pub mod placed;
mod plan;
mod plugin_counters;
mod reader;
mod ready;
mod result;
mod schedule;
mod state;
mod table;
mod timeline;
mod worker;

pub use alarm::{AlarmEvent, State};
pub use config::{Changed, Changes, Config, Mistakes};
pub use entry::{Entry, Growth, LedgerPart};
pub use event::{Event, Recorded, Totals};
pub use key::Key;
pub use packet_buffer::{Caught, Head, Orders, Sink, Wanted};
pub use plan::{Plan, Switches};
pub use reader::Reader;
pub use ready::{READY, ready};
pub use result::{Interval, Row, Shown};
pub use state::{AlarmCondition, Conditions, MeasurementCondition, ScheduleCondition};
pub use worker::{Closed, Worker};
