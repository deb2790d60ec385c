//! Files for reading: those that `-r` names as files, patterns and folders.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::Result;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use wirelane::{Error, FileInput};

/// Endings of capture files in a folder, before `.gz`, `.zst` and tcpdump's numbers.
const ENDINGS: [&str; 3] = [".pcap", ".pcapng", ".cap"];
/// Descriptors for everything except the files that are read.
const OTHER_DESCRIPTORS: u64 = 256;

/// A usage error of `-r`.
fn wrong(reason: String) -> anyhow::Error {
    Error::BadOption { option: "-r", reason }.into()
}

/// The files that these names stand for, each once: the name of a file, a pattern (`*`, `?`, `[...]`) where no file has
/// that name, or a folder for the capture files in it. Files of a pattern or folder are in the order of their names.
///
/// # Errors
/// If a pattern or a folder contains no file, or a folder cannot be read.
pub fn expand(names: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for name in names {
        let found = match name.to_str() {
            _ if name.is_dir() => in_folder(name)?,
            Some(pattern) if pattern.contains(['*', '?', '[']) && !name.exists() => matching(pattern)?,
            _ => vec![name.clone()],
        };
        files.extend(found);
    }
    let mut seen = std::collections::HashSet::new();
    files.retain(|file| seen.insert(file.clone()));
    Ok(files)
}

fn matching(pattern: &str) -> Result<Vec<PathBuf>> {
    let paths =
        glob::glob(pattern).map_err(|error| wrong(format!("invalid pattern '{pattern}': {error}")))?;
    let files: Vec<PathBuf> = paths.filter_map(Result::ok).filter(|path| path.is_file()).collect();
    if files.is_empty() {
        return Err(wrong(format!("no file matches the pattern '{pattern}'")));
    }
    Ok(files)
}

fn in_folder(folder: &Path) -> Result<Vec<PathBuf>> {
    let failed = |source| Error::Io { path: folder.to_owned(), source };
    let mut files = Vec::new();
    for entry in folder.read_dir().map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.file_name().and_then(|name| name.to_str()).is_some_and(is_capture) && path.is_file() {
            files.push(path);
        }
    }
    if files.is_empty() {
        let reason = format!(
            "the folder {} contains no file *.pcap, *.pcapng or *.cap (also with .gz or .zst)",
            folder.display()
        );
        return Err(wrong(reason));
    }
    files.sort();
    Ok(files)
}

/// The text of a file with at most this many bytes, and one more if it is longer; `-` is standard input.
///
/// # Errors
/// It cannot be read, or is not UTF-8.
pub fn text(path: &Path, most: u64) -> Result<String> {
    let mut text = String::new();
    let read = if path.as_os_str() == "-" {
        std::io::stdin().lock().take(most + 1).read_to_string(&mut text)
    } else {
        File::open(path).and_then(|file| file.take(most + 1).read_to_string(&mut text))
    };
    read.map_err(|source| Error::Io { path: path.to_owned(), source })?;
    Ok(text)
}

/// Whether a folder's file of this name is read; tcpdump -C numbers its files (`x.pcap3`).
fn is_capture(name: &str) -> bool {
    let name = name.strip_suffix(".gz").or_else(|| name.strip_suffix(".zst")).unwrap_or(name);
    let name = name.trim_end_matches(|c: char| c.is_ascii_digit()).to_ascii_lowercase();
    ENDINGS.iter().any(|ending| name.ends_with(ending))
}

/// Opens all files. Descriptors, and not names, are kept until a file's time comes: then the process has no right to open
/// files any more.
///
/// # Errors
/// If a file cannot be opened, or the process may not have so many open.
pub fn open(files: &[PathBuf]) -> Result<Vec<FileInput>> {
    let needed = 2 * files.len() as u64 + OTHER_DESCRIPTORS;
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < needed) {
        if limit.maximum.is_some_and(|maximum| maximum < needed) {
            let reason = format!(
                "{} files are more than this process may open at once; raise the limit (ulimit -n {needed}), or read \
                 fewer files",
                files.len()
            );
            return Err(wrong(reason));
        }
        setrlimit(Resource::Nofile, Rlimit { current: Some(needed), ..limit })?;
    }
    files.iter().map(|file| Ok(FileInput::open(file)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_capture_files() {
        for name in
            ["a.pcap", "a.pcapng", "A.PCAP", "a.cap", "a.pcap12", "a.pcapng.zst", "a.pcap.gz", "a.pcap3.gz"]
        {
            assert!(is_capture(name), "{name}");
        }
        for name in ["a.pcapng.part", "a.txt", "pcap", "a.gz", "a.pcap.idx", "12"] {
            assert!(!is_capture(name), "{name}");
        }
    }

    #[test]
    fn names_patterns_and_folders_stand_for_files() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for name in ["b.pcap", "a.pcap", "c[1].pcap", "x.txt"] {
            std::fs::write(path(name), "").unwrap();
        }
        let all = [path("a.pcap"), path("b.pcap"), path("c[1].pcap")];
        assert_eq!(expand(&[folder.path().to_owned()]).unwrap(), all);
        assert_eq!(expand(&[path("*.pcap"), path("a.pcap")]).unwrap(), all);
        assert_eq!(expand(&[path("c[1].pcap")]).unwrap(), [path("c[1].pcap")], "a file has this name");
        assert_eq!(expand(&[path("missing.pcap")]).unwrap(), [path("missing.pcap")]);
        let error = |name: &str| expand(&[path(name)]).unwrap_err().to_string();
        assert!(error("*.none").contains("no file matches the pattern"));
        assert!(error("[").contains("invalid pattern"), "{}", error("["));
        std::fs::create_dir(path("empty")).unwrap();
        assert!(error("empty").contains("contains no file *.pcap"));
    }
}
