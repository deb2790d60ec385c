//! Compressed files give the packets of their content; cut and damaged ones give the packets before the damage.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use super::build::Little;
use super::{AS_WRITTEN, FileSource};
use crate::error::Error;

/// Packets of a file, and the error that ended it.
fn read(path: &Path) -> (Vec<Vec<u8>>, Option<Error>) {
    let mut source = match FileSource::open(path, AS_WRITTEN) {
        Ok(source) => source,
        Err(error) => return (Vec::new(), Some(error)),
    };
    let progress = source.progress().expect("a regular file");
    let mut packets = Vec::new();
    let error = loop {
        match source.next_batch(Duration::ZERO) {
            Ok(Some(batch)) => packets.extend(batch.map(|record| record.data().to_vec())),
            Ok(None) => break None,
            Err(error) => break Some(error),
        }
    };
    if error.is_none() {
        assert_eq!(progress.read(), progress.total(), "all of it was read");
    }
    (packets, error)
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 3).unwrap()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Packets of noise, and a capture of them.
fn capture() -> (Vec<Vec<u8>>, Vec<u8>) {
    let mut state = 1u64;
    let packets: Vec<Vec<u8>> = (0..3000)
        .map(|_| {
            (0..300)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (state >> 56) as u8
                })
                .collect()
        })
        .collect();
    let mut bytes = [Little.section(), Little.interface(1, 0, &[])].concat();
    for (time, packet) in packets.iter().enumerate() {
        bytes.extend_from_slice(&Little.packet(0, time as u64, packet));
    }
    (packets, bytes)
}

#[test]
fn zstd_and_gzip_are_read_as_what_they_hold() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let (packets, plain) = capture();
    let (front, back) = plain.split_at(plain.len() / 2);
    for bytes in [
        plain.clone(),
        zstd(&plain),
        gzip(&plain),
        // Several frames or members form one file.
        [zstd(front), zstd(back)].concat(),
        [gzip(front), gzip(back)].concat(),
    ] {
        fs::write(&path, bytes).unwrap();
        let (found, error) = read(&path);
        assert!(error.is_none(), "{error:?}");
        assert!(found == packets);
    }
}

#[test]
fn a_cut_file_is_read_up_to_the_cut() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let (packets, plain) = capture();
    for (compressed, with) in [(zstd(&plain), "zstd"), (gzip(&plain), "gzip")] {
        let mut most = 0;
        for end in (10..compressed.len()).step_by(compressed.len() / 37) {
            fs::write(&path, &compressed[..end]).unwrap();
            let (found, error) = read(&path);
            assert!(packets.starts_with(&found));
            // A zstd block is 128 KiB at most, and noise does not compress.
            assert!(found.len() * 300 + (256 << 10) > end, "{with}: {} packets of {end} bytes", found.len());
            most = most.max(found.len());
            match error {
                Some(Error::Pcapng(wirelane_pcapng::Error::CaptureFile { reason, .. })) => {
                    assert!(reason.contains(with), "{reason}")
                }
                other => panic!("a cut {with} file is one that ends well: {other:?}"),
            }
        }
        assert!(most > 2000, "{with}");
    }
}

#[test]
fn damage_inside_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let (packets, plain) = capture();
    let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 3).unwrap();
    encoder.include_checksum(true).unwrap();
    encoder.write_all(&plain).unwrap();
    let checked = encoder.finish().unwrap();
    // Noise is stored uncompressed, so the checksums at the ends detect the damage.
    for (mut compressed, with, from_end) in [(checked, "zstd", 2), (gzip(&plain), "gzip", 6)] {
        let at = compressed.len() - from_end;
        compressed[at] ^= 0xff;
        fs::write(&path, &compressed).unwrap();
        let (found, error) = read(&path);
        assert!(packets.starts_with(&found));
        let reason = error.expect("damage").to_string();
        assert!(reason.contains(&format!("the {with} data is damaged")), "{reason}");
    }
    for magic in [&b"\x28\xb5\x2f\xfd"[..], b"\x1f\x8b\x08\x00"] {
        fs::write(&path, magic).unwrap();
        let (found, error) = read(&path);
        assert!(
            found.is_empty()
                && matches!(error, Some(Error::Pcapng(wirelane_pcapng::Error::CaptureFile { .. }))),
            "{error:?}"
        );
    }
}
