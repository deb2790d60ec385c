//! Paths of the repository, the built program and the corpus.

use std::env;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// The repository's root.
pub fn repository() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}

/// The `wirelane` that was built beside the running test, or the one that `WIRELANE_BIN` names.
///
/// # Errors
/// If it has not been built: cargo does not build another package's binary for a test.
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

/// The corpus of captures with ground truth: `WIRELANE_CORPUS`, else `../shared/corpus` beside the repository. `None`
/// if it does not exist, after a message that `test` is skipped.
pub fn corpus(test: &str) -> Option<PathBuf> {
    let path =
        env::var_os("WIRELANE_CORPUS").map_or_else(|| repository().join("../shared/corpus"), PathBuf::from);
    if path.join("MANIFEST.tsv").exists() {
        return Some(path);
    }
    println!("left out: {test} (no corpus)");
    None
}

/// A capture of the corpus.
#[derive(Clone, Debug)]
pub struct Capture {
    /// Name in the corpus.
    pub id: String,
    /// Category: `malformed`, `http`.
    pub category: String,
    /// Packets, as capinfos counts them; as tcpdump does if capinfos does not read the file; 0 if neither does.
    pub packets: u64,
    path: PathBuf,
}

impl Capture {
    /// All captures, in the order of the manifest.
    ///
    /// # Errors
    /// If the manifest cannot be read.
    pub fn all(corpus: &Path) -> Result<Vec<Capture>> {
        let text = fs::read_to_string(corpus.join("MANIFEST.tsv")).context("reading MANIFEST.tsv")?;
        let capture = |line: &str| {
            let columns: Vec<&str> = line.split('\t').collect();
            let [id, path, category, _, _, capinfos, tcpdump, ..] = columns[..] else { return None };
            let packets = capinfos.parse().or_else(|_| tcpdump.parse()).unwrap_or(0);
            Some(Capture {
                id: id.to_owned(),
                category: category.to_owned(),
                packets,
                path: corpus.join(path),
            })
        };
        text.lines()
            .skip(1)
            .map(|line| capture(line).with_context(|| format!("columns of a capture: {line}")))
            .collect()
    }

    /// The capture file, uncompressed.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn bytes(&self) -> Result<Vec<u8>> {
        let raw = fs::read(&self.path).with_context(|| self.path.display().to_string())?;
        if self.path.extension().is_none_or(|extension| extension != "gz") {
            return Ok(raw);
        }
        let mut bytes = Vec::new();
        flate2::read::GzDecoder::new(&raw[..]).read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

/// Writes the packets of all captures of Ethernet in these categories to one file in a folder, one capture after the other.
/// No categories: all. Captures that end within a packet are left out.
///
/// # Errors
/// If Wireshark's tools cannot be run, or fail.
pub fn merged(corpus: &Path, folder: &Path, categories: &[&str]) -> Result<PathBuf> {
    let all = folder.join("all.pcap");
    let mut merge = Command::new("mergecap");
    merge.args(["-a", "-F", "pcap", "-s", "1500", "-w"]).arg(&all);
    for (number, capture) in Capture::all(corpus)?.into_iter().enumerate() {
        if !categories.is_empty() && !categories.contains(&&*capture.category) {
            continue;
        }
        let file = folder.join(number.to_string());
        fs::write(&file, capture.bytes()?)?;
        let link = Command::new("capinfos").args(["-E", "-T", "-r"]).arg(&file).output()?;
        if link.status.success() && String::from_utf8_lossy(&link.stdout).contains("\tether") {
            merge.arg(&file);
        }
    }
    let merged = merge.output()?;
    if !merged.status.success() {
        bail!("mergecap: {}", String::from_utf8_lossy(&merged.stderr));
    }
    Ok(all)
}
