//! `wirelane packets -v -e -x -X -A -t`: the text of headers and bytes is tcpdump's.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use etherparse::{IpNumber, PacketBuilder, TcpOptionElement};
use wirelane_tests::{Capture, Child, corpus, frames, recordings, wirelane_binary};

/// Standard output of a command that must succeed.
fn output_of(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn wirelane(file: &Path, options: &str) -> String {
    let words = options.split_whitespace();
    output_of(Command::new(wirelane_binary().unwrap()).args(["packets", "-r"]).arg(file).args(words))
}

fn tcpdump(file: &Path, options: &str) -> String {
    let words = options.split_whitespace();
    output_of(Command::new("tcpdump").args(["-n", "-r"]).arg(file).args(words))
}

fn is_there() -> bool {
    let there = Command::new("tcpdump").arg("--version").output().is_ok();
    if !there {
        println!("left out: no tcpdump");
    }
    there
}

/// The text from the first of these words to the end, or to after the number that follows `length `.
fn from_word(line: &str, words: &[&str]) -> Option<String> {
    let start = words.iter().filter_map(|word| line.find(word)).min()?;
    let text = &line[start..];
    let end = text.find("length ").map_or(text.len(), |at| {
        let digits = text[at + 7..].bytes().take_while(u8::is_ascii_digit).count();
        at + 7 + digits
    });
    Some(text[..end].to_owned())
}

const HEADER: fn() -> etherparse::PacketBuilderStep<etherparse::IpHeaders> = || {
    PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 63)
};

fn tcp(flags: &str, payload: &[u8], options: &[TcpOptionElement]) -> Vec<u8> {
    let mut step = HEADER().tcp(4000, 5000, 0xffff_fff0, 501);
    for flag in flags.chars() {
        step = match flag {
            'S' => step.syn(),
            'F' => step.fin(),
            'R' => step.rst(),
            'P' => step.psh(),
            'U' => step.urg(77),
            'A' => step.ack(1234),
            'E' => step.ece(),
            'W' => step.cwr(),
            other => unreachable!("{other}"),
        };
    }
    let step = step.options(options).unwrap();
    let mut frame = Vec::new();
    step.write(&mut frame, payload).unwrap();
    frame
}

fn dns(message: &[u8]) -> Vec<u8> {
    frames::ethernet(0x0800, &frames::udp([10, 0, 0, 1], [10, 0, 0, 2], (4444, 53), message))
}

/// A frame with an IPv4 packet of this protocol.
fn icmp(message: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    HEADER().write(&mut frame, IpNumber::ICMP, message).unwrap();
    frame
}

fn icmp_6(message: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    let (from, to) = ([0xfe; 16], [0xfd; 16]);
    let step = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]).ipv6(from, to, 63);
    step.write(&mut frame, IpNumber::IPV6_ICMP, message).unwrap();
    frame
}

/// The header of an ICMP error, and the beginning of the packet that caused it.
fn icmp_error(kind: u8, code: u8, rest: [u8; 4]) -> Vec<u8> {
    let mut cause = Vec::new();
    HEADER().udp(1000, 2000).write(&mut cause, b"data").unwrap();
    icmp(&[&[kind, code, 0, 0][..], &rest, &cause[14..]].concat())
}

fn all_frames() -> Vec<Vec<u8>> {
    use TcpOptionElement::{MaximumSegmentSize, Noop, SelectiveAcknowledgement, Timestamp, WindowScale};
    let permitted = TcpOptionElement::SelectiveAcknowledgementPermitted;
    let sack = SelectiveAcknowledgement((10, 20), [Some((30, 40)), None, None]);
    let mut all = vec![
        tcp("S", b"", &[MaximumSegmentSize(1460), permitted, Timestamp(7, 0), Noop, WindowScale(7)]),
        tcp("SA", b"", &[MaximumSegmentSize(1460)]),
        tcp("A", b"", &[Noop, Noop, sack]),
        // The sequence numbers wrap around.
        tcp("PA", b"thirty bytes of payload, so to", &[]),
        tcp("FA", b"", &[]),
        tcp("R", b"", &[]),
        tcp("", b"", &[]),
        tcp("UAEW", b"urgent", &[]),
        icmp(&[8, 0, 0, 0, 0, 7, 0, 9, 1, 2, 3]),
        icmp(&[0, 0, 0, 0, 0, 7, 0, 9]),
        icmp(&[13, 0, 0, 0, 0, 7, 0, 9]),
        icmp_error(3, 0, [0; 4]),
        icmp_error(3, 1, [0; 4]),
        icmp_error(3, 2, [0; 4]),
        icmp_error(3, 3, [0; 4]),
        icmp_error(3, 4, [0, 0, 5, 0]),
        icmp_error(3, 13, [0; 4]),
        icmp_error(5, 1, [10, 0, 0, 9]),
        icmp_error(11, 0, [0; 4]),
        icmp_error(11, 1, [0; 4]),
        icmp_6(&[128, 0, 0, 0, 0, 7, 0, 9, 1, 2, 3]),
        icmp_6(&[129, 0, 0, 0, 0, 7, 0, 9]),
        icmp_6(&[&[135, 0, 0, 0, 0, 0, 0, 0][..], &[0xfe; 16]].concat()),
        icmp_6(&[&[136, 0, 0, 0, 0, 0, 0, 0][..], &[0xfe; 16]].concat()),
        dns(b"\x30\x39\x01\x00\0\x01\0\0\0\0\0\0\x07example\x03com\0\0\x01\0\x01"),
        dns(b"\x30\x39\x01\x00\0\x01\0\0\0\0\0\x01\x04mail\x07example\x03org\0\0\x1c\0\x01\0\0\x29\x04\xd0\0\0\0\0\0\0"),
        dns(b"\x30\x39\x81\x83\0\x01\0\0\0\0\0\0\x07example\x03com\0\0\x01\0\x01"),
        dns(b"\x30\x39\x85\x00\0\x01\0\x02\0\0\0\0\x03www\x01e\x03com\0\0\x01\0\x01\xc0\x0c\0\x05\0\x01\0\0\0\x3c\0\x04\x01a\xc0\x10\xc0\x1d\0\x01\0\x01\0\0\0\x3c\0\x04\x0a\x00\x00\x09"),
    ];
    let mut ask = vec![0, 1, 8, 0, 6, 4, 0, 1];
    ask.extend([2, 0, 0, 0, 0, 1, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2]);
    all.push(frames::ethernet(0x0806, &ask));
    ask[7] = 2;
    all.push(frames::ethernet(0x0806, &ask));
    let mut tagged = Vec::new();
    PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2])
        .double_vlan(100.try_into().unwrap(), 5.try_into().unwrap())
        .ipv4([10, 0, 0, 1], [10, 0, 0, 2], 63)
        .udp(1000, 2000)
        .write(&mut tagged, b"in two VLANs")
        .unwrap();
    all.push(tagged);
    all
}

fn written(folder: &Path) -> std::path::PathBuf {
    let path = folder.join("frames.pcap");
    let mut file = File::create(&path).unwrap();
    recordings::write_header(&mut file).unwrap();
    for (number, frame) in all_frames().iter().enumerate() {
        let ns = 1_700_000_000_000_000_000 + number as u64 * 1_500_000_001;
        recordings::write_packet(&mut file, ns, frame).unwrap();
    }
    path
}

/// Text that our line has and tcpdump has not, and the other way round.
fn in_tcpdumps_words(line: &str) -> String {
    // The question of a response is in tcpdump's output with -vv only, and in another place.
    let mut text = line.to_owned();
    if let Some(start) = text.find(" q: ") {
        let rest = &text[start + 4..];
        let end = rest.match_indices(' ').nth(1).map_or_else(|| rest.find(" (").unwrap(), |(at, _)| at);
        text.replace_range(start..start + 4 + end, "");
    }
    text
}

#[test]
fn headers_are_described_in_the_words_of_tcpdump() {
    if !is_there() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = written(folder.path());
    let (ours, theirs) = (wirelane(&file, "-v"), tcpdump(&file, "-S"));
    assert_eq!(ours.lines().count(), all_frames().len());
    let mut differing = Vec::new();
    for (our, their) in ours.lines().zip(theirs.lines()) {
        let detail = our.split_once(" bytes: ").unwrap_or_else(|| panic!("{our}")).1;
        let agree = if our.contains(" arp ") {
            their.contains(detail)
        } else {
            // Behind the time and the addresses, which have no ": ".
            their.split_once(": ").is_some_and(|(_, fields)| in_tcpdumps_words(detail) == fields)
        };
        if !agree {
            differing.push(format!("{our}\n{their}"));
        }
    }
    assert!(differing.is_empty(), "{}", differing.join("\n"));
}

#[test]
fn bytes_and_link_headers_and_times_are_those_of_tcpdump() {
    if !is_there() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = written(folder.path());
    let dumped = |text: &str| -> Vec<String> {
        text.lines().filter(|line| line.starts_with('\t')).map(|line| line.trim_end().to_owned()).collect()
    };
    for options in ["-x", "-xx", "-X", "-XX"] {
        let (ours, theirs) = (dumped(&wirelane(&file, options)), dumped(&tcpdump(&file, options)));
        assert!(ours.len() > 100, "{options}");
        assert_eq!(ours, theirs, "{options}");
    }
    // tcpdump's -A has line ends of the packet without a tab.
    let text = wirelane(&file, "-A");
    assert!(text.contains("thirty bytes of payload, so to"), "{text}");
    let whole = |text: &str| text.lines().map(|line| line.trim_start().to_owned()).collect::<Vec<_>>();
    let (ours, theirs) = (whole(&text), tcpdump(&file, "-A"));
    let content = |text: &str| text.lines().filter(|line| line.starts_with("E.")).count();
    assert_eq!(ours.iter().filter(|line| line.starts_with("E.")).count(), content(&theirs));

    let (ours, theirs) = (wirelane(&file, "-e -t"), tcpdump(&file, "-e -t"));
    for (our, their) in ours.lines().zip(theirs.lines()) {
        // "A > B, ethertype IPv4 (0x0800)"; tcpdump has the length in between.
        let (addresses, rest) = their.split_once(", ").unwrap();
        let first = rest.split(", length ").next().unwrap();
        assert!(our.contains(&format!(" {addresses}, {first}")), "{our}\n{their}");
        for tag in their.match_indices("vlan ").map(|(at, _)| &their[at..]) {
            let tag: Vec<&str> = tag.splitn(3, ", ").take(2).collect();
            assert!(our.contains(&tag.join(", ")), "{our}\n{their}");
        }
    }
    for options in ["-tt", "-ttt", "-ttttt"] {
        let theirs = tcpdump(&file, &format!("{options} --time-stamp-precision=nano"));
        for (our, their) in wirelane(&file, options).lines().zip(theirs.lines()) {
            let number = |line: &str| {
                let time = line.split_whitespace().next().unwrap();
                // tcpdump writes differences as hh:mm:ss.
                let seconds = time.rsplit(':').enumerate().map(|(place, part)| {
                    let (whole, ns) = part.split_once('.').unwrap_or((part, "0"));
                    let ns: u64 = ns.parse().unwrap();
                    whole.parse::<u64>().unwrap() * 60u64.pow(place as u32) * 1_000_000_000 + ns
                });
                seconds.sum::<u64>()
            };
            assert_eq!(number(our), number(their), "{options}: {our}\n{their}");
        }
    }
}

#[test]
fn segments_and_messages_of_the_corpus_are_described_as_by_tcpdump() {
    let test = "segments_and_messages_of_the_corpus_are_described_as_by_tcpdump";
    let Some(corpus) = corpus(test).filter(|_| is_there()) else { return };
    let words = ["Flags [", "ICMP echo", "ICMP time exceeded", "ICMP6, echo", "ICMP6, neighbor"];
    let folder = tempfile::tempdir().unwrap();
    let mut compared = 0;
    for capture in Capture::all(&corpus).unwrap() {
        if !["http", "voip", "mixed", "apps"].contains(&capture.category.as_str()) {
            continue;
        }
        let file = folder.path().join("capture");
        std::fs::write(&file, capture.bytes().unwrap()).unwrap();
        // Fragments have no whole message, and tcpdump does not describe aggregates of the kernel, which have no length.
        let expression = "(tcp or icmp or icmp6) and not (ip[6:2] & 0x3fff != 0) and not (ip[2:2] = 0)";
        let output =
            Command::new("tcpdump").args(["-n", "-S", "-r"]).arg(&file).arg(expression).output().unwrap();
        if !output.status.success() {
            continue;
        }
        let theirs = String::from_utf8_lossy(&output.stdout).into_owned();
        let ours = Command::new(wirelane_binary().unwrap())
            .args(["packets", "-v", "-r"])
            .arg(&file)
            .arg(expression)
            .output()
            .unwrap();
        let ours = String::from_utf8(ours.stdout).unwrap();
        // In the order of the file, or sorted by time.
        let sorted = |text: &str| {
            let mut lines: Vec<String> = text.lines().filter_map(|line| from_word(line, &words)).collect();
            lines.sort();
            lines
        };
        let (ours, theirs) = (sorted(&ours), sorted(&theirs));
        compared += ours.len();
        let differing = ours.iter().zip(&theirs).find(|(our, their)| our != their);
        assert_eq!((differing, ours.len()), (None, theirs.len()), "{}", capture.id);
    }
    println!("{compared} packets agree");
    assert!(compared > 10_000, "{compared}");
}

/// Battery: S6
#[test]
fn no_packet_of_the_corpus_acts_on_the_terminal() {
    let Some(corpus) = corpus("no_packet_of_the_corpus_acts_on_the_terminal") else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut lines = 0;
    for capture in Capture::all(&corpus).unwrap() {
        if !["malformed", "decode", "encap"].contains(&capture.category.as_str()) {
            continue;
        }
        let file = folder.path().join("capture");
        std::fs::write(&file, capture.bytes().unwrap()).unwrap();
        let mut command = Command::new(wirelane_binary().unwrap());
        let child = Child::spawn(command.args(["packets", "-vv", "-e", "-A", "-c", "2000", "-r"]).arg(&file))
            .unwrap();
        let finished = child.finish(wirelane_tests::numbers::LIMIT).unwrap();
        let code = finished.status.code();
        assert!(matches!(code, Some(0 | 1)), "{}: {code:?} {}", capture.id, finished.stderr);
        for line in &finished.lines {
            lines += 1;
            let text = line.strip_prefix('\t').unwrap_or(line);
            assert_eq!(wirelane::escape::printable(text), text, "{}", capture.id);
        }
    }
    assert!(lines > 1000, "{lines}");
}

/// In a zone half an hour beside UTC's hours, and around both changes of summer time; the zone is also given by its rule.
#[test]
fn local_times_are_those_of_tcpdump() {
    if !is_there() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("in.pcap");
    // 2026-03-29 and 2026-10-25, in the second before 01:00 UTC and at 01:00.
    let times = [
        1_774_745_999_999_999_999,
        1_774_746_000_000_000_000,
        1_792_889_999_500_000_001,
        1_792_890_000_000_000_000,
    ];
    recordings::make_capture(&file, 100, times).unwrap();
    let shown = |zone: &str, command: &mut Command| {
        let text = output_of(command.env("TZ", zone).arg("-r").arg(&file));
        text.lines().filter(|line| line.starts_with("2026-")).map(str::to_owned).collect::<Vec<_>>()
    };
    for (zone, offsets) in [
        ("Asia/Kolkata", ["+05:30"; 4]),
        ("Europe/Berlin", ["+01:00", "+02:00", "+02:00", "+01:00"]),
        ("CET-1CEST,M3.5.0,M10.5.0/3", ["+01:00", "+02:00", "+02:00", "+01:00"]),
        ("UTC", ["+00:00"; 4]),
    ] {
        let mut tcpdump = Command::new("tcpdump");
        let theirs = shown(zone, tcpdump.args(["-n", "-tttt", "--time-stamp-precision=nano"]));
        let mut ours = Command::new(wirelane_binary().unwrap());
        let ours = shown(zone, ours.args(["packets", "--local-time"]));
        assert_eq!((theirs.len(), ours.len()), (4, 4), "{zone}: {theirs:?} {ours:?}");
        for ((theirs, ours), offset) in theirs.iter().zip(&ours).zip(offsets) {
            assert_eq!(ours[..29].replace('T', " "), theirs[..29], "{zone}");
            assert_eq!(ours[29..35], *offset, "{zone}: {ours}");
        }
    }
    let mut wrong = Command::new(wirelane_binary().unwrap());
    wrong.env("TZ", "No/Such").args(["packets", "--local-time", "-r"]).arg(&file);
    let output = wrong.output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(2) && error.contains("--local-time: the time zone is not known"),
        "{error}"
    );
}
