//! Folders and names of files.
//!
//! `DIR/flows/date=2026-11-23/hour=04/20261123T041500Z-1f0c9a2b7d3e4f56.parquet`: the folder is the hour in which the
//! flows (calls, transactions) ended, and the time in the name is when the file was begun, both in UTC; the rest of the
//! name is random, so that writers do not collide.

use std::ffi::OsStr;
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::{Path, PathBuf};

use chrono::{DateTime, NaiveDate, Utc};

/// Nanoseconds of an hour.
pub(crate) const HOUR_NS: u64 = 3_600_000_000_000;

/// Number of an hour since 1970.
pub(crate) type Hour = i64;

/// Folder of an hour inside the folder of a table.
pub(crate) fn folder(table: &Path, hour: Hour) -> PathBuf {
    let time = DateTime::<Utc>::from_timestamp(hour * 3600, 0).unwrap_or_default();
    table.join(format!("date={}", time.format("%Y-%m-%d"))).join(format!("hour={}", time.format("%H")))
}

/// A new name for a file that begins at this time.
pub(crate) fn new_name(now: DateTime<Utc>) -> String {
    // The standard library seeds each hasher differently, from the kernel's random numbers.
    let random = RandomState::new().hash_one(std::process::id());
    format!("{}-{random:016x}.parquet", now.format("%Y%m%dT%H%M%SZ"))
}

/// Name of the file while it is unfinished.
pub(crate) fn part_of(name: &str) -> String {
    format!(".{name}.part")
}

/// Whether this is a name that our writers generate.
fn is_name(name: &str) -> bool {
    let shape = b"dddddddd.dddddd.-xxxxxxxxxxxxxxxx";
    let Some(stem) = name.strip_suffix(".parquet") else { return false };
    stem.len() == shape.len()
        && stem.bytes().zip(shape).all(|(byte, shape)| match shape {
            b'd' => byte.is_ascii_digit(),
            b'x' => byte.is_ascii_hexdigit(),
            b'-' => byte == b'-',
            _ => byte == b'T' || byte == b'Z',
        })
}

/// A file of a table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Stored {
    /// Hour of the file's folder.
    pub(crate) hour: Hour,
    /// Path of the file.
    pub(crate) path: PathBuf,
    /// Size in bytes.
    pub(crate) size: u64,
    /// Whether the name is one of ours: retention removes only such files.
    pub(crate) ours: bool,
}

/// Contents of a table's folder.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    /// Complete files, the oldest first.
    pub(crate) files: Vec<Stored>,
    /// Unfinished files of ours.
    pub(crate) parts: Vec<Stored>,
    /// Empty folders of hours.
    pub(crate) empty: Vec<PathBuf>,
}

/// Lists a table's folder, without following links. Files that disappear meanwhile are omitted.
///
/// # Errors
/// If the folder of the table cannot be read.
pub(crate) fn list(table: &Path) -> io::Result<Listing> {
    let mut listing = Listing::default();
    for (date, date_folder) in folders(table, "date=")? {
        let Ok(date) = NaiveDate::parse_from_str(&date, "%Y-%m-%d") else { continue };
        for (hour, hour_folder) in folders(&date_folder, "hour=").unwrap_or_default() {
            let Some(time) = hour.parse().ok().and_then(|hour| date.and_hms_opt(hour, 0, 0)) else {
                continue;
            };
            let hour = time.and_utc().timestamp() / 3600;
            let Ok(entries) = fs::read_dir(&hour_folder) else { continue };
            let mut is_empty = true;
            for entry in entries.flatten() {
                is_empty = false;
                let (name, path) = (entry.file_name(), entry.path());
                let Ok(metadata) = entry.metadata() else { continue };
                let Some(name) = name.to_str().filter(|_| metadata.is_file()) else { continue };
                let stored = |ours| Stored { hour, path, size: metadata.len(), ours };
                let part = name.strip_prefix('.').and_then(|name| name.strip_suffix(".part"));
                match part {
                    Some(whole) if is_name(whole) => listing.parts.push(stored(true)),
                    Some(_) => {}
                    // Hidden files are ignored, as other tools do.
                    None if name.ends_with(".parquet") && !name.starts_with(['.', '_']) => {
                        listing.files.push(stored(is_name(name)));
                    }
                    None => {}
                }
            }
            if is_empty {
                listing.empty.push(hour_folder);
            }
        }
    }
    listing.files.sort();
    Ok(listing)
}

/// Subfolders whose names begin with `prefix`, named without it.
fn folders(folder: &Path, prefix: &str) -> io::Result<Vec<(String, PathBuf)>> {
    let entries = fs::read_dir(folder)?.flatten();
    let entries = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let named = |name: &OsStr| Some(name.to_str()?.strip_prefix(prefix)?.to_owned());
    Ok(entries.filter_map(|entry| Some((named(&entry.file_name())?, entry.path()))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_those_of_hive_and_names_are_known_again() {
        let folder = folder(Path::new("s/flows"), 498_676);
        assert_eq!(folder, Path::new("s/flows/date=2026-11-21/hour=04"));
        let name = new_name(DateTime::from_timestamp(1_795_234_500, 0).unwrap());
        assert!(name.starts_with("20261121T041500Z-"), "{name}");
        assert!(is_name(&name));
        for other in
            ["a.parquet", "20261121T041500Z-0.parquet", "20261121T041500Z-1f0c9a2b7d3e4f5g.parquet", "x"]
        {
            assert!(!is_name(other), "{other}");
        }
        assert_ne!(name, new_name(DateTime::from_timestamp(1_795_234_500, 0).unwrap()));
    }

    #[test]
    fn a_listing_has_whole_files_in_order_and_leaves_out_what_is_not_ours() {
        let store = tempfile::tempdir().unwrap();
        let hour = folder(store.path(), 498_676);
        fs::create_dir_all(&hour).unwrap();
        fs::create_dir_all(folder(store.path(), 498_677)).unwrap();
        fs::create_dir_all(store.path().join("date=yesterday/hour=1")).unwrap();
        let ours = new_name(Utc::now());
        for name in
            [ours.as_str(), "zz.parquet", "_x.parquet", ".y.parquet", "notes", &part_of(&ours), ".z.part"]
        {
            fs::write(hour.join(name), name).unwrap();
        }
        std::os::unix::fs::symlink("/etc/passwd", hour.join("link.parquet")).unwrap();
        let listing = list(store.path()).unwrap();
        let names: Vec<_> = listing.files.iter().map(|file| file.path.file_name().unwrap()).collect();
        assert_eq!(names, [OsStr::new(&ours), OsStr::new("zz.parquet")]);
        assert_eq!([listing.files[0].ours, listing.files[1].ours], [true, false]);
        assert_eq!((listing.files[0].hour, listing.files[0].size), (498_676, ours.len() as u64));
        assert_eq!(listing.parts.len(), 1);
        assert_eq!(listing.empty, [folder(store.path(), 498_677)]);
    }
}
