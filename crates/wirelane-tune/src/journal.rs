//! The journal: the changes on a device, their author and the values before, so that the next process can undo them,
//! however the process that made them ended.
//!
//! ```text
//! {"line":"header",...}                           whose device this is, since which boot
//! {"line":"hold","pid":812,"start":5321,...}      a capture that wants its changes kept lives on
//! {"line":"intent","change":0,"by":"capture","what":{...},"old":"0","new":"1"}
//!                                                 <- only now is the setting changed
//! {"line":"done","change":0,"now":"1"}
//! {"line":"undone","change":0}                    <- after it has been put back
//! ```
//! A line is written, and its write to the disk has started, before the next step is taken. So a killed process leaves
//! at most one intent for which it is not known whether the change was made, and the current value of the setting
//! decides that. The step after a truncated line was never taken; such a line is dropped. Readers and writers lock the
//! file, which is removed with its last change and its last owner.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use wirelane_privsep::process::{ProcessId, RUN_FOLDER, run_folder};

use super::offloads::AT_ODDS;
use super::setting::Setting;
use crate::{Error, Result};
use wirelane_netdev::{Device, sys};

/// The first bytes of every journal, even if its header is truncated.
const BEGINNING: &[u8] = br#"{"line":"header""#;
/// Version of the format.
const VERSION: u32 = 1;

/// The author of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum By {
    /// `wirelane tune apply`: the change stays until `wirelane tune restore`.
    Apply,
    /// One or more captures: the change stays until the last of them has ended.
    Capture,
}

/// A unique identification of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    pub device: String,
    pub ifindex: u32,
    /// Cookie of the network namespace.
    pub namespace: u64,
    /// The kernel's boot id.
    pub boot: String,
}

impl Identity {
    /// The identity of a device in the network namespace of the calling thread.
    pub fn of(device: &Device) -> Result<Identity> {
        let namespace = sys::socket(libc::AF_INET, libc::SOCK_DGRAM, 0)
            .and_then(|socket| sys::namespace_cookie(&socket))
            .map_err(|source| Error::kernel("asking for the network namespace", source))?;
        let path = PathBuf::from("/proc/sys/kernel/random/boot_id");
        let boot = fs::read_to_string(&path).map_err(|source| Error::Io { path, source })?;
        Ok(Identity {
            device: device.name.clone(),
            ifindex: device.ifindex,
            namespace,
            boot: boot.trim().to_owned(),
        })
    }

    /// The default path of the journal.
    pub fn path(&self) -> PathBuf {
        Path::new(RUN_FOLDER).join(format!("tune-{}-{}.journal", self.namespace, self.ifindex))
    }

    /// Whether this is the same device, even if it was renamed.
    fn is(&self, other: &Identity) -> bool {
        self.ifindex == other.ifindex && self.namespace == other.namespace && self.boot == other.boot
    }
}

/// A process that holds a device's settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// The process id.
    pub pid: u32,
    /// Start time in clock ticks since boot: process ids are reused.
    pub start: u64,
    /// The requested mode: `threaded`, `busy`, `interrupt`; or `rss` for a process that moves entries of the RSS table, and
    /// `offloads` for one whose program turns offloads off.
    pub polling: String,
}

/// Value of [`Owner::polling`] for owners that hold only the RSS table.
pub const TABLE: &str = "rss";
/// Value of [`Owner::polling`] for owners that hold only offloads.
pub const OFFLOADS: &str = "offloads";

impl Owner {
    /// The calling process.
    pub fn this(polling: &str) -> Owner {
        let ProcessId { pid, start } = ProcessId::this();
        Owner { pid, start, polling: polling.to_owned() }
    }

    /// Whether changes of this setting by captures are kept for this owner.
    pub fn holds(&self, what: &Setting) -> bool {
        match what {
            Setting::RssTable => self.polling == TABLE,
            Setting::Offload { name } if AT_ODDS.contains(&name.as_str()) => self.polling == OFFLOADS,
            _ => self.polling != TABLE && self.polling != OFFLOADS,
        }
    }

    /// Whether the process still runs.
    pub fn lives(&self) -> bool {
        ProcessId { pid: self.pid, start: self.start }.lives()
    }
}

/// A change that has not been undone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// Its number in the journal.
    pub change: u32,
    /// Its author.
    pub by: By,
    /// The changed setting.
    pub what: Setting,
    /// The value before the change.
    pub old: String,
    /// The value after the change.
    pub new: String,
    /// Whether the change is known to have been made.
    pub done: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "line", rename_all = "snake_case")]
enum Line {
    Header {
        version: u32,
        of: Identity,
    },
    Hold(Owner),
    /// Without `polling` in journals of older versions, where a process was the owner of one mode.
    Release {
        pid: u32,
        start: u64,
        polling: Option<String>,
    },
    Intent {
        change: u32,
        by: By,
        what: Setting,
        old: String,
        new: String,
    },
    Done {
        change: u32,
        now: String,
    },
    Undone {
        change: u32,
    },
    Adopt {
        change: u32,
    },
}

/// An open, locked journal.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    next: u32,
    pub entries: Vec<Entry>,
    pub owners: Vec<Owner>,
}

impl Journal {
    /// Opens the journal at `path`, and creates it if it does not exist.
    pub fn create(path: &Path, of: &Identity) -> Result<Journal> {
        if path.parent() == Some(Path::new(RUN_FOLDER)) {
            run_folder()?;
        }
        match Journal::locked(path, of, true)? {
            Some(journal) => Ok(journal),
            None => Err(Error::Io { path: path.to_owned(), source: io::ErrorKind::NotFound.into() }),
        }
    }

    /// Opens the journal at `path`; `None` if it does not exist, or if it is from an earlier boot and therefore
    /// meaningless.
    pub fn find(path: &Path, of: &Identity) -> Result<Option<Journal>> {
        Journal::locked(path, of, false)
    }

    fn locked(path: &Path, of: &Identity, create: bool) -> Result<Option<Journal>> {
        let failed = |source| Error::Io { path: path.to_owned(), source };
        loop {
            let opened = OpenOptions::new()
                .read(true)
                .write(true)
                .create(create)
                .truncate(false)
                .mode(0o600)
                .custom_flags(libc::O_NOFOLLOW)
                .open(path);
            let file = match opened {
                Err(e) if e.kind() == io::ErrorKind::NotFound && !create => return Ok(None),
                Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                    return Err(Error::Unsupported {
                        what: format!("the journal of changes, {},", path.display()),
                        needs: "root, who alone may write and read it".to_owned(),
                        instead: "run this with sudo".to_owned(),
                    });
                }
                other => other.map_err(failed)?,
            };
            sys::lock(&file).map_err(failed)?;
            // The previous holder of the lock may have removed the file.
            let own = file.metadata().map_err(failed)?;
            match fs::symlink_metadata(path) {
                Ok(there) if (there.dev(), there.ino()) == (own.dev(), own.ino()) => {}
                Ok(_) => continue,
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                Err(e) => return Err(failed(e)),
            }
            let mut journal =
                Journal { path: path.to_owned(), file, next: 0, entries: Vec::new(), owners: Vec::new() };
            let known = journal.read(of)?;
            if !known && !create {
                // A file without a header, or from an earlier boot, has no valid entries.
                return Ok(None);
            }
            if !known {
                journal.file.set_len(0).map_err(failed)?;
                journal.file.seek(SeekFrom::Start(0)).map_err(failed)?;
                journal.append(&Line::Header { version: VERSION, of: of.clone() })?;
            }
            return Ok(Some(journal));
        }
    }

    /// Reads all lines. False: the file has no entries of this boot.
    fn read(&mut self, of: &Identity) -> Result<bool> {
        let path = self.path.clone();
        let failed = |source| Error::Io { path: path.clone(), source };
        let mut text = Vec::new();
        self.file.read_to_end(&mut text).map_err(failed)?;
        let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        if !text.iter().zip(BEGINNING).all(|(have, ought)| have == ought) {
            let reason = "not a journal of wirelane tune";
            return Err(failed(io::Error::new(io::ErrorKind::InvalidData, reason)));
        }
        for (number, line) in text[..whole].split(|byte| *byte == b'\n').enumerate() {
            if line.is_empty() {
                continue;
            }
            let line = serde_json::from_slice(line).map_err(|e| {
                let reason = format!("line {}: {e}; not a journal of wirelane tune", number + 1);
                Error::Io { path: path.clone(), source: io::Error::new(io::ErrorKind::InvalidData, reason) }
            })?;
            match line {
                Line::Header { version, of: theirs } if number == 0 && version == VERSION => {
                    if theirs.boot != of.boot {
                        return Ok(false);
                    }
                    if !theirs.is(of) {
                        let reason = format!(
                            "this is the journal of {} (index {}), not of {} in this network namespace",
                            theirs.device, theirs.ifindex, of.device
                        );
                        return Err(failed(io::Error::new(io::ErrorKind::InvalidData, reason)));
                    }
                }
                _ if number == 0 => {
                    let reason = "not a journal of wirelane tune, or one of another version";
                    return Err(failed(io::Error::new(io::ErrorKind::InvalidData, reason)));
                }
                line => self.take(line),
            }
        }
        // A truncated line is removed only here, when the file is known to be a journal.
        self.file.set_len(whole as u64).map_err(failed)?;
        self.file.seek(SeekFrom::Start(whole as u64)).map_err(failed)?;
        Ok(whole > 0)
    }

    /// Applies one line to the state in memory.
    fn take(&mut self, line: Line) {
        match line {
            Line::Header { .. } => {}
            Line::Hold(owner) => self.owners.push(owner),
            Line::Release { pid, start, polling } => {
                let released = |owner: &Owner| {
                    (owner.pid, owner.start) == (pid, start)
                        && polling.as_ref().is_none_or(|polling| *polling == owner.polling)
                };
                // One process may hold a device twice: two captures of one program.
                if let Some(at) = self.owners.iter().position(released) {
                    self.owners.remove(at);
                }
            }
            Line::Intent { change, by, what, old, new } => {
                self.next = self.next.max(change + 1);
                self.entries.push(Entry { change, by, what, old, new, done: false });
            }
            Line::Done { change, now } => {
                for entry in self.entries.iter_mut().filter(|entry| entry.change == change) {
                    (entry.done, entry.new) = (true, now.clone());
                }
            }
            Line::Undone { change } => self.entries.retain(|entry| entry.change != change),
            Line::Adopt { change } => {
                for entry in self.entries.iter_mut().filter(|entry| entry.change == change) {
                    entry.by = By::Apply;
                }
            }
        }
    }

    fn append(&mut self, line: &Line) -> Result<()> {
        let failed = |source| Error::Io { path: self.path.clone(), source };
        let mut text = serde_json::to_vec(line).map_err(|e| failed(e.into()))?;
        text.push(b'\n');
        #[cfg(test)]
        let text = super::crash::torn(&mut self.file, text);
        self.file.write_all(&text).and_then(|()| self.file.sync_data()).map_err(failed)?;
        #[cfg(test)]
        super::crash::point();
        Ok(())
    }

    fn note(&mut self, line: Line) -> Result<()> {
        self.append(&line)?;
        self.take(line);
        Ok(())
    }

    /// Records that a change is about to be made; returns its number.
    pub fn intend(&mut self, by: By, what: &Setting, old: &str, new: &str) -> Result<u32> {
        let change = self.next;
        self.note(Line::Intent { change, by, what: what.clone(), old: old.into(), new: new.into() })?;
        Ok(change)
    }

    /// Records that the change was made, and the value now.
    pub fn done(&mut self, change: u32, now: &str) -> Result<()> {
        self.note(Line::Done { change, now: now.into() })
    }

    /// Records that the change is no longer in effect, or no longer ours.
    pub fn undone(&mut self, change: u32) -> Result<()> {
        self.note(Line::Undone { change })
    }

    /// Records that a capture's change stays when the capture ends.
    pub fn adopt(&mut self, change: u32) -> Result<()> {
        self.note(Line::Adopt { change })
    }

    /// Records that this process needs the changes of captures to stay.
    pub fn hold(&mut self, owner: &Owner) -> Result<()> {
        self.note(Line::Hold(owner.clone()))
    }

    /// Records the end of one hold of this process.
    pub fn release(&mut self, owner: &Owner) -> Result<()> {
        let Owner { pid, start, polling } = owner.clone();
        self.note(Line::Release { pid, start, polling: Some(polling) })
    }

    /// Releases owners that have ended.
    pub fn reap(&mut self) -> Result<()> {
        for dead in self.owners.clone().iter().filter(|owner| !owner.lives()) {
            self.release(dead)?;
        }
        Ok(())
    }

    /// Removes the file if it has no entries and no owners any more.
    pub fn finish(self) -> Result<()> {
        if self.entries.is_empty() && self.owners.is_empty() {
            fs::remove_file(&self.path).map_err(|source| Error::Io { path: self.path.clone(), source })?;
        }
        Ok(())
    }
}
