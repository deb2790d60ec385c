//! Error messages for files that are not captures, or are truncated.

/// The file ends inside `what`, which starts at the offset that is reported with the message.
pub(super) fn cut(what: &str, needed: u64, there: u64) -> String {
    format!("the file ends inside {what}: {needed} bytes are needed, {there} are there")
}

/// The file is shorter than the 4 bytes that identify a format.
pub(super) fn no_magic(bytes: usize) -> String {
    match bytes {
        0 => "the file is empty: even a capture without packets has a header".into(),
        _ => cut("the file header", 4, bytes as u64),
    }
}

/// The file does not start like a capture file.
pub(super) fn no_capture(magic: [u8; 4]) -> String {
    let compressed = |with: &str, command: &str| {
        format!(
            "the file is compressed with {with}; decompress it on the way: {command} FILE | wirelane ... -r -"
        )
    };
    match magic {
        [0x1f, 0x8b, ..] => compressed("gzip", "gzip -dc"),
        [0x28, 0xb5, 0x2f, 0xfd] => compressed("zstd", "zstd -dc"),
        [0xfd, b'7', b'z', b'X'] => compressed("xz", "xz -dc"),
        [0x04, 0x22, 0x4d, 0x18] => compressed("lz4", "lz4 -dc"),
        [b'B', b'Z', b'h', _] => compressed("bzip2", "bzip2 -dc"),
        [b's', b'n', b'o', b'o'] => {
            "a snoop capture, which is not read; convert it: editcap -F pcapng FILE OUT".into()
        }
        [a, b, c, d] => format!(
            "this is neither pcap nor pcapng: it starts with {a:02x} {b:02x} {c:02x} {d:02x}; \
             if it is another kind of capture, convert it: editcap -F pcapng FILE OUT"
        ),
    }
}
