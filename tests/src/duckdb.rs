//! DuckDB as an independent reader of a store.

use std::process::Command;

use crate::repository;

/// Output of a Python script, run by the interpreter into which scripts/setup has installed duckdb, or by another that
/// has it.
///
/// # Panics
/// If the script fails.
pub fn duckdb(script: &str) -> Option<String> {
    let own = repository().join("target/python/bin/python3");
    let found = [own.to_str().unwrap(), "python3"].into_iter().find(|python| {
        let import = Command::new(python).args(["-c", "import duckdb"]).output();
        import.is_ok_and(|output| output.status.success())
    });
    let Some(python) = found else {
        println!("left out: what DuckDB makes of the store (it is not installed: scripts/setup kernels)");
        return None;
    };
    let output = Command::new(python).args(["-c", script]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    Some(String::from_utf8(output.stdout).unwrap().trim().to_owned())
}
