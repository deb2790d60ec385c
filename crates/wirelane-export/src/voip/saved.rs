//! Calls as capture files, one per call: their messages, and their media if requested.
//!
//! A call's packets are collected in memory and appended to its file, which gets its name once the call has ended;
//! until then it is hidden (`parts.rs`). So a call does not hold a descriptor, and the number of calls is limited only
//! by memory. Packets are stored as they were captured. Payloads that came in several packets, or together with data of
//! other calls, get new headers ([`super::rebuilt`]).

use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::Serialize;
use wirelane::linktype;
use wirelane_analysis::voip::{Call, Captured, Finished, Kept};

use super::rebuilt::Rebuilt;
use crate::calendar::compact;
use crate::parts::{self, Parts};
use crate::words::counted;
use crate::{Error, Interface, OutputState, PcapngWriter, Result, SectionInfo};

/// Bytes of a call that wait in memory.
const TOGETHER: usize = 16 << 10;
/// Bytes of an open call beside its waiting packets: its entry in the table, which may be half empty, its writer's buffer
/// and list of interfaces.
const OPEN_CALL: usize = 2 * size_of::<(u64, OpenCall)>() + 192;
/// Maximum characters of a Call-ID in a file's name.
const MOST_NAME: usize = 80;

/// Results of saving calls.
#[derive(Clone, Debug, Default, Serialize)]
pub struct SavedCounts {
    /// The folder.
    pub folder: String,
    /// Calls with a file.
    pub calls: u64,
    /// Packets in these files.
    pub packets: u64,
    /// Bytes of these files.
    pub bytes: u64,
    /// Packets that are not in any file.
    pub unsaved: u64,
    /// Unfinished files of dead processes that were removed.
    pub cleared_files: u64,
    /// The first error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Time of the first failure since a packet was written last.
    #[serde(skip)]
    failing: Option<SystemTime>,
}

/// An active call.
struct OpenCall {
    writer: PcapngWriter<Vec<u8>>,
    /// Link type numbers of the file's interfaces.
    interfaces: Vec<u32>,
    rebuilt: Rebuilt,
    /// Packets that wait.
    waiting: u64,
    /// Packets and bytes in the file.
    packets: u64,
    bytes: u64,
    /// Set after a failed write: nothing more is written to the file.
    broken: bool,
}

/// Capture files of calls; see the module documentation.
pub struct SavedCalls {
    folder: PathBuf,
    parts: Parts,
    open: HashMap<u64, OpenCall>,
    /// Bytes that wait.
    waiting: usize,
    /// Maximum bytes of memory.
    most: usize,
    counts: SavedCounts,
}

impl std::fmt::Debug for SavedCalls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SavedCalls").field("folder", &self.folder).finish_non_exhaustive()
    }
}

/// A Call-ID as part of a file's name: every character except letters, digits and some signs becomes `_`.
fn name_of(call_id: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "@.-+=".contains(c) { c } else { '_' };
    call_id.chars().take(MOST_NAME).map(plain).collect()
}

impl SavedCalls {
    /// Creates the folder if it is missing, accessible only for its owner, because calls are private. `owner`: owner of
    /// a created folder. `most`: bytes of memory at which what waits is written. Unfinished files of dead processes are removed.
    ///
    /// # Errors
    /// [`Error::Open`], also if no file can be created in the folder.
    pub fn open(folder: &Path, owner: Option<(u32, u32)>, most: usize) -> Result<SavedCalls> {
        let failed = |source| Error::Open { path: folder.to_owned(), source };
        let parts = Parts::open(folder, owner).map_err(failed)?;
        let (cleared_files, result) = parts::sweep(folder);
        let name = folder.display().to_string();
        if cleared_files > 0 {
            let cleared = counted(cleared_files, "file");
            tracing::warn!("calls in {name}: {cleared} removed, which a process had left unfinished");
        }
        if let Err(error) = result {
            tracing::warn!("calls in {name}: what was left unfinished cannot be removed: {error}");
        }
        let counts = SavedCounts { folder: name, cleared_files, ..SavedCounts::default() };
        let folder = folder.to_owned();
        Ok(SavedCalls { folder, parts, open: HashMap::new(), waiting: 0, most, counts })
    }

    /// Saves packets, and ends the files of ended calls. Packets that cannot be written are counted.
    pub fn take(&mut self, finished: &[Finished]) {
        for one in finished {
            match one {
                Finished::Kept(kept) => self.packet(kept),
                Finished::Call(record) => {
                    let _ = self.call(&record.call);
                }
                Finished::Stream(..) | Finished::Signal(_) => {}
            }
        }
    }

    /// Saves these packets of a call in a file of their own, now.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&mut self, call: &Call, packets: &[Finished]) -> Result<PathBuf> {
        self.counts.error = None;
        self.take(packets);
        let saved = self.call(call);
        let reason = self.counts.error.clone().unwrap_or_else(|| "there was no packet".to_owned());
        saved.ok_or_else(|| Error::Target { target: self.counts.folder.clone(), reason })
    }

    fn packet(&mut self, kept: &Kept) {
        let open = match self.open.entry(kept.call) {
            std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::hash_map::Entry::Vacant(entry) => match OpenCall::new() {
                Ok(mut open) => {
                    self.waiting += open.writer.get_mut().len();
                    entry.insert(open)
                }
                Err(error) => return self.counts.failed(1, &error),
            },
        };
        let before = open.writer.get_mut().len();
        if let Err(error) = open.packet(kept) {
            open.writer.get_mut().truncate(before);
            return self.counts.failed(1, &error);
        }
        let after = open.writer.get_mut().len();
        self.waiting += after - before;
        if after >= TOGETHER {
            self.write(kept.call);
        } else if 2 * self.waiting >= self.room() {
            // A buffer that grows is up to twice as large as its contents.
            let waiting = self.open.iter().filter(|(_, open)| open.waiting > 0).map(|(call, _)| *call);
            waiting.collect::<Vec<_>>().into_iter().for_each(|call| self.write(call));
        }
    }

    /// Bytes for waiting packets. Also with very many calls there are some, so that not each packet is written alone.
    fn room(&self) -> usize {
        self.most.saturating_sub(self.open.len() * OPEN_CALL).max(self.most / 8)
    }

    /// Appends waiting packets. A file always ends after its last whole packet.
    fn write(&mut self, call: u64) {
        let part = self.parts.part(call);
        let Some(open) = self.open.get_mut(&call) else { return };
        let bytes = std::mem::take(open.writer.get_mut());
        let packets = std::mem::take(&mut open.waiting);
        self.waiting -= bytes.len();
        if bytes.is_empty() {
            return;
        }
        if open.broken {
            self.counts.unsaved += packets;
            return;
        }
        match append(&part, open.bytes, &bytes) {
            Ok(()) => {
                self.counts.failing = None;
                open.packets += packets;
                open.bytes += bytes.len() as u64;
            }
            Err(source) => {
                open.broken = true;
                self.counts.failed(packets, &Error::Open { path: part, source });
            }
        }
    }

    /// Ends a call: its file gets its name. A failure is counted.
    fn call(&mut self, call: &Call) -> Option<PathBuf> {
        self.write(call.serial);
        let part = self.parts.part(call.serial);
        let open = self.open.remove(&call.serial)?;
        if open.bytes == 0 {
            // A failed write has left an empty file, or none.
            let _ = fs::remove_file(&part);
            return None;
        }
        let stem = format!("{}-{}", compact(call.invite_ns / 1_000_000_000), name_of(&call.call_id));
        match parts::give_name(&part, &self.folder, &stem, "pcapng") {
            Ok(path) => {
                self.counts.calls += 1;
                self.counts.packets += open.packets;
                self.counts.bytes += open.bytes;
                Some(self.folder.join(path))
            }
            Err(source) => {
                self.counts.failed(open.packets, &Error::Open { path: part, source });
                None
            }
        }
    }

    /// Ends saving, and returns the results: active calls that were not handed out do not get files.
    pub fn finish(&mut self) -> SavedCounts {
        for (call, open) in std::mem::take(&mut self.open) {
            self.counts.unsaved += open.waiting + open.packets;
            let _ = fs::remove_file(self.parts.part(call));
        }
        self.counts.clone()
    }

    /// State of the folder. Packets are its records.
    pub fn state(&self) -> OutputState {
        let counts = &self.counts;
        OutputState {
            written: counts.packets,
            lost: counts.unsaved,
            waiting_bytes: self.waiting as u64,
            ..OutputState::new(&counts.folder, counts.failing, counts.error.as_ref())
        }
    }

    /// The error of a folder with missing packets.
    pub fn failure(&self) -> Option<Error> {
        let counts = &self.counts;
        let reason = format!(
            "{} in no file; the first error was: {}",
            counted(counts.unsaved, "packet"),
            counts.error.as_deref().unwrap_or_default()
        );
        (counts.unsaved > 0).then(|| Error::Target { target: counts.folder.clone(), reason })
    }
}

impl SavedCounts {
    fn failed(&mut self, packets: u64, error: &Error) {
        self.unsaved += packets;
        self.failing.get_or_insert_with(SystemTime::now);
        if self.error.is_none() {
            tracing::warn!("calls in {}: {error}", self.folder);
            self.error = Some(error.to_string());
        }
    }
}

impl OpenCall {
    fn new() -> Result<OpenCall> {
        let application = concat!("Wirelane ", env!("CARGO_PKG_VERSION"));
        let section = SectionInfo { application, ..SectionInfo::default() };
        Ok(OpenCall {
            writer: PcapngWriter::new(Vec::new(), &section)?,
            interfaces: Vec::new(),
            rebuilt: Rebuilt::default(),
            waiting: 0,
            packets: 0,
            bytes: 0,
            broken: false,
        })
    }

    fn packet(&mut self, kept: &Kept) -> Result<()> {
        let ts_ns = kept.way.ts_ns;
        match &kept.packet {
            Captured::Frame { link, bytes, length } => {
                // A packet whose link type has no number is stored as raw IP.
                let link_number = linktype::number(*link).unwrap_or(linktype::RAW);
                self.add(link_number, "", ts_ns, bytes, *length)
            }
            Captured::Payload(payload) => {
                for packet in self.rebuilt.packets(&kept.way, payload) {
                    self.add(linktype::RAW, "rebuilt", ts_ns, &packet, packet.len() as u32)?;
                }
                Ok(())
            }
        }
    }

    fn add(&mut self, link_number: u32, name: &str, ts_ns: u64, bytes: &[u8], length: u32) -> Result<()> {
        let known = self.interfaces.iter().position(|known| *known == link_number);
        let interface = match known {
            Some(at) => at as u32,
            None => {
                self.interfaces.push(link_number);
                self.writer.add_interface(&Interface { name, link_number, ..Interface::default() })?
            }
        };
        self.waiting += 1;
        Ok(self.writer.write_packet(interface, ts_ns, bytes, length, None)?)
    }
}

/// Appends to a file that has `length` bytes; on failure it is truncated to this length.
fn append(path: &Path, length: u64, bytes: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.append(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    // An existing file with this name before the first packet is not ours.
    let mut file = if length == 0 { options.create_new(true).open(path)? } else { options.open(path)? };
    file.write_all(bytes).inspect_err(|_| {
        let _ = file.set_len(length);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Battery: S6
    #[test]
    fn names_of_files_have_nothing_in_them_that_leads_elsewhere() {
        assert_eq!(name_of("a84b4c@pc33.example.com"), "a84b4c@pc33.example.com");
        assert_eq!(name_of("../../etc/\u{202e}x y\0"), "..-..".replace('-', "_") + "_etc__x_y_");
        assert_eq!(name_of(&"x".repeat(300)).len(), MOST_NAME);
    }
}
