//! Reads the files that a rule file names, with a limit on their size.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Maximum number of bytes of a rule file; each byte needs several bytes of memory while the file is read. Large
/// numbers of exact-match rules belong in CSV.
pub(super) const LARGEST_RULES: u64 = 16 << 20;
/// Maximum number of bytes of a list of addresses or rules, which is enough for some million entries.
pub(super) const LARGEST_LIST: u64 = 128 << 20;

/// Resolution of the file names in a text.
#[derive(Clone, Debug)]
pub(super) enum Folder {
    /// Relative names are relative to this folder.
    At(PathBuf),
    /// No files: the text is not from a file, and must not name files.
    Nowhere,
}

impl Folder {
    /// The file of this name.
    ///
    /// # Errors
    /// The reason why the name cannot be resolved.
    pub fn file(&self, name: &str) -> Result<PathBuf, String> {
        match self {
            Folder::At(folder) if !name.is_empty() => Ok(folder.join(name)),
            Folder::At(_) => Err("the name of a file is missing".to_owned()),
            Folder::Nowhere => Err("rules that are not in a file cannot name other files".to_owned()),
        }
    }

    /// The folder that contains a file.
    pub fn of(path: &Path) -> Folder {
        Folder::At(path.parent().map(Path::to_path_buf).unwrap_or_default())
    }
}

/// The full name of a file for a message, with control characters escaped for terminals.
pub(super) fn name(path: &Path) -> String {
    path.display().to_string().escape_debug().to_string()
}

/// Reads a text file of at most `most` bytes.
///
/// # Errors
/// The reason why the file cannot be read, worded to follow its name.
pub(super) fn read(path: &Path, most: u64) -> Result<String, String> {
    let failed = |error: std::io::Error| format!("cannot be read: {error}");
    let file = File::open(path).map_err(failed)?;
    // A pipe or a device may have no end or block forever. (/dev/stdin may be either, and is allowed.)
    let kind = file.metadata().map_err(failed)?;
    if kind.is_dir() {
        return Err("is a folder, not a file".to_owned());
    }
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > most {
        return Err(format!("has more than {} MiB", most >> 20));
    }
    // The byte order mark is not part of the text.
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
