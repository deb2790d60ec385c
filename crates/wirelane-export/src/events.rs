//! Packets around events, in one capture file per event.
//!
//! A file has a temporary name until it is complete and on the disk (`parts.rs`), and only its owner can read it:
//! packets contain private data. With the digest `NAME.sha256` beside it, `sha256sum -c` verifies that it is unchanged.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::calendar::compact;
use crate::parts::{self, Parts};
use crate::{Direction, Error, Interface, PcapngWriter, Result, SectionInfo};

/// A packet of an event, and its origin.
#[derive(Clone, Copy, Debug)]
pub struct EventPacket<'p> {
    /// UTC nanoseconds since 1970.
    pub ts_ns: u64,
    /// Captured bytes.
    pub data: &'p [u8],
    /// Length on the wire in bytes.
    pub wire_len: u32,
    /// Direction, if known.
    pub direction: Option<Direction>,
    /// Index of the file's interface.
    pub interface: u32,
}

/// A folder of event files.
#[derive(Debug)]
pub struct EventFiles {
    folder: PathBuf,
    parts: Parts,
    /// Open folder, to make renames in it durable.
    held: File,
    next: u64,
    /// Number of unfinished files of dead processes that were removed.
    pub cleared: u64,
}

/// A complete file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventFile {
    /// Name in the folder.
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
}

/// Counts written bytes, and updates a digest if there is one.
struct Passing<W> {
    output: W,
    bytes: u64,
    digest: Option<Sha256>,
}

impl<W: Write> Write for Passing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.output.write(bytes)?;
        self.bytes += written as u64;
        if let Some(digest) = &mut self.digest {
            digest.update(&bytes[..written]);
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}

impl EventFiles {
    /// Creates the folder if it is missing, accessible only for its owner. `owner`: owner of a created folder.
    /// Unfinished files of dead processes are removed.
    ///
    /// # Errors
    /// [`Error::Open`], also if no file can be created in the folder.
    pub fn open(folder: &Path, owner: Option<(u32, u32)>) -> Result<EventFiles> {
        let failed = |source| Error::Open { path: folder.to_owned(), source };
        let parts = Parts::open(folder, owner).map_err(failed)?;
        let held = File::open(folder).map_err(failed)?;
        let (cleared, result) = parts::sweep(folder);
        if let Err(error) = result {
            tracing::warn!("what was left unfinished in {} cannot be removed: {error}", folder.display());
        }
        Ok(EventFiles { folder: folder.to_owned(), parts, held, next: 0, cleared })
    }

    /// Writes the packets of an event at this time (UTC in nanoseconds). The file's name consists of the time and
    /// `label`, made of letters, digits and characters allowed in file names. `comment` is stored in the file, for its
    /// readers.
    ///
    /// # Errors
    /// [`Error::Open`] and [`Error::Write`]: then there is no file.
    pub fn write<'p>(
        &mut self,
        at_ns: u64,
        label: &str,
        comment: &str,
        interfaces: &[Interface<'_>],
        packets: impl Iterator<Item = EventPacket<'p>>,
        digested: bool,
    ) -> Result<EventFile> {
        let stem = format!("{}-{label}", compact(at_ns / 1_000_000_000));
        let part = self.part();
        let written =
            self.whole(&part, comment, interfaces, packets, digested).and_then(|(bytes, digest)| {
                let failed = |source| Error::Open { path: part.clone(), source };
                let name = parts::give_name(&part, &self.folder, &stem, "pcapng").map_err(failed)?;
                Ok((bytes, digest, name))
            });
        let (bytes, digest, name) = written.inspect_err(|_| {
            let _ = fs::remove_file(&part);
        })?;
        if let Some(digest) = digest {
            self.digest(&name, &digest).inspect_err(|_| {
                // A file without its digest is not what was requested.
                let _ = fs::remove_file(self.folder.join(&name));
            })?;
        }
        self.held.sync_all().map_err(|source| Error::Sync { path: self.folder.clone(), source })?;
        Ok(EventFile { name, bytes })
    }

    fn part(&mut self) -> PathBuf {
        self.next += 1;
        self.parts.part(self.next)
    }

    fn whole<'p>(
        &self,
        part: &Path,
        comment: &str,
        interfaces: &[Interface<'_>],
        packets: impl Iterator<Item = EventPacket<'p>>,
        digested: bool,
    ) -> Result<(u64, Option<String>)> {
        let application = concat!("Wirelane ", env!("CARGO_PKG_VERSION"));
        let section = SectionInfo { application, comment, ..SectionInfo::default() };
        let output = BufWriter::with_capacity(1 << 18, create(part)?);
        let output = Passing { output, bytes: 0, digest: digested.then(Sha256::new) };
        let mut writer = PcapngWriter::new(output, &section)?;
        for interface in interfaces {
            writer.add_interface(interface)?;
        }
        for EventPacket { ts_ns, data, wire_len, direction, interface } in packets {
            writer.write_packet(interface, ts_ns, data, wire_len, direction)?;
        }
        let Passing { output, bytes, digest } = writer.finish()?;
        let file = output.into_inner().map_err(|error| Error::Write(error.into_error()))?;
        file.sync_all().map_err(|source| Error::Sync { path: part.to_owned(), source })?;
        let hex = |digest: Sha256| digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Ok((bytes, digest.map(hex)))
    }

    /// Writes a digest beside its file, in the format of `sha256sum`.
    fn digest(&mut self, name: &str, digest: &str) -> Result<()> {
        let part = self.part();
        let failed = |source| Error::Open { path: part.clone(), source };
        let written = create(&part).and_then(|mut file| {
            file.write_all(format!("{digest}  {name}\n").as_bytes()).map_err(failed)?;
            file.sync_all().map_err(failed)?;
            parts::give_name(&part, &self.folder, name, "sha256").map_err(failed)
        });
        written.map(|_| ()).inspect_err(|_| {
            let _ = fs::remove_file(&part);
        })
    }
}

fn create(part: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    options.open(part).map_err(|source| Error::Open { path: part.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELLO: &[u8] = b"hello";

    fn packets(number: u64) -> impl Iterator<Item = EventPacket<'static>> {
        (0..number).map(|ts_ns| EventPacket {
            ts_ns,
            data: HELLO,
            wire_len: 60,
            direction: None,
            interface: 0,
        })
    }

    #[test]
    fn files_are_whole_have_names_of_their_own_and_digests_that_fit() {
        let folder = tempfile::tempdir().unwrap();
        let inside = folder.path().join("new");
        let mut files = EventFiles::open(&inside, None).unwrap();
        let interfaces = [Interface { name: "eth1@0", link_number: 1, ..Interface::default() }];
        let mut write = |digested| {
            files
                .write(1_700_000_000_000_000_000, "flood", "alarm flood", &interfaces, packets(7), digested)
                .unwrap()
        };
        let (one, other) = (write(true), write(false));
        assert_eq!(
            (one.name.as_str(), other.name.as_str()),
            ("20231114T221320Z-flood.pcapng", "20231114T221320Z-flood-2.pcapng")
        );
        let mut names: Vec<_> = fs::read_dir(&inside)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| !name.ends_with(".lock"))
            .collect();
        names.sort_unstable();
        assert_eq!(names, [other.name.clone(), one.name.clone(), format!("{}.sha256", one.name)]);
        let bytes = fs::read(inside.join(&one.name)).unwrap();
        assert_eq!(bytes.len() as u64, one.bytes);
        assert!(bytes.windows(11).any(|window| window == b"alarm flood"));
        let check = std::process::Command::new("sha256sum")
            .args(["--check", "--strict", &format!("{}.sha256", one.name)])
            .current_dir(&inside)
            .output()
            .unwrap();
        assert!(check.status.success(), "{check:?}");
        drop(files);
        assert_eq!(EventFiles::open(&inside, None).unwrap().cleared, 0);
    }

    #[test]
    fn what_cannot_be_written_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let mut files = EventFiles::open(folder.path(), None).unwrap();
        let none: [Interface<'_>; 0] = [];
        let error = files.write(0, "a", "", &none, packets(1), true).unwrap_err();
        assert!(matches!(error, Error::Pcapng(wirelane_pcapng::Error::NoInterface { .. })), "{error}");
        let left: Vec<_> =
            fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left.len(), 1, "the lock: {left:?}");
    }
}
