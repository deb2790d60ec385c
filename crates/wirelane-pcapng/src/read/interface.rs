//! Interface descriptions of a capture file.

use super::time::{Clock, TimestampResolution};
use wirelane_bpf::layout::LinkType;
use wirelane_bpf::linktype;

/// Longest name and description that are kept, in bytes. A file may state up to 65,535 bytes for each of
/// 65,536 interfaces, and names that long help nobody.
const MAX_TEXT: usize = 255;

/// One interface of a capture file: a pcapng Interface Description Block, or the header of a pcap file.
#[derive(Clone, Debug)]
pub struct FileInterface {
    /// `if_name`, cut at 255 bytes; empty where the file does not say, as in every pcap file.
    pub name: String,
    /// `if_description`, cut at 255 bytes; empty where the file does not say.
    pub description: String,
    /// How its packets are parsed.
    pub link_type: LinkType,
    /// The LINKTYPE number in the file, which names link types that are carried but not parsed too.
    pub link_number: u32,
    /// Snap length in bytes; 0 where there was none.
    pub snap_len: u32,
    /// Unit of the timestamps in the file. Records carry nanoseconds, whatever it is.
    pub resolution: TimestampResolution,
    /// `if_tsoffset` in seconds. Records have it added already.
    pub offset_s: i64,
    /// RX queue, from a name of the form `DEV@QUEUE`, which is how Wirelane records; otherwise 0.
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

    /// The device that it is of: `eth1` of one that is called `eth1@2`, which is how Wirelane records. Empty where the
    /// file does not say.
    pub fn device(&self) -> &str {
        match self.name.rsplit_once('@') {
            Some((device, queue)) if queue == self.queue.to_string() => device,
            _ => &self.name,
        }
    }

    /// The same with what its options call it.
    pub(super) fn named(mut self, name: &[u8], description: &[u8]) -> FileInterface {
        self.name = text(name);
        self.description = text(description);
        self.queue = queue_of(&self.name);
        self
    }
}

/// A text option, as far as it is readable and short, without the end of a C string that some writers count.
fn text(bytes: &[u8]) -> String {
    let readable = String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_TEXT)]);
    let mut text = String::new();
    // Replacing what is no UTF-8 can make it longer.
    for character in readable.trim_end_matches('\0').chars() {
        if text.len() + character.len_utf8() > MAX_TEXT {
            break;
        }
        text.push(character);
    }
    text.shrink_to_fit();
    text
}

/// The queue in `DEV@QUEUE`. Other uses of the sign (`vlan5@eth0`, `veth0@if7`) have no number behind it.
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
