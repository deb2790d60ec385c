//! DuckDB as an independent reader of a store.

use crate::python::{fed, with_module};
use crate::repository;

/// Output of a Python script, run by the interpreter into which scripts/setup has installed duckdb, or by another that
/// has it.
///
/// # Panics
/// If the script fails.
pub fn duckdb(script: &str) -> Option<String> {
    let own = repository().join("target/python/bin/python3");
    let Some(python) = with_module(&[own.to_str().unwrap(), "python3"], "duckdb") else {
        println!("left out: what DuckDB makes of the store (it is not installed: scripts/setup kernels)");
        return None;
    };
    Some(fed(python, script, "").trim().to_owned())
}
