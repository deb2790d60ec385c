//! The worker's side of a recording: packets become blocks in chunks, and chunks are sent to the writer.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use wirelane::checksum::{Checksum, MissingChecksum};
use wirelane_pcapng::{PCAP_BEFORE_DATA, PCAPNG_BEFORE_DATA};

use super::chunk::{Chunk, Format, Pool};
use super::counts::Shared;
use super::writer::Message;
use crate::{Aggregate, Direction, Error, Interface, PcapWriter, PcapngWriter, Result, SectionInfo};

/// Maximum bytes of a block besides its packet.
const AROUND: usize = 192;

/// A packet to be recorded.
#[derive(Clone, Debug)]
pub struct Packet<'a> {
    /// The interface, as numbered by [`PacketRecorder::add_interface`].
    pub interface: u32,
    /// UTC nanoseconds since 1970.
    pub ts_ns: u64,
    /// The captured bytes.
    pub data: &'a [u8],
    /// Length on the wire in bytes.
    pub wire_len: u32,
    /// Direction, if known.
    pub direction: Option<Direction>,
    /// The packets that this one represents, if it is an aggregate. pcap cannot store that.
    pub aggregate: Option<Aggregate>,
    /// A checksum that the sender has left to the card, to be written to its place.
    pub checksum: Option<MissingChecksum>,
}

/// Records the packets of one worker. No allocations and no system calls per packet.
#[derive(Debug)]
pub struct PacketRecorder {
    encoder: Encoder,
    /// Link type and snap length of each interface.
    links: Vec<(u32, u32)>,
    messages: SyncSender<Message>,
    pool: Arc<Pool>,
    shared: Arc<Shared>,
    /// Maximum time that packets wait in a chunk.
    patience: Duration,
    /// Whether the output is a stream with a waiting reader.
    stream: bool,
    flushed: Instant,
}

#[derive(Debug)]
enum Encoder {
    Pcapng(PcapngWriter<Chunk>),
    Pcap(PcapWriter<Chunk>),
    /// The header of a pcap file contains the link type, which is known with the first packet.
    Unknown,
}

impl PacketRecorder {
    /// Begins a recording: every file of the writer contains this information.
    pub(crate) fn new(
        format: Format,
        info: &SectionInfo<'_>,
        messages: SyncSender<Message>,
        pool: Arc<Pool>,
        shared: Arc<Shared>,
        (patience, stream): (Duration, bool),
    ) -> Result<PacketRecorder> {
        let encoder = match format {
            Format::Pcapng => {
                let mut writer = PcapngWriter::new(pool.take(), info)?;
                send(&messages, Message::Head(writer.get_mut().bytes.clone()))?;
                writer.get_mut().bytes.clear();
                Encoder::Pcapng(writer)
            }
            Format::Pcap => Encoder::Unknown,
        };
        let flushed = Instant::now();
        Ok(PacketRecorder { encoder, links: Vec::new(), messages, pool, shared, patience, stream, flushed })
    }

    /// Describes an interface and returns its id, which counts from 0. `key` identifies its statistics
    /// ([`super::Recording::tell`]).
    ///
    /// # Errors
    /// [`wirelane_pcapng::Error::LinkType`]; [`Error::Ended`] after a failed write that ended the recording.
    pub fn add_interface(&mut self, key: u32, interface: &Interface<'_>) -> Result<u32> {
        self.flush()?;
        if let Encoder::Pcapng(writer) = &mut self.encoder {
            writer.add_interface(interface)?;
            let block = writer.get_mut().bytes.clone();
            writer.get_mut().bytes.clear();
            send(&self.messages, Message::Interface { key, block })?;
        }
        self.links.push((interface.link_number, interface.snap_len));
        Ok(self.links.len() as u32 - 1)
    }

    /// Records a packet.
    ///
    /// # Errors
    /// Errors of the format's writer for data that the format cannot represent: then the packet counts as unwritten.
    /// [`Error::Ended`] after a failed write that ended the recording; this packet is counted with the waiting ones.
    #[inline]
    pub fn packet(&mut self, packet: &Packet<'_>) -> Result<()> {
        let chunk_bytes = self.pool.chunk_bytes();
        let there = self.chunk().map_or(0, |chunk| chunk.bytes.len());
        let full = there > 0 && there + packet.data.len() + AROUND > chunk_bytes;
        let flushed = if full { self.flush() } else { Ok(()) };
        if let Some(missing) = &packet.checksum
            && let Some(chunk) = self.chunk()
        {
            chunk.add_up(packet.data.len(), missing.covered());
        }
        let encoded = match &mut self.encoder {
            Encoder::Pcapng(writer) => writer
                .write_aggregate(
                    packet.interface,
                    packet.ts_ns,
                    packet.data,
                    packet.wire_len,
                    packet.direction,
                    packet.aggregate,
                )
                .map_err(Error::from),
            _ => self.pcap_packet(packet),
        };
        if let Err(error) = encoded {
            self.shared.counts.unwritten.add(1);
            return Err(error);
        }
        let before = match self.encoder {
            Encoder::Pcapng(_) => PCAPNG_BEFORE_DATA,
            _ => PCAP_BEFORE_DATA,
        };
        // A full chunk was passed on, so the new one begins at 0.
        let start = if full { 0 } else { there };
        if let Some(chunk) = self.chunk() {
            if let Some(missing) = &packet.checksum {
                let data = start + before;
                let covered = missing.covered();
                let Checksum { at, bytes } =
                    missing.of(chunk.sum_of(data + covered.start..data + covered.end));
                if let Some(field) = chunk.bytes.get_mut(data + at..data + at + bytes.len()) {
                    field.copy_from_slice(&bytes);
                }
            }
            chunk.packets += 1;
            chunk.latest_ns = chunk.latest_ns.max(packet.ts_ns);
        }
        flushed
    }

    fn pcap_packet(&mut self, packet: &Packet<'_>) -> Result<()> {
        let (link_number, snap_len) =
            *self.links.get(packet.interface as usize).ok_or(wirelane_pcapng::Error::NoInterface {
                id: packet.interface,
                interfaces: self.links.len() as u32,
            })?;
        self.begin_pcap(link_number, snap_len)?;
        match &mut self.encoder {
            Encoder::Pcap(writer) => {
                Ok(writer.write_packet(link_number, packet.ts_ns, packet.data, packet.wire_len)?)
            }
            Encoder::Pcapng(_) | Encoder::Unknown => Ok(()),
        }
    }

    /// Writes the header of a pcap file, once.
    fn begin_pcap(&mut self, link_number: u32, snap_len: u32) -> Result<()> {
        if let Encoder::Unknown = self.encoder {
            let mut writer = PcapWriter::new(self.pool.take(), link_number, snap_len)?;
            send(&self.messages, Message::Head(writer.get_mut().bytes.clone()))?;
            writer.get_mut().bytes.clear();
            self.encoder = Encoder::Pcap(writer);
        }
        Ok(())
    }

    /// To be called after every batch: passes on packets that have waited long enough. `idle`: the batch was empty.
    ///
    /// # Errors
    /// [`Error::Ended`] after a failed write that ended the recording.
    pub fn pause(&mut self, idle: bool) -> Result<()> {
        self.check()?;
        if self.chunk().is_none_or(|chunk| chunk.packets == 0) {
            return Ok(());
        }
        let now = Instant::now();
        if !(idle && self.stream || now - self.flushed >= self.patience) {
            return Ok(());
        }
        // Without an empty chunk the writer is behind, so passing on sooner does not help.
        match self.pool.try_take() {
            Some(empty) => self.pass(empty),
            None => Ok(()),
        }
    }

    /// Ends the recording of this worker: the last chunk goes to the writer, which ends its file.
    ///
    /// # Errors
    /// [`Error::Ended`] if the writer has ended.
    pub(crate) fn end(mut self) -> Result<()> {
        if let Encoder::Unknown = self.encoder {
            // There was no packet: writes an empty file with the most likely link type.
            let (link_number, snap_len) = self.links.first().copied().unwrap_or((1, 0));
            self.begin_pcap(link_number, snap_len)?;
        }
        self.pass_all()?;
        send(&self.messages, Message::End)
    }

    fn chunk(&mut self) -> Option<&mut Chunk> {
        match &mut self.encoder {
            Encoder::Pcapng(writer) => Some(writer.get_mut()),
            Encoder::Pcap(writer) => Some(writer.get_mut()),
            Encoder::Unknown => None,
        }
    }

    /// Passes on the current chunk, waiting for an empty one if necessary.
    fn flush(&mut self) -> Result<()> {
        self.pass_all()?;
        self.check()
    }

    fn pass_all(&mut self) -> Result<()> {
        match self.chunk() {
            Some(chunk) if chunk.packets > 0 => {
                let empty = self.pool.take();
                self.pass(empty)
            }
            _ => Ok(()),
        }
    }

    fn pass(&mut self, empty: Chunk) -> Result<()> {
        self.flushed = Instant::now();
        let Some(chunk) = self.chunk() else { return Ok(()) };
        let full = std::mem::replace(chunk, empty);
        let packets = full.packets;
        send(&self.messages, Message::Packets(full)).inspect_err(|_| {
            self.shared.counts.unwritten.add(packets);
        })
    }

    fn check(&self) -> Result<()> {
        match self.shared.ended.load(Ordering::Relaxed) {
            false => Ok(()),
            true => Err(Error::Ended(self.shared.first_failure().unwrap_or_default())),
        }
    }
}

fn send(messages: &SyncSender<Message>, message: Message) -> Result<()> {
    // The channel has slots for all existing chunks, so this does not block.
    messages.send(message).map_err(|_| Error::Write(io::Error::other("the writer has ended; this is a bug")))
}
