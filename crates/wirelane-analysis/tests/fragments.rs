//! Messages whose TCP segments arrive in IP fragments are complete, in any order of the fragments, as with tshark.

use std::fs;
use std::io::Cursor;
use std::process::Command;
use std::time::Duration;

use wirelane::{FileOptions, FileSource};
use wirelane_analysis::http::{HttpSettings, HttpTable};
use wirelane_analysis::voip::{Monitor, Settings};

/// Ends of a conversation: the client's address ends with 1, the server's with 2.
const PORT: u16 = 40_000;

/// A TCP datagram (PSH and ACK) in fragments of this many bytes, over IPv4 or IPv6. `id` identifies the datagram.
fn fragments(
    six: bool,
    id: u16,
    from_client: bool,
    port: u16,
    seq: u32,
    data: &[u8],
    most: usize,
) -> Vec<Vec<u8>> {
    let (src, dst, sport, dport) = if from_client { (1, 2, PORT, port) } else { (2, 1, port, PORT) };
    let mut tcp = [sport.to_be_bytes(), dport.to_be_bytes()].concat();
    tcp.extend(seq.to_be_bytes());
    tcp.extend([0, 0, 0, 1, 0x50, 0x18, 0xff, 0xff, 0, 0, 0, 0]);
    tcp.extend(data);
    let last = tcp.len().div_ceil(most) - 1;
    tcp.chunks(most)
        .enumerate()
        .map(|(at, part)| {
            let (offset, more) = ((at * most / 8) as u16, u16::from(at != last));
            let mut frame = vec![2, 0, 0, 0, 0, dst, 2, 0, 0, 0, 0, src];
            if six {
                frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
                frame.extend((part.len() as u16 + 8).to_be_bytes());
                frame.extend([44, 64, 0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, src]);
                frame.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, dst, 6, 0]);
                frame.extend((offset << 3 | more).to_be_bytes());
                frame.extend([0, 0]);
                frame.extend(id.to_be_bytes());
            } else {
                frame.extend([8, 0, 0x45, 0]);
                frame.extend((part.len() as u16 + 20).to_be_bytes());
                frame.extend(id.to_be_bytes());
                frame.extend((offset | more << 13).to_be_bytes());
                frame.extend([64, 6, 0, 0, 10, 0, 0, src, 10, 0, 0, dst]);
            }
            frame.extend(part);
            frame
        })
        .collect()
}

fn pcap(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut pcap: Vec<u8> =
        [0xa1b2_3c4du32, 0x0004_0002, 0, 0, 262_144, 1].into_iter().flat_map(u32::to_le_bytes).collect();
    for (number, frame) in frames.iter().enumerate() {
        let length = frame.len() as u32;
        pcap.extend([1, number as u32 * 1_000_000, length, length].into_iter().flat_map(u32::to_le_bytes));
        pcap.extend(frame);
    }
    pcap
}

/// A request and a response with a body of 5,000 bytes, each in one segment that arrives in fragments of 504 bytes.
fn web(six: bool, backwards: bool) -> Vec<Vec<u8>> {
    let request = b"GET /a HTTP/1.1\r\nHost: b\r\n\r\n";
    let head = b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n";
    let answer = [&head[..], &[b'x'; 5000]].concat();
    let mut frames = fragments(six, 1, true, 8080, 1000, request, 24);
    let mut behind = fragments(six, 2, false, 8080, 1, &answer, 504);
    if backwards {
        frames.reverse();
        behind.reverse();
    }
    frames.extend(behind);
    frames
}

#[test]
fn transactions_in_fragments_are_whole() {
    for (six, backwards) in [(false, false), (false, true), (true, false), (true, true)] {
        let frames = web(six, backwards);
        let mut source =
            FileSource::from_reader(Cursor::new(pcap(&frames)), "made", FileOptions::as_written()).unwrap();
        let mut table = HttpTable::new(HttpSettings::default());
        while let Some(batch) = source.next_batch(Duration::ZERO).unwrap() {
            for record in batch {
                table.record(&record, record.header().ts_ns);
            }
        }
        let mut transactions = Vec::new();
        while table.flush() {
            transactions.extend(table.finished().drain());
        }
        transactions.extend(table.finished().drain());
        let totals = *table.totals();
        assert!(totals.balance(), "{totals:?}");
        assert_eq!((totals.packets, table.held()), (frames.len() as u64, 0));
        let [transaction] = &transactions[..] else { panic!("{} transactions", transactions.len()) };
        let response = transaction.response.as_ref().expect("an answer");
        assert_eq!(
            (response.status, response.body, response.missing),
            (200, 5000, 0),
            "IPv6 {six}, backwards {backwards}"
        );
        assert_eq!(&*transaction.request.as_ref().expect("a request").method, b"GET");
    }
}

#[test]
fn tshark_finds_the_same_transactions() {
    if Command::new("tshark").arg("--version").output().is_err() {
        println!("left out: tshark_finds_the_same_transactions (no tshark)");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for (name, six) in [("four", false), ("six", true)] {
        let path = folder.path().join(name);
        fs::write(&path, pcap(&web(six, false))).unwrap();
        let output = Command::new("tshark")
            .args([
                "-n",
                "-Y",
                "http",
                "-T",
                "fields",
                "-e",
                "http.request.method",
                "-e",
                "http.response.code",
                "-r",
            ])
            .arg(&path)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(text.split_whitespace().collect::<Vec<_>>(), ["GET", "200"], "{name}");
    }
}

#[test]
fn calls_over_tcp_in_fragments_are_whole() {
    let message = [
        b"OPTIONS sip:a@b SIP/2.0\r\nCall-ID: x\r\nFrom: <sip:a@b>;tag=1\r\nTo: <sip:b@a>\r\nCSeq: 1 OPTIONS\r\nContent-Length: 3000\r\n\r\n"
            .as_slice(),
        &[b'x'; 3000],
    ]
    .concat();
    for (six, backwards) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut frames = fragments(six, 3, true, 5060, 1000, &message, 504);
        if backwards {
            frames.reverse();
        }
        let mut monitor = Monitor::new(Settings { all_signals: true, ..Settings::default() });
        for (number, frame) in frames.iter().enumerate() {
            monitor.packet(wirelane::LinkType::Ethernet, frame, 1_000_000_000 + number as u64);
        }
        while monitor.flush() {
            monitor.finished().drain().for_each(drop);
        }
        let counts = monitor.counts();
        assert_eq!((counts.messages, counts.packets()), (1, frames.len() as u64), "{counts:?}");
        assert_eq!(counts.signalling_packets, 1, "the fragment that made it whole");
    }
}
