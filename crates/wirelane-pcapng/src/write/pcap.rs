//! Classic pcap, nanosecond variant (draft-ietf-opsawg-pcap; pcap-savefile(5)), little endian.

use std::io::Write;

use crate::{Error, Result};

/// Bytes of a packet's header in the file.
pub const BEFORE_DATA: usize = 16;
const NANOSECOND_MAGIC: u32 = 0xa1b2_3c4d;
const NANOS: u64 = 1_000_000_000;

/// Writes a pcap file of one link type.
#[derive(Debug)]
pub struct PcapWriter<W> {
    output: W,
    link_number: u32,
}

impl<W: Write> PcapWriter<W> {
    /// Writes the file header. `link_number` is a LINKTYPE number ([`wirelane_bpf::linktype`]), `snap_len` is in bytes.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn new(mut output: W, link_number: u32, snap_len: u32) -> Result<PcapWriter<W>> {
        let mut header = [0; 24];
        header[0..4].copy_from_slice(&NANOSECOND_MAGIC.to_le_bytes());
        header[4..6].copy_from_slice(&2u16.to_le_bytes());
        header[6..8].copy_from_slice(&4u16.to_le_bytes());
        // Time zone and accuracy, 8 bytes, are 0 in all current files.
        header[16..20].copy_from_slice(&snap_len.to_le_bytes());
        header[20..24].copy_from_slice(&link_number.to_le_bytes());
        output.write_all(&header)?;
        Ok(PcapWriter { output, link_number })
    }

    /// Writes a packet: LINKTYPE number, UTC nanoseconds, captured bytes, length on the wire in bytes.
    ///
    /// # Errors
    /// [`Error::SecondLinkType`], [`Error::Time`] and [`Error::PacketTooLong`], with nothing written, or
    /// [`Error::Write`].
    pub fn write_packet(
        &mut self,
        link_number: u32,
        ts_utc_ns: u64,
        data: &[u8],
        wire_len: u32,
    ) -> Result<()> {
        if link_number != self.link_number {
            return Err(Error::SecondLinkType { first: self.link_number, second: link_number });
        }
        let cap_len = u32::try_from(data.len()).map_err(|_| Error::PacketTooLong { len: data.len() })?;
        let seconds = u32::try_from(ts_utc_ns / NANOS).map_err(|_| Error::Time { ts_ns: ts_utc_ns })?;
        let mut header = [0; BEFORE_DATA];
        for (field, value) in
            header.chunks_exact_mut(4).zip([seconds, (ts_utc_ns % NANOS) as u32, cap_len, wire_len])
        {
            field.copy_from_slice(&value.to_le_bytes());
        }
        self.output.write_all(&header)?;
        self.output.write_all(data)?;
        Ok(())
    }

    /// The output.
    pub fn get_mut(&mut self) -> &mut W {
        &mut self.output
    }

    /// Flushes buffered data.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn flush(&mut self) -> Result<()> {
        Ok(self.output.flush()?)
    }

    /// Flushes and returns the output.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn finish(mut self) -> Result<W> {
        self.flush()?;
        Ok(self.output)
    }
}
