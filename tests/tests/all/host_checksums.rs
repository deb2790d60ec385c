//! Packets of a host that leaves checksums and segmentation to its card: a recording has the checksums of the wire, as
//! verified by tshark.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::Command;

use wirelane_tests::numbers::{capture, column, finish};
use wirelane_tests::{Lab, LabOptions, require_root};

const PORT: u16 = 7000;
/// An odd length, so that the last byte is half of a 16-bit word of the checksum.
const ANSWER: usize = 200_001;
const DATAGRAM: usize = 701;

/// A request with its answer over TCP, and datagrams in both directions.
fn talk(lab: &Lab) {
    let (server, client) = (lab.receiver().clone(), lab.sender().clone());
    let address = SocketAddr::from((server.address, PORT));
    let (listener, there) = lab
        .enter(&server.namespace, || (TcpListener::bind(address).unwrap(), UdpSocket::bind(address).unwrap()))
        .unwrap();
    let here = lab
        .enter(&client.namespace, || UdpSocket::bind(SocketAddr::from((client.address, PORT))).unwrap())
        .unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = listener.accept().unwrap();
            stream.read_exact(&mut [0; 3]).unwrap();
            let answer: Vec<u8> = (0..ANSWER).map(|at| (at * 7 + at / 256) as u8).collect();
            stream.write_all(&answer).unwrap();
        });
        lab.enter(&client.namespace, || {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(b"ask").unwrap();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).unwrap();
            assert_eq!(answer.len(), ANSWER);
        })
        .unwrap();
    });
    for length in [DATAGRAM, DATAGRAM + 1, 0] {
        here.send_to(&vec![length as u8; length], address).unwrap();
        there.send_to(&vec![!length as u8; length], (client.address, PORT)).unwrap();
    }
}

/// Numbers of packets of a protocol with a good checksum and with another one, according to tshark.
fn judged(file: &Path, protocol: &str) -> (usize, usize) {
    let status = format!("{protocol}.checksum.status");
    let output = Command::new("tshark")
        .args(["-n", "-o", "tcp.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE"])
        .args(["-Y", &format!("{protocol}.port == {PORT}"), "-T", "fields", "-e", &status, "-r"])
        .arg(file)
        .output()
        .expect("scripts/setup installs tshark");
    let text = String::from_utf8(output.stdout).unwrap();
    let good = text.lines().filter(|line| *line == "1" || *line == "Good").count();
    (good, text.lines().count() - good)
}

fn check(offloads: bool, words: &[&str], name: &str) {
    let lab = Lab::with(&LabOptions { offloads, ..LabOptions::default() }).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(name);
    let base = ["record", "-i", &lab.receiver().device, "-w", file.to_str().unwrap(), "--json"];
    let recorder = capture(&lab, &[&base, words].concat()).unwrap();
    talk(&lab);
    let last = finish(recorder).unwrap();
    assert_eq!((column(&last, "lost"), column(&last, "unwritten")), (0, 0), "{last}");
    let (tcp, udp) = (judged(&file, "tcp"), judged(&file, "udp"));
    assert!(tcp.0 >= 8 && udp.0 >= 6, "{tcp:?} {udp:?}");
    assert_eq!((tcp.1, udp.1), (0, 0), "checksums that are not those of the wire, with {words:?}");
}

#[test]
fn recordings_have_the_checksums_of_the_wire() {
    if !require_root("recordings_have_the_checksums_of_the_wire") {
        return;
    }
    for offloads in [false, true] {
        check(offloads, &[], "all.pcapng");
        check(offloads, &[], "all.pcap");
        check(offloads, &["--engine", "packet"], "all.pcapng");
        check(offloads, &["--workers", "2", "--single-file"], "all.pcapng");
    }
    check(true, &["--hook", "native"], "all.pcapng");
}
