//! A store of flows, calls, HTTP transactions and probe results: Parquet files in a folder, and SQL queries over them.
//!
//! ```text
//! flows, calls, ... (Storable) -> Writer -(channel)-> thread: tables -> file (Parquet, zstd) -> unfinished
//!                                                    -> DIR/TABLE/date=.../hour=.../*.parquet
//!                                         retention: what is too old or too much, what dead writers left
//! SQL, questions -> Asker -> scan (row groups, columns) -> sums, or SQLite -> rows -> report
//! ```
//!
//! A store is a folder with a folder for each table ([`Table`]), which contains files by the hour in which their flows,
//! calls or transactions ended, in Hive's layout, so that DuckDB, Spark, pandas and others find `date` and `hour` as
//! columns. A file gets its name when it is complete: until then it is hidden (`.NAME.parquet.part`), and all of these
//! ignore it. A store has no index and no list of files: everybody who may write to the folder can be a writer, and there
//! may be several, each with its own files and a mark in `.writers`. `.ship` has the state of shipping.
//!
//! Files are written and read with `arrow` and `parquet`; SQL is that of SQLite (docs/decisions/sqlite.md).
mod counts;
mod error;
mod file;
mod identity;
mod newer;
mod paths;
pub mod plain;
pub mod query;
pub mod report;
mod retention;
pub mod shipping;
mod tables;
mod thread;
mod unfinished;
mod writer;
mod writers;

pub use counts::StoreCounts;
pub use error::{Error, Result};
pub use identity::{host_name, probe_name};
pub use tables::{FlowNames, Put, Row, SCHEMA, Storable, Table};
pub use writer::{LEAST_SIZE, MEMORY, ROTATE, ROTATE_SHIPPED, StoreSettings, Writer};
