//! Files of calls or events that go on, and what dead processes have left of theirs.
//!
//! A process holds none of these files open, so none of them can be locked. It has a file beside them that it holds a lock on
//! (flock(2)), which the kernel takes away with the process, whatever ends it: `.MARK.pcapng.lock`. Parts have the mark in
//! their names, `.MARK-CALL.pcapng.part`. The lock is there before the first part and goes after the last, so parts are a dead
//! process's when nobody holds their lock, or when there is none. Whoever begins next removes them, as a process that ends
//! well removes those of calls that were not over.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FlockOperation, RenameFlags, flock, renameat_with};
use rustix::io::Errno;

use crate::folder;

/// How often a lock is tried to be made while others take it for a dead one's.
const ATTEMPTS: u32 = 16;

/// A process's place in a folder. Its lock goes when this is dropped.
#[derive(Debug)]
pub(crate) struct Parts {
    folder: PathBuf,
    mark: String,
    /// The lock's holder.
    held: File,
}

fn lock_of(folder: &Path, mark: &str) -> PathBuf {
    folder.join(format!(".{mark}.pcapng.lock"))
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// The mark in a name that we give, and whether it is a part's.
fn mark_of(name: &str) -> Option<(&str, bool)> {
    let (mark, rest) = name.strip_prefix('.')?.split_at_checked(16)?;
    let is_mark = mark.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
    let number = || rest.strip_prefix('-')?.strip_suffix(".pcapng.part");
    let is_part = number().is_some_and(|call| call.parse::<u64>().is_ok());
    (is_mark && (is_part || rest == ".pcapng.lock")).then_some((mark, is_part))
}

impl Parts {
    /// A place in this folder, which is made where it is missing, for its owner alone. `owner`: whom folder and lock are given
    /// to.
    ///
    /// # Errors
    /// Where nothing can be made there.
    pub(crate) fn open(folder: &Path, owner: Option<(u32, u32)>) -> io::Result<Parts> {
        folder::make(folder, 0o700, owner)?;
        for _ in 0..ATTEMPTS {
            // The standard library seeds its hashers from the kernel, each differently.
            let mark = format!("{:016x}", RandomState::new().hash_one(std::process::id()));
            let path = lock_of(folder, &mark);
            let mut options = OpenOptions::new();
            options.write(true).create_new(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
            let file = match options.open(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                result => result?,
            };
            // Before the lock is held, another process may have taken it for a dead one's.
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) if file.metadata()?.nlink() > 0 => {}
                Ok(()) | Err(Errno::WOULDBLOCK) => continue,
                Err(error) => return Err(error.into()),
            }
            let parts = Parts { folder: folder.to_owned(), mark, held: file };
            if let Some((uid, gid)) = owner {
                // So that whoever captures with fewer rights next can look whether it is held.
                fchown(&parts.held, Some(uid), Some(gid))?;
            }
            return Ok(parts);
        }
        Err(io::Error::other("the lock file was removed repeatedly by another process"))
    }

    /// The name of a call's file while the call goes on.
    pub(crate) fn part(&self, call: u64) -> PathBuf {
        self.folder.join(format!(".{}-{call}.pcapng.part", self.mark))
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        // One that stays is removed by whoever begins next.
        let _ = fs::remove_file(lock_of(&self.folder, &self.mark));
    }
}

/// Removes what dead processes have left in this folder; how many parts there were.
///
/// # Errors
/// The last thing that could not be looked at or removed; the rest is removed all the same.
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
        // Held until its parts are gone, so that two who look at once do not count them twice.
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
                // Somebody was faster.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => result = Err(named(path, &error)),
            }
        }
    }
    (gone, result)
}

/// Gives a file in this folder a name that none has; the name.
///
/// # Errors
/// What the kernel says.
pub(crate) fn give_name(part: &Path, folder: &Path, stem: &str, extension: &str) -> io::Result<String> {
    for number in 1..=u32::MAX {
        let more = if number > 1 { format!("-{number}") } else { String::new() };
        let name = format!("{stem}{more}.{extension}");
        let path = folder.join(&name);
        match renameat_with(CWD, part, CWD, &path, RenameFlags::NOREPLACE) {
            Ok(()) => return Ok(name),
            Err(Errno::EXIST) => {}
            // Network file systems know no such flag; a second name, and then the first one gone, is the same.
            Err(Errno::INVAL | Errno::NOSYS) => match fs::hard_link(part, &path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                result => return result.and_then(|()| fs::remove_file(part)).map(|()| name),
            },
            Err(error) => return Err(error.into()),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Who holds a lock.
enum Holder {
    /// A process.
    Lives,
    /// Nobody any more: now we do, where it is still there.
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
        // Of a killed process: parts and a lock that nobody holds; of another one, a part without a lock.
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
        // A lock ends with its holder, and one that ends well takes it along.
        drop(living);
        assert!(!lock.exists());
        assert_eq!(sweep(folder.path()).0, 1);
        assert!(!part.exists());
    }
}
