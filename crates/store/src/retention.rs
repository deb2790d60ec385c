//! What goes: files that are too old, the oldest where there is too much, and what dead writers left.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use crate::place::{self, Listing};
use crate::unfinished;

/// How much of a store is kept. Both hold.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Keep {
    /// How long a flow is kept after its end; files go when their whole hour is older.
    pub(crate) age: Option<Duration>,
    /// Bytes, with those of files that are not whole yet.
    pub(crate) size: Option<u64>,
}

/// What has gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Gone {
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    pub(crate) parts: u64,
}

/// Removes what is to go from a table, at this time in seconds since 1970. Others may do the same at once.
///
/// # Errors
/// The last thing that could not be removed, or listed; the rest is removed all the same.
pub(crate) fn sweep(table: &Path, keep: Keep, now_s: i64) -> (Gone, io::Result<()>) {
    let mut gone = Gone::default();
    let Listing { files, parts, empty } = match place::list(table) {
        Ok(listing) => listing,
        Err(error) => return (gone, Err(named(table, &error))),
    };
    let mut result = Ok(());
    let mut total: u64 = files.iter().filter(|file| file.ours).map(|file| file.size).sum();
    for part in parts {
        match unfinished::clear(&part.path) {
            Ok(true) => gone.parts += 1,
            Ok(false) => total += part.size,
            Err(error) => result = Err(named(&part.path, &error)),
        }
    }
    for file in files.iter().filter(|file| file.ours) {
        let end_s = (file.hour + 1) * 3600;
        let old = keep.age.is_some_and(|age| now_s.saturating_sub(end_s) > age.as_secs() as i64);
        let much = keep.size.is_some_and(|most| total > most);
        if !old && !much {
            continue;
        }
        total -= file.size;
        match fs::remove_file(&file.path) {
            Ok(()) => {
                gone.files += 1;
                gone.bytes += file.size;
            }
            // Another writer was faster.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                total += file.size;
                result = Err(named(&file.path, &error));
            }
        }
    }
    for folder in empty {
        // Only while it is empty; the date's, too, where that was its last hour.
        if fs::remove_dir(&folder).is_ok()
            && let Some(date) = folder.parent()
        {
            let _ = fs::remove_dir(date);
        }
    }
    (gone, result)
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use chrono::DateTime;
    use std::path::PathBuf;

    /// A file of so many bytes in each of these hours.
    fn fill(table: &Path, hours: std::ops::Range<i64>, bytes: usize) -> Vec<PathBuf> {
        let make = |hour: i64| {
            let folder = place::folder(table, hour);
            fs::create_dir_all(&folder).unwrap();
            let name = place::new_name(DateTime::from_timestamp(hour * 3600, 0).unwrap());
            let path = folder.join(name);
            fs::write(&path, vec![0; bytes]).unwrap();
            path
        };
        hours.map(make).collect()
    }

    #[test]
    fn the_oldest_go_by_age_and_by_size_and_nothing_that_is_not_ours() {
        let store = tempfile::tempdir().unwrap();
        let files = fill(store.path(), 1000..1010, 100);
        let foreign = place::folder(store.path(), 1000).join("mine.parquet");
        fs::write(&foreign, "x").unwrap();
        let there = || files.iter().map(|file| file.exists()).collect::<Vec<_>>();
        // Hour 1001 has ended two hours ago, to the second.
        let now = 1004 * 3600;
        let keep = Keep { age: Some(Duration::from_secs(7200)), size: None };
        let (gone, result) = sweep(store.path(), keep, now);
        result.unwrap();
        assert_eq!(gone, Gone { files: 1, bytes: 100, parts: 0 });
        assert_eq!(there(), [&[false][..], &[true; 9]].concat());
        let keep = Keep { age: None, size: Some(450) };
        let (gone, result) = sweep(store.path(), keep, now);
        result.unwrap();
        assert_eq!(gone, Gone { files: 5, bytes: 500, parts: 0 });
        assert_eq!(there(), [&[false; 6][..], &[true; 4]].concat());
        assert!(foreign.exists());
        // What is empty now goes the next time.
        sweep(store.path(), keep, now).1.unwrap();
        assert!(place::folder(store.path(), 1000).exists(), "something is in it");
        assert!(!place::folder(store.path(), 1001).exists());
    }

    #[test]
    fn what_a_dead_writer_left_goes_and_what_is_being_written_stays() {
        let store = tempfile::tempdir().unwrap();
        let folder = place::folder(store.path(), 1000);
        let live = unfinished::Unfinished::create(&folder).unwrap();
        let dead = folder.join(place::part_of(&place::new_name(chrono::Utc::now())));
        fs::write(&dead, "half").unwrap();
        let (gone, result) = sweep(store.path(), Keep::default(), 0);
        result.unwrap();
        assert_eq!(gone, Gone { files: 0, bytes: 0, parts: 1 });
        assert!(!dead.exists() && live.path().exists());
        drop(live);
        assert_eq!(sweep(store.path(), Keep::default(), 0).0.parts, 1, "a lock ends with its holder");
    }
}
