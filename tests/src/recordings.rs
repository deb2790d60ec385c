//! Recordings: input captures, readers that check the recorded packets, and small disks.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;
use wirelane::{FileOptions, FileSource};

use crate::{Child, Finished, wirelane_binary};

/// 2026-03-01T12:00:00Z, the start of generated captures.
pub const NOON_NS: u64 = 1_772_366_400_000_000_000;

/// The bytes of a numbered packet: its number, then noise that does not compress.
pub fn packet(number: u64, size: usize) -> Vec<u8> {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = number.to_le_bytes().to_vec();
    while bytes.len() < size {
        // xorshift64
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(size);
    bytes
}

/// Writes the header of a pcap file with nanoseconds.
///
/// # Errors
/// Errors of the writer.
pub fn write_header(output: &mut dyn Write) -> std::io::Result<()> {
    let mut header = [0; 24];
    for (at, word) in [(0, 0xa1b2_3c4d_u32), (4, 0x0004_0002), (16, 262_144), (20, 1)] {
        header[at..at + 4].copy_from_slice(&word.to_le_bytes());
    }
    output.write_all(&header)
}

/// Writes a packet into a pcap file.
///
/// # Errors
/// Errors of the writer.
pub fn write_packet(output: &mut dyn Write, ts_ns: u64, data: &[u8]) -> std::io::Result<()> {
    let len = data.len() as u32;
    for word in [(ts_ns / 1_000_000_000) as u32, (ts_ns % 1_000_000_000) as u32, len, len] {
        output.write_all(&word.to_le_bytes())?;
    }
    output.write_all(data)
}

/// A pcap file of numbered packets at these times.
///
/// # Errors
/// If it cannot be written.
pub fn make_capture(path: &Path, size: usize, times: impl IntoIterator<Item = u64>) -> Result<()> {
    let mut output = BufWriter::new(File::create(path)?);
    write_header(&mut output)?;
    for (number, ts_ns) in times.into_iter().enumerate() {
        write_packet(&mut output, ts_ns, &packet(number as u64, size))?;
    }
    Ok(output.flush()?)
}

/// Runs `wirelane record` with these arguments to its end, also if it fails.
///
/// # Errors
/// If it cannot be started, or does not end in time.
pub fn record(words: &[&str]) -> Result<Finished> {
    let mut command = Command::new(wirelane_binary()?);
    Child::spawn(command.arg("record").args(words))?.finish(crate::numbers::LIMIT)
}

/// The numbers of all packets that our reader finds up to the end or the first damage, each checked byte by byte; and
/// the damage.
///
/// # Errors
/// If the file does not begin as a capture, or a packet differs from the generated one.
pub fn numbers(file: &Path) -> Result<(Vec<u64>, Option<String>)> {
    let mut source = FileSource::open(file, FileOptions::as_written())?;
    let mut numbers = Vec::new();
    loop {
        match source.next_batch(Duration::ZERO) {
            Ok(Some(batch)) => {
                for record in batch {
                    let data = record.data();
                    let number = data.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
                    let number =
                        number.with_context(|| format!("{}: a packet of no size", file.display()))?;
                    ensure!(
                        data == packet(number, data.len()),
                        "{}: packet {number} differs",
                        file.display()
                    );
                    numbers.push(number);
                }
            }
            Ok(None) => return Ok((numbers, None)),
            Err(damage) => return Ok((numbers, Some(damage.to_string()))),
        }
    }
}

/// Number of packets of a file, by our reader, up to its end or the first damage.
///
/// # Errors
/// If the file does not begin as a capture.
pub fn count_packets(file: &Path) -> Result<u64> {
    let mut source = FileSource::open(file, FileOptions::as_written())?;
    let mut packets = 0;
    while let Ok(Some(batch)) = source.next_batch(Duration::ZERO) {
        packets += batch.count() as u64;
    }
    Ok(packets)
}

/// Number of packets of a file by capinfos, and true if the file is complete.
///
/// # Errors
/// If capinfos does not report a count.
pub fn capinfos(file: &Path) -> Result<(u64, bool)> {
    let output = Command::new("capinfos")
        .args(["-M", "-c"])
        .arg(file)
        .output()
        .context("capinfos is missing; scripts/setup installs it")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let packets = text.lines().find_map(|line| line.strip_prefix("Number of packets:"));
    let packets = packets.with_context(|| format!("{}: {output:?}", file.display()))?;
    Ok((packets.trim().parse()?, output.status.success() && output.stderr.is_empty()))
}

/// Number of packets of a file by tshark.
///
/// # Errors
/// If tshark cannot be started.
pub fn tshark(file: &Path) -> Result<u64> {
    let output = Command::new("tshark")
        .args(["-n", "-T", "fields", "-e", "frame.number", "-r"])
        .arg(file)
        .output()
        .context("tshark is missing; scripts/setup installs it")?;
    Ok(String::from_utf8_lossy(&output.stdout).lines().count() as u64)
}

/// The files of a folder, sorted by name.
///
/// # Errors
/// If the folder cannot be read.
pub fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        files.push(entry?.path());
    }
    files.sort();
    Ok(files)
}

/// The name of a file.
pub fn name(file: &Path) -> String {
    file.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// A file system for one test; unmounted on drop.
#[derive(Debug)]
pub struct Disk {
    folder: TempDir,
}

impl Disk {
    /// A tmpfs of this size, in the notation of mount(8), or a ramfs, which is never full and refuses direct I/O.
    ///
    /// # Errors
    /// If it cannot be mounted.
    pub fn new(kind: &str, options: &str) -> Result<Disk> {
        let folder = tempfile::tempdir()?;
        let status =
            Command::new("mount").args(["-t", kind, "-o", options, "none"]).arg(folder.path()).status()?;
        ensure!(status.success(), "mount: {status}");
        Ok(Disk { folder })
    }

    /// Mount point.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Remounts the file system with other options.
    ///
    /// # Errors
    /// If that is refused.
    pub fn remount(&self, options: &str) -> Result<()> {
        let options = format!("remount,{options}");
        let status = Command::new("mount").args(["-o", &options]).arg(self.path()).status()?;
        ensure!(status.success(), "mount -o {options}: {status}");
        Ok(())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazily: a process with an open file there was killed by the test, and ends at any moment.
        let status = Command::new("umount").arg("-l").arg(self.folder.path()).status();
        assert!(status.is_ok_and(|status| status.success()) || std::thread::panicking(), "umount failed");
    }
}
