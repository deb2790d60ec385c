//! Interface descriptions of a capture file.

use super::time::{Clock, TimestampResolution};
use wirelane_bpf::layout::LinkType;
use wirelane_bpf::linktype;

/// Maximum length of names and descriptions, in bytes. A file may contain up to 65,535 bytes for each of 65,536
/// interfaces, and such long names are useless.
const MAX_TEXT: usize = 255;

/// One interface of a capture file: a pcapng Interface Description Block, or the header of a pcap file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileInterface {
    /// `if_name`, cut at 255 bytes; empty if the file has none, as in every pcap file.
    pub name: String,
    /// `if_description`, cut at 255 bytes; empty if the file has none.
    pub description: String,
    /// The link type that selects the parser of its packets.
    pub link_type: LinkType,
    /// The LINKTYPE number in the file, also for link types that are carried but not parsed.
    pub link_number: u32,
    /// Snap length in bytes; 0: no limit.
    pub snap_len: u32,
    /// Unit of the timestamps in the file. Records always contain nanoseconds.
    pub resolution: TimestampResolution,
    /// `if_tsoffset` in seconds. The timestamps of records include it.
    pub offset_s: i64,
    /// RX queue, from a name of the form `DEV@QUEUE`, as Wirelane writes it; otherwise 0.
    pub queue: u16,
    pub(super) clock: Clock,
}

impl FileInterface {
    /// An interface without a name.
    pub(super) fn new(
        link_number: u32,
        snap_len: u32,
        resolution: TimestampResolution,
        offset_s: i64,
    ) -> FileInterface {
        FileInterface {
            name: String::new(),
            description: String::new(),
            link_type: linktype::from_number(link_number),
            link_number,
            snap_len,
            resolution,
            offset_s,
            queue: 0,
            clock: Clock::new(resolution, offset_s),
        }
    }

    /// The device of the interface: `eth1` for the name `eth1@2`, as Wirelane writes it. Empty if the file has no name.
    pub fn device(&self) -> &str {
        match self.name.rsplit_once('@') {
            Some((device, queue)) if queue == self.queue.to_string() => device,
            _ => &self.name,
        }
    }

    /// Sets name and description from the options of the interface.
    pub(super) fn named(mut self, name: &[u8], description: &[u8]) -> FileInterface {
        self.name = text(name);
        self.description = text(description);
        self.queue = queue_of(&self.name);
        self
    }
}

/// A text option, limited to valid UTF-8 and the maximum length, without the trailing NUL that some writers include.
fn text(bytes: &[u8]) -> String {
    let readable = String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_TEXT)]);
    let mut text = String::new();
    // Replacing invalid UTF-8 can make it longer.
    for character in readable.trim_end_matches('\0').chars() {
        if text.len() + character.len_utf8() > MAX_TEXT {
            break;
        }
        text.push(character);
    }
    text.shrink_to_fit();
    text
}

/// The queue in `DEV@QUEUE`. Other uses of the character (`vlan5@eth0`, `veth0@if7`) have no number after it.
fn queue_of(name: &str) -> u16 {
    match name.rsplit_once('@') {
        Some((device, queue)) if !device.is_empty() && queue.bytes().all(|b| b.is_ascii_digit()) => {
            queue.parse().unwrap_or(0)
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_from_names() {
        for (name, queue) in [
            ("eth1@2", 2),
            ("eth1@0", 0),
            ("eth1@65535", 65535),
            ("eth1@65536", 0),
            ("eth1", 0),
            ("@3", 0),
            ("eth1@", 0),
            ("eth1@+3", 0),
            ("vlan5@eth0", 0),
            ("veth0@if7", 0),
            ("", 0),
        ] {
            assert_eq!(queue_of(name), queue, "{name}");
        }
    }

    #[test]
    fn long_and_odd_texts_are_cut() {
        assert_eq!(text(&[b'a'; 1000]).len(), 255);
        assert!(text(&[0xff; 1000]).len() <= 255);
        assert_eq!(text("ä".repeat(200).as_bytes()).chars().next(), Some('ä'));
        assert_eq!(text(b"eth0\0"), "eth0");
        assert_eq!(text(b""), "");
    }
}
