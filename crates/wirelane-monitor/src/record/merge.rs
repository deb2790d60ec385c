//! Merges the files of several workers into one, in the order of time stamps.
//!
//! Each worker writes its own file during the capture, so that workers never wait for each other. After the capture,
//! these files are merged into the requested one, and removed.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use wirelane::{FileOptions, FileSource};
use wirelane_export::recorder::{
    Format, OnFinished, Packet, PacketRecorder, RecordingCounts, RecordingOptions,
};
use wirelane_export::{Direction, Interface, InterfaceStatistics, Recording, SectionInfo};

use super::{aggregate, lock};

/// The merged file.
pub struct Merging {
    recording: Recording,
    recorder: PacketRecorder,
    parts: Arc<Mutex<Vec<PathBuf>>>,
}

impl Merging {
    /// Begins the file of these options; returns the options of the workers' files, and the callback for complete
    /// files.
    pub fn begin(
        options: RecordingOptions,
        info: &SectionInfo<'_>,
        on_finished: Option<OnFinished>,
    ) -> Result<(Merging, RecordingOptions, OnFinished)> {
        let whole = RecordingOptions { workers: 1, live: false, ..options.clone() };
        let (recording, mut recorders) = Recording::begin(whole, info, on_finished)?;
        let Some(recorder) = recorders.pop() else { bail!("a recording without a recorder; this is a bug") };
        let parts = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&parts);
        let on_part = Box::new(move |path: &Path| lock(&told).push(path.to_owned()));
        let options = RecordingOptions { format: Format::Pcapng, zstd_level: None, ..options };
        Ok((Merging { recording, recorder, parts }, options, on_part))
    }

    /// Future name of the file.
    pub fn path(&self) -> Option<&Path> {
        self.recording.first_path()
    }

    /// Merges the workers' files, and removes them. `statistics` are those of interfaces, by name. The counts are
    /// returned in any case.
    pub fn finish(
        mut self,
        statistics: HashMap<String, InterfaceStatistics>,
    ) -> (RecordingCounts, Result<()>) {
        let parts = std::mem::take(&mut *lock(&self.parts));
        let mut keys = Vec::new();
        let merged = merge(&parts, &mut self.recorder, &mut keys);
        let told =
            keys.iter().enumerate().filter_map(|(key, name)| Some((key as u32, *statistics.get(name)?)));
        self.recording.tell(told.collect());
        let (counts, ended) = self.recording.end(vec![self.recorder]);
        if let Err(error) = merged.and(ended.map_err(Into::into)) {
            let kept: Vec<_> = parts.iter().map(|part| part.display().to_string()).collect();
            return (counts, Err(error.context(format!("the workers' files are kept: {}", kept.join(", ")))));
        }
        let removed = parts.iter().try_for_each(|part| {
            std::fs::remove_file(part).with_context(|| format!("removing {}", part.display()))
        });
        (counts, removed)
    }
}

/// A packet in a [`Part`].
#[derive(Debug)]
struct Waiting {
    ts_ns: u64,
    interface: u32,
    wire_len: u32,
    direction: Option<Direction>,
    aggregate: Option<wirelane_export::Aggregate>,
    data: Range<usize>,
}

/// A worker's file, and its next packets.
struct Part {
    source: FileSource,
    /// Ids of the file's interfaces in the merged file.
    ids: Vec<u32>,
    waiting: VecDeque<Waiting>,
    bytes: Vec<u8>,
}

/// Writes all packets of these files in time order. `names` receives the names of the interfaces, whose ids and keys
/// are their indexes in it.
fn merge(parts: &[PathBuf], recorder: &mut PacketRecorder, names: &mut Vec<String>) -> Result<()> {
    let open = |path: &PathBuf| -> Result<Part> {
        let source = FileSource::open(path, FileOptions::as_written())?;
        Ok(Part { source, ids: Vec::new(), waiting: VecDeque::new(), bytes: Vec::new() })
    };
    let mut parts = parts.iter().map(open).collect::<Result<Vec<_>>>()?;
    for part in &mut parts {
        part.read(recorder, names)?;
    }
    while let Some(part) = parts
        .iter_mut()
        .filter(|part| !part.waiting.is_empty())
        .min_by_key(|part| part.waiting.front().map(|packet| packet.ts_ns))
    {
        if let Some(packet) = part.waiting.pop_front() {
            recorder.packet(&Packet {
                interface: packet.interface,
                ts_ns: packet.ts_ns,
                data: &part.bytes[packet.data],
                wire_len: packet.wire_len,
                direction: packet.direction,
                aggregate: packet.aggregate,
                checksum: None,
            })?;
        }
        if part.waiting.is_empty() {
            part.read(recorder, names)?;
        }
        recorder.pause(false)?;
    }
    Ok(())
}

impl Part {
    /// Reads the next packets, if there are any.
    fn read(&mut self, recorder: &mut PacketRecorder, names: &mut Vec<String>) -> Result<()> {
        self.bytes.clear();
        let Part { source, ids, waiting, bytes } = self;
        let Some(batch) = source.next_batch(Duration::ZERO)? else { return Ok(()) };
        for record in batch {
            let start = bytes.len();
            bytes.extend_from_slice(record.data());
            waiting.push_back(Waiting {
                ts_ns: record.header().ts_ns,
                interface: record.device() as u32,
                wire_len: record.wire_len(),
                direction: record.is_egress().then_some(Direction::Outbound),
                aggregate: aggregate(&record),
                data: start..bytes.len(),
            });
        }
        for interface in &source.interfaces()[ids.len()..] {
            let known = names.iter().position(|name| *name == interface.name);
            ids.push(match known {
                Some(id) => id as u32,
                None => {
                    names.push(interface.name.clone());
                    let key = names.len() as u32 - 1;
                    recorder.add_interface(
                        key,
                        &Interface {
                            name: &interface.name,
                            description: &interface.description,
                            link_number: interface.link_number,
                            snap_len: interface.snap_len,
                            ..Interface::default()
                        },
                    )?
                }
            });
        }
        for packet in waiting {
            packet.interface = ids[packet.interface as usize];
        }
        Ok(())
    }
}
