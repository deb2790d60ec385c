//! The files that a rule file names, and how much of them is read.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The most bytes of a rule file, each of which takes several times as much memory while it is read. Many exact-match rules
/// belong into CSV.
pub(super) const LARGEST_RULES: u64 = 16 << 20;
/// The most bytes of a list of addresses or rules: some million.
pub(super) const LARGEST_LIST: u64 = 128 << 20;

/// Where the names of files in a text lead.
#[derive(Clone, Debug)]
pub(super) enum Folder {
    /// Relative ones to this folder.
    At(PathBuf),
    /// Nowhere: the text is no file, and files are not for it to name.
    Nowhere,
}

impl Folder {
    /// The file of this name.
    ///
    /// # Errors
    /// Why there is none.
    pub fn file(&self, name: &str) -> Result<PathBuf, String> {
        match self {
            Folder::At(folder) if !name.is_empty() => Ok(folder.join(name)),
            Folder::At(_) => Err("the name of a file is missing".to_owned()),
            Folder::Nowhere => Err("rules that are not in a file cannot name other files".to_owned()),
        }
    }

    /// The folder that a file is in.
    pub fn of(path: &Path) -> Folder {
        Folder::At(path.parent().map(Path::to_path_buf).unwrap_or_default())
    }
}

/// The name of a file in a message: whole, and such that nothing in it reaches a terminal as it is.
pub(super) fn name(path: &Path) -> String {
    path.display().to_string().escape_debug().to_string()
}

/// Reads a text file of at most so many bytes.
///
/// # Errors
/// What is wrong with it.
pub(super) fn read(path: &Path, most: u64) -> Result<String, String> {
    let failed = |error: std::io::Error| format!("cannot be read: {error}");
    let file = File::open(path).map_err(failed)?;
    // A pipe or a device may have no end, or never a beginning. (/dev/stdin may be any of these, and is asked for.)
    let kind = file.metadata().map_err(failed)?;
    if kind.is_dir() {
        return Err("is a folder, not a file".to_owned());
    }
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > most {
        return Err(format!("has more than {} MiB", most >> 20));
    }
    // A byte order mark is no part of the text.
    if bytes.starts_with(b"\xef\xbb\xbf") {
        bytes.drain(..3);
    }
    String::from_utf8(bytes).map_err(|error| {
        let line = 1 + error.as_bytes()[..error.utf8_error().valid_up_to()]
            .iter()
            .filter(|byte| **byte == b'\n')
            .count();
        format!("is not UTF-8 in line {line}")
    })
}
