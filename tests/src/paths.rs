//! Paths.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// The repository's root.
pub fn repository() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}

/// The `wirelane` that was built beside the running test, or the one that `WIRELANE_BIN` names.
///
/// # Errors
/// Where it has not been built: cargo does not build another package's binary for a test.
pub fn wirelane_binary() -> Result<PathBuf> {
    if let Some(binary) = env::var_os("WIRELANE_BIN") {
        return Ok(PathBuf::from(binary));
    }
    // target/PROFILE/deps/TEST-HASH
    let test = env::current_exe().context("finding the running test")?;
    let profile = test.parent().and_then(Path::parent).context("the test is not in a target folder")?;
    let binary = profile.join("wirelane");
    if !binary.exists() {
        bail!("{} has not been built: run 'cargo build' first, or 'make test'", binary.display());
    }
    Ok(binary)
}

/// The corpus of captures with ground truth: `WIRELANE_CORPUS`, else `../shared/corpus` beside the
/// repository. Where there is none, says that `test` is left out, and gives `None`.
pub fn corpus(test: &str) -> Option<PathBuf> {
    let path =
        env::var_os("WIRELANE_CORPUS").map_or_else(|| repository().join("../shared/corpus"), PathBuf::from);
    if path.join("MANIFEST.tsv").exists() {
        return Some(path);
    }
    println!("left out: {test} (no corpus)");
    None
}
