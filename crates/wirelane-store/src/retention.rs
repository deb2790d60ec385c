//! Retention: deletes files by age and total size, and unfinished files of dead writers.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use crate::paths;
use crate::shipping::Guard;
use crate::tables::Table;
use crate::unfinished;
use crate::writers;

/// How long a killed process is reported, where `Keep` has no age.
const REPORTED: Duration = Duration::from_secs(90 * 86_400);

/// Limits of a store. Both apply.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Keep {
    /// How long rows are kept after the end of their flows, calls or transactions; a file is deleted when its whole
    /// hour is older.
    pub(crate) age: Option<Duration>,
    /// Bytes of all tables, including unfinished files.
    pub(crate) size: Option<u64>,
}

/// Removed files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Gone {
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    pub(crate) parts: u64,
    /// Rows of these files that were not shipped.
    pub(crate) unshipped_rows: u64,
}

/// Applies retention to a store at `now_s` (seconds since 1970): by age to the tables `aged`, by size to all tables,
/// the oldest hour first. Several processes may do this at the same time. If the store is shipped, files that a target
/// lacks are removed by size only, after those that all have, and files on their way are not removed.
///
/// # Errors
/// The last error of removing or listing; the rest is removed all the same.
pub(crate) fn sweep(store: &Path, aged: &[Table], keep: Keep, now_s: i64) -> (Gone, io::Result<()>) {
    let mut gone = Gone::default();
    let mut result = Ok(());
    let (mut files, mut parts, mut empty) = (Vec::new(), Vec::new(), Vec::new());
    for table in Table::ALL {
        let folder = store.join(table.name());
        match paths::list(&folder) {
            Ok(listing) => {
                files.extend(listing.files.into_iter().map(|file| (file, table)));
                parts.extend(listing.parts);
                empty.extend(listing.empty);
            }
            // A store contains only tables that were written.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => result = Err(named(&folder, &error)),
        }
    }
    files.sort();
    let mut total: u64 = files.iter().filter(|(file, _)| file.ours).map(|(file, _)| file.size).sum();
    for part in parts {
        match unfinished::clear(&part.path) {
            Ok(true) => gone.parts += 1,
            Ok(false) => total += part.size,
            Err(error) => result = Err(named(&part.path, &error)),
        }
    }
    let guard = match Guard::take(store) {
        Ok(guard) => guard,
        // Removing what may not have arrived would be silent loss.
        Err(error) => return (gone, Err(error)),
    };
    let arrived = |file: &paths::Stored| guard.as_ref().is_none_or(|guard| guard.has_arrived(&file.path));
    let is_known = |mark: &Path| guard.as_ref().is_none_or(|guard| guard.has_arrived(mark));
    result = writers::sweep(store, keep.age.unwrap_or(REPORTED), now_s, &is_known).and(result);
    // The order among equals is kept.
    let (first, last): (Vec<_>, Vec<_>) = files.iter().partition(|(file, _)| arrived(file));
    for (file, table) in first.iter().chain(&last).filter(|(file, _)| file.ours) {
        let has_arrived = arrived(file);
        let end_s = (file.hour + 1) * 3600;
        let keep_age = keep.age.filter(|_| aged.contains(table));
        let old = keep_age.is_some_and(|age| now_s.saturating_sub(end_s) > age.as_secs() as i64);
        let much = keep.size.is_some_and(|most| total > most);
        if !(much || old && has_arrived) {
            continue;
        }
        if let Some(guard) = guard.as_ref().filter(|_| !has_arrived) {
            if guard.is_pending(&file.path) || !file.path.exists() {
                continue;
            }
            match guard.note(&file.path, *table, file.hour) {
                Ok(rows) => gone.unshipped_rows += rows.unwrap_or(0),
                Err(error) => {
                    result = Err(error);
                    continue;
                }
            }
        }
        total -= file.size;
        match fs::remove_file(&file.path) {
            Ok(()) => {
                gone.files += 1;
                gone.bytes += file.size;
            }
            // Another writer removed it first.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                total += file.size;
                result = Err(named(&file.path, &error));
            }
        }
    }
    for folder in empty {
        // Removes the folder only if it is empty; then the date's folder, if that was its last hour.
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

    use crate::shipping;

    const FLOWS: &[Table] = &[Table::Flows];

    fn table(store: &Path) -> PathBuf {
        store.join(Table::Flows.name())
    }

    /// Creates a file of so many bytes in each of these hours.
    fn fill(table: &Path, hours: std::ops::Range<i64>, bytes: usize) -> Vec<PathBuf> {
        let make = |hour: i64| {
            let folder = paths::folder(table, hour);
            fs::create_dir_all(&folder).unwrap();
            let name = paths::new_name(DateTime::from_timestamp(hour * 3600, 0).unwrap());
            let path = folder.join(name);
            fs::write(&path, vec![0; bytes]).unwrap();
            path
        };
        hours.map(make).collect()
    }

    #[test]
    fn the_oldest_go_by_age_and_by_size_and_nothing_that_is_not_ours() {
        let store = tempfile::tempdir().unwrap();
        let files = fill(&table(store.path()), 1000..1010, 100);
        let foreign = paths::folder(&table(store.path()), 1000).join("mine.parquet");
        fs::write(&foreign, "x").unwrap();
        let there = || files.iter().map(|file| file.exists()).collect::<Vec<_>>();
        // Hour 1001 ended exactly two hours ago.
        let now = 1004 * 3600;
        let keep = Keep { age: Some(Duration::from_secs(7200)), size: None };
        let (gone, result) = sweep(store.path(), FLOWS, keep, now);
        result.unwrap();
        assert_eq!(gone, Gone { files: 1, bytes: 100, ..Gone::default() });
        assert_eq!(there(), [&[false][..], &[true; 9]].concat());
        let keep = Keep { age: None, size: Some(450) };
        let (gone, result) = sweep(store.path(), FLOWS, keep, now);
        result.unwrap();
        assert_eq!(gone, Gone { files: 5, bytes: 500, ..Gone::default() });
        assert_eq!(there(), [&[false; 6][..], &[true; 4]].concat());
        assert!(foreign.exists());
        // Folders that are empty now are removed by the next sweep.
        sweep(store.path(), FLOWS, keep, now).1.unwrap();
        assert!(paths::folder(&table(store.path()), 1000).exists(), "something is in it");
        assert!(!paths::folder(&table(store.path()), 1001).exists());
    }

    #[test]
    fn age_is_of_a_table_and_size_of_all() {
        let store = tempfile::tempdir().unwrap();
        let flows = fill(&table(store.path()), 1000..1003, 100);
        let calls = fill(&store.path().join("calls"), 1000..1003, 100);
        let there = |files: &[PathBuf]| files.iter().map(|file| file.exists()).collect::<Vec<_>>();
        let keep = Keep { age: Some(Duration::from_secs(3600)), size: None };
        let (gone, result) = sweep(store.path(), &[Table::Calls], keep, 1002 * 3600 + 1);
        result.unwrap();
        assert_eq!((gone.files, there(&calls)), (1, vec![false, true, true]));
        assert_eq!(there(&flows), [true; 3]);
        let keep = Keep { age: None, size: Some(250) };
        sweep(store.path(), FLOWS, keep, 0).1.unwrap();
        assert_eq!((there(&flows), there(&calls)), (vec![false, false, true], vec![false, false, true]));
    }

    #[test]
    fn what_was_not_shipped_goes_last_by_size_only_and_is_noted() {
        let store = tempfile::tempdir().unwrap();
        let files = fill(&table(store.path()), 1000..1004, 100);
        let there = || files.iter().map(|file| file.exists()).collect::<Vec<_>>();
        let inside = |at: usize| files[at].strip_prefix(store.path()).unwrap().to_owned();
        let lock = shipping::Lock::shipper(store.path()).unwrap().unwrap();
        assert!(shipping::Lock::shipper(store.path()).unwrap().is_none(), "a second shipper");
        let mut outbox = shipping::Outbox::open(store.path(), "a", shipping::Merged::default()).unwrap();
        // The third has arrived, the first is on its way.
        assert!(outbox.claim(Table::Flows, vec![inside(2)]).unwrap());
        outbox.arrived().unwrap();
        assert!(outbox.claim(Table::Flows, vec![inside(0)]).unwrap());
        let keep = Keep { age: Some(Duration::from_secs(1)), size: None };
        let (gone, result) = sweep(store.path(), FLOWS, keep, 2000 * 3600);
        result.unwrap();
        assert_eq!((gone.files, there()), (1, vec![true, true, false, true]));
        let (gone, result) = sweep(store.path(), FLOWS, Keep { age: None, size: Some(150) }, 0);
        result.unwrap();
        assert_eq!((gone.files, there()), (2, vec![true, false, false, false]));
        let taken: Vec<PathBuf> = outbox.taken().unwrap().into_iter().map(|one| one.file).collect();
        assert_eq!(taken, [inside(1), inside(3)]);
        // What happened before a process was killed is known to the next one.
        drop((outbox, lock));
        let _lock = shipping::Lock::shipper(store.path()).unwrap().unwrap();
        let mut outbox = shipping::Outbox::open(store.path(), "a", shipping::Merged::default()).unwrap();
        assert_eq!(outbox.pending().unwrap().files, [inside(0)]);
        outbox.arrived().unwrap();
        assert!(outbox.waiting(Table::Flows).unwrap().is_empty() && outbox.pending().is_none());
        let shipped = store.path().join(".ship/a/shipped");
        let mut torn = fs::read(&shipped).unwrap();
        torn.extend_from_slice(b"[\"flows/date=");
        fs::write(&shipped, torn).unwrap();
        let open = || shipping::Outbox::open(store.path(), "a", shipping::Merged::default()).unwrap();
        let names = || {
            let text = fs::read_to_string(&shipped).unwrap();
            let lines = text.lines().map(|line| serde_json::from_str::<Vec<PathBuf>>(line).unwrap());
            lines.flatten().collect::<Vec<_>>()
        };
        let mut outbox = open();
        assert_eq!(outbox.taken().unwrap().len(), 2);
        // The third was removed after it had arrived: nothing has to be known of it.
        assert_eq!(names(), [inside(0)]);
        fs::remove_file(&files[0]).unwrap();
        outbox.reported(&outbox.taken().unwrap().remove(0)).unwrap();
        assert_eq!(open().taken().unwrap().len(), 1);
        assert_eq!(names(), [inside(1)], "it would be reported again");
    }

    /// Battery: F4
    #[test]
    fn what_a_dead_writer_left_goes_and_what_is_being_written_stays() {
        let store = tempfile::tempdir().unwrap();
        let folder = paths::folder(&table(store.path()), 1000);
        let live = unfinished::Unfinished::create(&folder).unwrap();
        let dead = folder.join(paths::part_of(&paths::new_name(chrono::Utc::now())));
        fs::write(&dead, "half").unwrap();
        let (gone, result) = sweep(store.path(), FLOWS, Keep::default(), 0);
        result.unwrap();
        assert_eq!(gone, Gone { parts: 1, ..Gone::default() });
        assert!(!dead.exists() && live.path().exists());
        drop(live);
        assert_eq!(sweep(store.path(), FLOWS, Keep::default(), 0).0.parts, 1, "a lock ends with its holder");
    }
}
