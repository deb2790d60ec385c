//! Unfinished files of calls or events, and removal of those of dead processes.
//!
//! A process does not hold any of these files open, so it cannot lock them. It has a lock file beside them,
//! `.MARK.pcapng.lock`, on which it holds a lock (flock(2)) that the kernel releases with the process, whatever ends
//! it. Parts contain the mark in their names, `.MARK-CALL.pcapng.part`. The lock file is created before the first part
//! and removed after the last, so parts belong to a dead process if no process holds their lock, or if there is no lock
//! file. The next process removes them, as a process that ends regularly removes those of unfinished calls.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FlockOperation, RenameFlags, flock, renameat_with};
use rustix::io::Errno;

use crate::folder;

/// Attempts to create a lock file while other processes remove it as a dead process's.
const ATTEMPTS: u32 = 16;

/// A process's parts in a folder. The lock file is removed on drop.
#[derive(Debug)]
pub(crate) struct Parts {
    folder: PathBuf,
    mark: String,
    /// Descriptor that holds the lock.
    held: File,
}

fn lock_of(folder: &Path, mark: &str) -> PathBuf {
    folder.join(format!(".{mark}.pcapng.lock"))
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// The mark in a name of ours, and whether the name is that of a part.
fn mark_of(name: &str) -> Option<(&str, bool)> {
    let (mark, rest) = name.strip_prefix('.')?.split_at_checked(16)?;
    let is_mark = mark.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
    let number = || rest.strip_prefix('-')?.strip_suffix(".pcapng.part");
    let is_part = number().is_some_and(|call| call.parse::<u64>().is_ok());
    (is_mark && (is_part || rest == ".pcapng.lock")).then_some((mark, is_part))
}

impl Parts {
    /// Opens this folder, which is created if it is missing, accessible only for its owner. `owner`: owner of the
    /// folder and of the lock file.
    ///
    /// # Errors
    /// If no file can be created there.
    pub(crate) fn open(folder: &Path, owner: Option<(u32, u32)>) -> io::Result<Parts> {
        folder::make(folder, 0o700, owner)?;
        for _ in 0..ATTEMPTS {
            // The standard library seeds each hasher differently, from the kernel's random numbers.
            let mark = format!("{:016x}", RandomState::new().hash_one(std::process::id()));
            let path = lock_of(folder, &mark);
            let mut options = OpenOptions::new();
            options.write(true).create_new(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
            let file = match options.open(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                result => result?,
            };
            // Before the lock is held, another process may have removed the file as a dead process's.
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) if file.metadata()?.nlink() > 0 => {}
                Ok(()) | Err(Errno::WOULDBLOCK) => continue,
                Err(error) => return Err(error.into()),
            }
            let parts = Parts { folder: folder.to_owned(), mark, held: file };
            if let Some((uid, gid)) = owner {
                // A later capture with fewer privileges can then check whether the lock is held.
                fchown(&parts.held, Some(uid), Some(gid))?;
            }
            return Ok(parts);
        }
        Err(io::Error::other("the lock file was removed repeatedly by another process"))
    }

    /// Name of a call's file during the call.
    pub(crate) fn part(&self, call: u64) -> PathBuf {
        self.folder.join(format!(".{}-{call}.pcapng.part", self.mark))
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        // If the file stays, the next process removes it.
        let _ = fs::remove_file(lock_of(&self.folder, &self.mark));
    }
}

/// Removes the files of dead processes in this folder; returns the number of parts.
///
/// # Errors
/// The last error of checking or removing; the rest is removed all the same.
pub(crate) fn sweep(folder: &Path) -> (u64, io::Result<()>) {
    let mut found: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) => return (0, Err(named(folder, &error))),
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        if let Some((mark, is_part)) = name.to_str().and_then(mark_of) {
            let parts = found.entry(mark.to_owned()).or_default();
            parts.extend(is_part.then(|| entry.path()));
        }
    }
    let (mut gone, mut result) = (0, Ok(()));
    for (mark, parts) in found {
        let lock = lock_of(folder, &mark);
        // Held until the parts are removed, so that two concurrent sweeps do not count them twice.
        let held = match holder(&lock) {
            Ok(Holder::Dead(held)) => held,
            Ok(Holder::Lives) => continue,
            Err(error) => {
                result = Err(named(&lock, &error));
                continue;
            }
        };
        for path in parts.iter().chain(held.is_some().then_some(&lock)) {
            match fs::remove_file(path) {
                Ok(()) => gone += u64::from(*path != lock),
                // Another process removed it first.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => result = Err(named(path, &error)),
            }
        }
    }
    (gone, result)
}

/// Renames a file to an unused name in this folder; returns the name.
///
/// # Errors
/// The kernel's error.
pub(crate) fn give_name(part: &Path, folder: &Path, stem: &str, extension: &str) -> io::Result<String> {
    for number in 1..=u32::MAX {
        let more = if number > 1 { format!("-{number}") } else { String::new() };
        let name = format!("{stem}{more}.{extension}");
        let path = folder.join(&name);
        match renameat_with(CWD, part, CWD, &path, RenameFlags::NOREPLACE) {
            Ok(()) => return Ok(name),
            Err(Errno::EXIST) => {}
            // Network file systems do not support this flag; a second link, and then removing the first, has the same
            // effect.
            Err(Errno::INVAL | Errno::NOSYS) => match fs::hard_link(part, &path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                result => return result.and_then(|()| fs::remove_file(part)).map(|()| name),
            },
            Err(error) => return Err(error.into()),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Holder of a lock.
enum Holder {
    /// A living process.
    Lives,
    /// A dead process: we hold the lock now, if the file still exists.
    Dead(Option<File>),
}

fn holder(lock: &Path) -> io::Result<Holder> {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = match options.open(lock) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Holder::Dead(None)),
        result => result?,
    };
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Holder::Dead(Some(file))),
        Err(Errno::WOULDBLOCK) => Ok(Holder::Lives),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_taken_is_nobody_elses() {
        let folder = tempfile::tempdir().unwrap();
        let mut names = Vec::new();
        for number in 0..3 {
            let part = folder.path().join(".part");
            fs::write(&part, format!("{number}")).unwrap();
            names.push(give_name(&part, folder.path(), "call", "pcapng").unwrap());
        }
        assert_eq!(names, ["call.pcapng", "call-2.pcapng", "call-3.pcapng"]);
        let read = |name: &String| fs::read_to_string(folder.path().join(name)).unwrap();
        assert_eq!(names.iter().map(read).collect::<Vec<_>>(), ["0", "1", "2"]);
    }

    #[test]
    fn names_are_known_again_and_no_others() {
        let folder = tempfile::tempdir().unwrap();
        let parts = Parts::open(folder.path(), None).unwrap();
        let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
        let (part, lock) = (name(&parts.part(7)), name(&lock_of(folder.path(), &parts.mark)));
        assert_eq!(mark_of(&part), Some((parts.mark.as_str(), true)));
        assert_eq!(mark_of(&lock), Some((parts.mark.as_str(), false)));
        for other in [
            "0123456789abcdef-1.pcapng.part",
            ".0123456789abcdeg-1.pcapng.part",
            ".0123456789abcdef-x.pcapng.part",
            ".0123456789abcdef-1.pcapng",
            ".0123456789abcdef.lock",
            ".é123456789abcdef-1.pcapng.part",
            ".",
        ] {
            assert_eq!(mark_of(other), None, "{other}");
        }
    }

    #[test]
    fn parts_of_the_dead_go_and_those_of_the_living_stay() {
        let folder = tempfile::tempdir().unwrap();
        let living = Parts::open(folder.path(), None).unwrap();
        let part = living.part(1);
        fs::write(&part, "half").unwrap();
        let own = folder.path().join("mine.pcapng.part");
        fs::write(&own, "somebody's").unwrap();
        // From a killed process: parts and a lock file without a holder; from another one, a part without a lock file.
        let dead = [".00000000000000aa-1.pcapng.part", ".00000000000000aa-2.pcapng.part"];
        for name in [dead[0], dead[1], ".00000000000000aa.pcapng.lock", ".00000000000000bb-9.pcapng.part"] {
            fs::write(folder.path().join(name), "half").unwrap();
        }
        let (gone, result) = sweep(folder.path());
        result.unwrap();
        assert_eq!(gone, 3);
        let lock = lock_of(folder.path(), &living.mark);
        let mut left: Vec<_> =
            fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        left.sort();
        let mut expected = vec![part.clone(), lock.clone(), own];
        expected.sort();
        assert_eq!(left, expected);
        // A lock ends with its holder, and a regular end removes the lock file.
        drop(living);
        assert!(!lock.exists());
        assert_eq!(sweep(folder.path()).0, 1);
        assert!(!part.exists());
    }
}
