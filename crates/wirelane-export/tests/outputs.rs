//! Outputs of recordings: new files, existing files, links, pipes, devices, and full disks.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;

use tempfile::tempdir;
use wirelane_export::{Error, Output, OutputOptions, PcapWriter, PcapngWriter, SectionInfo};

const KEEP: OutputOptions = OutputOptions { overwrite: false };
const OVERWRITE: OutputOptions = OutputOptions { overwrite: true };

#[test]
fn a_new_file_belongs_to_its_owner() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("new.pcapng");
    let mut output = Output::open(&path, KEEP).unwrap();
    assert_eq!((output.path(), output.is_regular()), (&*path, true));
    output.write_all(b"abc").unwrap();
    output.flush().unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
    assert_eq!(fs::read(&path).unwrap(), b"abc");
}

#[test]
fn a_file_that_exists_is_overwritten_only_when_asked() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("old.pcap");
    fs::write(&path, "precious and long").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    let error = Output::open(&path, KEEP).unwrap_err();
    assert!(matches!(&error, Error::Exists { path: named } if *named == path), "{error}");
    assert_eq!(fs::read(&path).unwrap(), b"precious and long");
    let mut output = Output::open(&path, OVERWRITE).unwrap();
    output.write_all(b"new").unwrap();
    output.flush().unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"new");
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o640, "the mode stays");
}

#[test]
fn links_are_never_followed() {
    let directory = tempdir().unwrap();
    let target = directory.path().join("target");
    fs::write(&target, "untouched").unwrap();
    for (name, target) in [("link", target.clone()), ("dangling", directory.path().join("nothing"))] {
        let link = directory.path().join(name);
        symlink(&target, &link).unwrap();
        for options in [KEEP, OVERWRITE] {
            let error = Output::open(&link, options).unwrap_err();
            assert!(matches!(&error, Error::SymbolicLink { path } if *path == link), "{error}");
        }
    }
    assert_eq!(fs::read(&target).unwrap(), b"untouched");
    assert!(!directory.path().join("nothing").exists());
}

#[test]
fn pipes_and_devices_are_written_to_as_they_are() {
    let output = Output::open(Path::new("/dev/null"), KEEP).unwrap();
    assert!(!output.is_regular());
    let directory = tempdir().unwrap();
    let path = directory.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    let reader = std::thread::spawn({
        let path = path.clone();
        move || {
            let mut bytes = Vec::new();
            fs::File::open(path).unwrap().read_to_end(&mut bytes).unwrap();
            bytes
        }
    });
    let output = Output::open(&path, KEEP).unwrap();
    assert!(!output.is_regular());
    PcapngWriter::new(output, &SectionInfo::default()).unwrap().finish().unwrap();
    assert_eq!(&reader.join().unwrap()[..4], b"\x0a\x0d\x0d\x0a");
}

#[test]
fn what_cannot_be_an_output_is_named() {
    let directory = tempdir().unwrap();
    let socket = directory.path().join("socket");
    let _listener = UnixListener::bind(&socket).unwrap();
    for (path, kind) in [(directory.path(), "a directory"), (&socket, "a socket")] {
        let error = Output::open(path, OVERWRITE).unwrap_err();
        assert!(matches!(&error, Error::NotAnOutput { kind: got, .. } if *got == kind), "{error}");
        assert!(error.to_string().contains(&path.display().to_string()), "{error}");
    }
    let missing = directory.path().join("no/such/directory.pcap");
    let error = Output::open(&missing, KEEP).unwrap_err();
    assert!(error.to_string().contains("no/such/directory.pcap cannot be written: No such file"), "{error}");
}

#[test]
fn a_full_disk_is_an_error_that_names_the_file() {
    let output = Output::open(Path::new("/dev/full"), KEEP).unwrap();
    let mut writer = PcapWriter::new(output, 1, 0).unwrap();
    let error = loop {
        if let Err(error) = writer.write_packet(1, 0, &[0; 9000], 9000) {
            break error;
        }
    };
    let wirelane_pcapng::Error::Write(error) = error else { panic!("{error}") };
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    assert!(error.to_string().starts_with("/dev/full: "), "{error}");
}

#[test]
fn a_reader_who_leaves_is_an_error_and_no_signal() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    let reader = std::thread::spawn({
        let path = path.clone();
        move || drop(fs::File::open(path).unwrap())
    });
    let mut output = Output::open(&path, KEEP).unwrap();
    reader.join().unwrap();
    let error = output.write_all(&[0; 1 << 20]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
    assert!(error.to_string().contains("pipe"), "{error}");
}
