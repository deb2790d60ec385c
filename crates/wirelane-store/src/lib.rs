//! A store of flows, calls, HTTP transactions and what probes measure: Parquet files in a folder, and questions about them in SQL.
//!
//! ```text
//! flows, calls, ... (Storable) -> Writer -(channel)-> thread: tables -> file (Parquet, zstd) -> unfinished
//!                                                    -> DIR/TABLE/date=.../hour=.../*.parquet
//!                                         retention: what is too old or too much, what dead writers left
//! SQL, questions -> Asker (DataFusion) -> table (which files) -> rows -> report
//! ```
//!
//! A store is a folder with a folder for each table ([`Table`]); below it files lie by the hour in which what they tell of has
//! ended, as Hive has it, so that DuckDB, Spark, pandas and others find `date` and `hour` as
//! columns. A file gets its name when it is whole: until then it is hidden (`.NAME.parquet.part`), which all of these pass
//! over. Nothing else is in a store, no index and no list of files: who may write to the folder is a writer, and several
//! are, each with files of its own.
//!
//! Writing takes no more than `arrow` and `parquet`; asking takes DataFusion, which is heavy to build. Both are in this
//! crate, which nothing but the program's feature `store` needs.
mod error;
mod file;
mod paths;
pub mod plain;
pub mod query;
pub mod report;
mod retention;
mod tables;
mod unfinished;
mod writer;

pub use error::{Error, Result};
pub use tables::{FlowNames, Put, Row, Storable, Table};
pub use writer::{LEAST_SIZE, MEMORY, StoreCounts, StoreSettings, Writer};
