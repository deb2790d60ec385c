//! Writes `tests/BATTERY.md`, or, with codes of items as arguments, runs their tests, the long ones included.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use wirelane_tests::battery::{table, tests};
use wirelane_tests::repository;

fn main() -> Result<()> {
    let codes: Vec<String> = env::args().skip(1).collect();
    let repository = repository();
    if codes.is_empty() {
        let path = repository.join("tests/BATTERY.md");
        return fs::write(&path, table(&repository)?).with_context(|| path.display().to_string());
    }
    let tests = tests(&repository)?;
    // The tests of a package in one call of cargo.
    let mut packages: BTreeMap<PathBuf, BTreeSet<&str>> = BTreeMap::new();
    for code in &codes {
        for test in tests.get(code).with_context(|| format!("no test names item {code}"))? {
            let manifest = manifest(&repository.join(&test.file))?;
            packages.entry(manifest).or_default().insert(&test.name);
        }
    }
    for (manifest, names) in packages {
        let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.args(["test", "--manifest-path"]).arg(&manifest);
        command.args(["--", "--include-ignored", "--show-output"]).args(names);
        let status = command.status().with_context(|| format!("starting {command:?}"))?;
        ensure!(status.success(), "{command:?}: {status}");
    }
    Ok(())
}

/// The manifest of the package that a source file belongs to.
fn manifest(source: &Path) -> Result<PathBuf> {
    let manifests = source.ancestors().skip(1).map(|folder| folder.join("Cargo.toml"));
    manifests
        .into_iter()
        .find(|path| path.exists())
        .with_context(|| format!("{} belongs to no package", source.display()))
}
