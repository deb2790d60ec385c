//! Files of an adapter, written into the folder of a trial before its sensor starts.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;
use wirelane_probe::placed::At;

/// Maximum number of addresses of a file.
const MOST: u64 = 10_000_000;

/// A file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum File {
    /// This text.
    Text(String),
    /// For each start, this many consecutive addresses, one per line.
    Addresses(Vec<(Ipv4Addr, u32)>),
}

/// A text, or `{ addresses = [["10.1.0.0", 16]] }`.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum Raw {
    Text(String),
    Made(Made),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Made {
    addresses: Vec<(Ipv4Addr, u32)>,
}

/// Files of an adapter; mistakes are added to `found`.
pub(super) fn files(
    raw: At<BTreeMap<String, Raw>>,
    found: &mut Vec<(usize, String)>,
) -> BTreeMap<String, File> {
    let mut files = BTreeMap::new();
    for (name, file) in raw.value {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.is_empty() || name.starts_with('.') || name.len() > 64 || !name.chars().all(is_plain) {
            let wanted = "a file's name is up to 64 letters, digits, '-', '_' and '.'";
            found.push((raw.start, format!("{name:?}: {wanted}")));
        }
        let file = match file {
            Raw::Text(text) => File::Text(text),
            Raw::Made(Made { addresses }) => {
                let reaches = |(first, count): &(Ipv4Addr, u32)| {
                    *count > 0 && u64::from(u32::from(*first)) + u64::from(*count) <= 1 << 32
                };
                let all: u64 = addresses.iter().map(|(_, count)| u64::from(*count)).sum();
                if addresses.is_empty() || all > MOST || !addresses.iter().all(reaches) {
                    let reason =
                        format!("{name}: give addresses, and how many follow on each, {MOST} in all at most");
                    found.push((raw.start, reason));
                }
                File::Addresses(addresses)
            }
        };
        files.insert(name, file);
    }
    files
}

/// Writes the files into a folder.
pub(super) fn write(files: &BTreeMap<String, File>, folder: &Path) -> Result<()> {
    for (name, file) in files {
        let path = folder.join(name);
        let mut text = String::new();
        match file {
            File::Text(given) => text.clone_from(given),
            File::Addresses(ranges) => {
                for (first, count) in ranges {
                    for at in 0..*count {
                        let _ = writeln!(text, "{}", Ipv4Addr::from(u32::from(*first) + at));
                    }
                }
            }
        }
        fs::write(&path, text).with_context(|| path.display().to_string())?;
    }
    Ok(())
}
