//! Filter expressions over files: counts equal tcpdump's, and mistakes are reported.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use wirelane::filter::{FileFilter, Filter};
use wirelane::{Capture, Error, FileInput, FileOptions, FileSource};
use wirelane_tests::{corpus, require_root, wirelane_binary};

/// A line of the corpus's table of counts: a file, and the result of `tcpdump --count` for each expression.
struct Truth {
    name: String,
    path: PathBuf,
    counts: Vec<Option<Count>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Count {
    Packets(u64),
    /// The expression is refused for this link type.
    Refused,
}

/// The expressions, and the counts of every file.
fn truth(corpus: &Path) -> (Vec<String>, Vec<Truth>) {
    let read =
        |name: &str| fs::read_to_string(corpus.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    let expressions = read("filters/expressions.tsv")
        .lines()
        .skip(1)
        .map(|line| line.split_once('\t').unwrap().1.into())
        .collect();
    let manifest = read("MANIFEST.tsv");
    let paths: HashMap<&str, &str> = manifest
        .lines()
        .skip(1)
        .map(|line| {
            let mut columns = line.split('\t');
            (columns.next().unwrap(), columns.next().unwrap())
        })
        .collect();
    let table = read("truth/filter-counts.tsv");
    let count = |cell: &str| match cell {
        "" => None,
        "E" => Some(Count::Refused),
        number => Some(Count::Packets(number.parse().unwrap())),
    };
    let line = |line: &str| {
        let mut columns = line.split('\t');
        let name = columns.next().unwrap().to_owned();
        let path = corpus.join(paths[name.as_str()]);
        Truth { name, path, counts: columns.map(count).collect() }
    };
    let files = table.lines().skip(1).filter(|line| !line.is_empty()).map(line).collect();
    (expressions, files)
}

/// A packet of a file: link type, length on the wire, bytes.
type Packet = (u32, u32, Vec<u8>);

/// The packets of a file up to the first error, and its number of interfaces; `None` if there was an error.
fn read(path: &Path) -> (Vec<Packet>, Option<usize>) {
    let mut packets = Vec::new();
    let Ok(mut source) = FileSource::open(path, FileOptions::as_written()) else { return (packets, None) };
    loop {
        let first = packets.len();
        let mut device = 0;
        match source.next_batch(Duration::ZERO) {
            Ok(Some(batch)) => {
                for record in batch {
                    device = record.device();
                    packets.push((0, record.wire_len(), record.data().to_vec()));
                }
            }
            Ok(None) => return (packets, Some(source.interfaces().len())),
            Err(_) => return (packets, None),
        }
        let link = source.interfaces().get(device).map_or(0, |interface| interface.link_number);
        packets[first..].iter_mut().for_each(|packet| packet.0 = link);
    }
}

/// Number of these packets that our filter accepts.
fn count(expression: &str, packets: &[Packet]) -> Result<u64, Error> {
    let mut filters: Vec<(u32, Filter)> = Vec::new();
    let mut accepted = 0;
    for (link, wire_len, data) in packets {
        let known = match filters.iter().position(|(known, _)| known == link) {
            Some(known) => known,
            None => {
                filters.push((*link, Filter::compile(expression, *link)?));
                filters.len() - 1
            }
        };
        accepted += u64::from(filters[known].1.accepts(data, *wire_len, false));
    }
    Ok(accepted)
}

/// Every count of the corpus's ground truth, with the filter that the commands use.
/// Battery: I8
#[test]
fn counts_over_the_corpus_are_tcpdumps() {
    let Some(corpus) = corpus("counts_over_the_corpus_are_tcpdumps") else { return };
    let (expressions, files) = truth(&corpus);
    let (mut equal, mut refused, mut unreadable) = (0, 0, Vec::new());
    let mut wrong = Vec::new();
    for file in &files {
        let (packets, interfaces) = read(&file.path);
        // tcpdump reads neither a file that breaks before the first packet nor interfaces that differ: it refuses all
        // of it.
        let reads =
            file.counts.iter().any(|count| matches!(count, Some(Count::Packets(_)))) || interfaces == Some(1);
        for (expression, expected) in expressions.iter().zip(&file.counts) {
            let ours = match (expected, count(expression, &packets)) {
                (None, _) => continue,
                (Some(_), Ok(count)) => Count::Packets(count),
                (Some(_), Err(Error::Filter(wirelane::filter::Error { at, .. }))) => {
                    assert!(at <= expression.len());
                    Count::Refused
                }
                (Some(_), Err(error)) => panic!("{}: {error}", file.name),
            };
            let expected = expected.unwrap();
            if ours == expected {
                equal += 1;
                refused += u32::from(ours == Count::Refused);
            } else if !reads {
                unreadable.push(file.name.as_str());
            } else {
                wrong.push(format!("{} {expression:?}: {ours:?}, tcpdump {expected:?}", file.name));
            }
        }
    }
    unreadable.dedup();
    println!(
        "{equal} counts equal to tcpdump's, of which {refused} refusals; tcpdump does not read {} files",
        unreadable.len()
    );
    assert!(wrong.is_empty(), "{} are not equal:\n{}", wrong.len(), wrong.join("\n"));
    assert!(equal > 30_000, "{equal}");
}

/// Runs the program with these words.
fn run(words: &[&str]) -> Output {
    Command::new(wirelane_binary().unwrap()).args(words).output().unwrap()
}

/// The last object of `count -r FILE --json EXPRESSION`.
fn last(output: &Output) -> serde_json::Value {
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(text.lines().last().unwrap_or_default())
        .unwrap_or_else(|_| panic!("no result: {}", String::from_utf8_lossy(&output.stderr)))
}

/// The command itself, for a sample of these counts from the whole table.
#[test]
fn the_command_counts_as_tcpdump_does() {
    let Some(corpus) = corpus("the_command_counts_as_tcpdump_does") else { return };
    let (expressions, files) = truth(&corpus);
    let mut compared = 0;
    // 7 expressions and 9 files further in each turn, so that many pairs of different files and expressions occur.
    for turn in 0..120 {
        let file = &files[turn * 9 % files.len()];
        let at = turn * 7 % expressions.len();
        let (expression, expected) = (&expressions[at], file.counts[at]);
        let Some(expected) = expected.filter(|_| read(&file.path).1 == Some(1)) else { continue };
        let path = file.path.to_str().unwrap();
        let output = run(&["count", "-r", path, "--json", expression]);
        match expected {
            Count::Packets(packets) => {
                assert!(output.status.success(), "{}: {output:?}", file.name);
                let last = last(&output);
                let of = |name: &str| last[name].as_u64().unwrap();
                assert_eq!(of("analysed"), packets, "{} {expression}", file.name);
                assert_eq!(of("seen"), of("filtered") + packets, "{last}");
                assert_eq!(of("delivered"), packets);
            }
            Count::Refused if output.status.success() => {
                // The file has no packet of a link type for which the expression is refused.
                assert_eq!(last(&output)["seen"], 0, "{} {expression}", file.name);
            }
            Count::Refused => {
                assert_eq!(output.status.code(), Some(2), "{} {expression}: {output:?}", file.name);
            }
        }
        compared += 1;
    }
    assert!(compared > 80, "{compared}");
}

/// `record` writes what the expression accepts, packet for packet as tcpdump does.
#[test]
fn a_recording_has_what_tcpdump_writes() {
    let Some(corpus) = corpus("a_recording_has_what_tcpdump_writes") else { return };
    let (_, files) = truth(&corpus);
    let folder = tempfile::tempdir().unwrap();
    let biggest = files
        .iter()
        .filter(|file| file.path.extension().is_some_and(|extension| extension == "pcap"))
        .max_by_key(|file| match file.counts[13] {
            Some(Count::Packets(packets)) => packets,
            _ => 0,
        })
        .unwrap();
    let path = biggest.path.to_str().unwrap();
    let (ours, theirs) = (folder.path().join("ours.pcapng"), folder.path().join("theirs.pcap"));
    let expression = "tcp[tcpflags] & tcp-push != 0 or udp";
    let output = run(&["record", "-r", path, "-w", ours.to_str().unwrap(), "--json", expression]);
    assert!(output.status.success(), "{output:?}");
    let output = Command::new("tcpdump")
        .args(["-r", path, "-w", theirs.to_str().unwrap(), expression])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let (ours, theirs) = (read(&ours), read(&theirs));
    assert!(
        ours.1.is_some() && theirs.1.is_some() && !ours.0.is_empty(),
        "{path}: {:?} {:?}",
        ours.1,
        theirs.1
    );
    assert!(ours.0.len() < read(&biggest.path).0.len(), "nothing was refused");
    assert_eq!(ours.0, theirs.0);
}

/// Writes a pcapng file with an interface of each of these link types, and these packets.
fn pcapng(path: &Path, links: &[u16], packets: &[(u32, Vec<u8>)]) {
    let mut file = Vec::new();
    let mut block = |kind: u32, body: &[u8]| {
        let padding = body.len().wrapping_neg() % 4;
        let length = (12 + body.len() + padding) as u32;
        file.extend(kind.to_le_bytes());
        file.extend(length.to_le_bytes());
        file.extend(body);
        file.extend(&[0; 4][..padding]);
        file.extend(length.to_le_bytes());
    };
    block(0x0a0d_0d0a, &[&0x1a2b_3c4d_u32.to_le_bytes()[..], &[1, 0, 0, 0], &[0xff; 8]].concat());
    for link in links {
        block(1, &[&link.to_le_bytes()[..], &[0; 6]].concat());
    }
    for (interface, data) in packets {
        let length = (data.len() as u32).to_le_bytes();
        block(6, &[&interface.to_le_bytes()[..], &[0; 8], &length, &length, data].concat());
    }
    fs::write(path, file).unwrap();
}

/// IPv4 with UDP to a port; 32 bytes.
fn udp(port: u16) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 32, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0x12, 0x34];
    packet.extend(port.to_be_bytes());
    packet.extend([0, 12, 0, 0, 1, 2, 3, 4]);
    packet
}

/// Each interface of a file has the filter for its own link type.
#[test]
fn interfaces_of_several_link_types_are_each_evaluated_as_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("several.pcapng");
    let ethernet = |packet: Vec<u8>| [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0][..], &packet].concat();
    let cooked = |packet: Vec<u8>| [&[0; 14][..], &[8, 0], &packet].concat();
    let loopback = |packet: Vec<u8>| [&[2, 0, 0, 0][..], &packet].concat();
    let mut packets = Vec::new();
    for port in [53, 80, 53, 53] {
        packets.push((0, ethernet(udp(port))));
        packets.push((1, udp(port)));
        packets.push((2, cooked(udp(port))));
        packets.push((3, loopback(udp(port))));
    }
    pcapng(&path, &[1, 101, 113, 0], &packets);
    let file = path.to_str().unwrap();
    let analysed = |expression: &str| {
        let output = run(&["count", "-r", file, "--json", expression]);
        assert!(output.status.success(), "{output:?}");
        let last = last(&output);
        assert_eq!(last["seen"], 16);
        assert_eq!(last["filtered"].as_u64().unwrap() + last["analysed"].as_u64().unwrap(), 16);
        // Interfaces without names share a line.
        let lines = last["virtual_devices"].as_array().unwrap();
        assert_eq!((lines.len(), &lines[0]["seen"]), (1, &16.into()), "{last}");
        last["analysed"].as_u64().unwrap()
    };
    assert_eq!(analysed(""), 16);
    assert_eq!(analysed("udp port 53"), 12);
    assert_eq!(analysed("dst host 10.0.0.2 and not port 53"), 4);
    // The length includes the link layer's header: 46, 32, 48 and 36.
    assert_eq!(analysed("len = 32 or len = 48"), 8);
    // A field that only one link type has: the error is reported at the first packet of the other.
    pcapng(&path, &[105, 1], &[(0, vec![0x80; 40]), (1, ethernet(udp(53)))]);
    let output = run(&["count", "-r", file, "--json", "type mgt"]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && errors.contains('^'), "{errors}");
    let last = last(&output);
    assert_eq!(
        (&last["final"], &last["analysed"]),
        (&true.into(), &1.into()),
        "what came before is counted: {last}"
    );
}

/// A file's filter can be changed during reading: each packet is evaluated by the old or the new one.
#[test]
fn a_files_filter_can_be_changed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ports.pcapng");
    const PACKETS: u64 = 60_000;
    let packets: Vec<(u32, Vec<u8>)> =
        (0..PACKETS).map(|number| (0, udp(1000 + (number % 4) as u16))).collect();
    pcapng(&path, &[101], &packets);
    let filter = FileFilter::compile("dst port 1000 or dst port 1001").unwrap();
    // With time order, records would be evaluated a window ahead.
    let input = FileInput::open(&path).unwrap().any_order(true);
    let mut capture = Capture::read_file(input, filter).unwrap();
    let mut worker = capture.workers().remove(0);
    let (mut by_port, mut batches) = ([0u64; 4], 0);
    while let Some(batch) = worker.next_batch(Duration::ZERO).unwrap() {
        for record in batch {
            let payload = record.data();
            by_port[usize::from(u16::from_be_bytes([payload[22], payload[23]])) - 1000] += 1;
        }
        batches += 1;
        let other = if batches % 2 == 0 { "dst port 1001" } else { "dst port 1002" };
        capture.set_filter(&format!("dst port 1000 or {other}")).unwrap();
    }
    assert!(batches > 3, "{batches}");
    drop(worker);
    let wrong = capture.set_filter("prt 5").unwrap_err();
    assert!(matches!(wrong, Error::Filter(wirelane::filter::Error { at: 0, .. })), "{wrong}");
    let ledger = capture.close().unwrap();
    assert!(ledger.balances(), "{ledger:?}");
    // One class is accepted by both filters, one by neither, and two by one filter each.
    assert_eq!((by_port[0], by_port[3]), (PACKETS / 4, 0));
    assert!(by_port[1] > 0 && by_port[2] > 0, "{by_port:?}");
    assert_eq!(by_port[1] + by_port[2], PACKETS / 4, "each packet of the two was evaluated by one of them");
    assert_eq!((ledger.total.seen, ledger.total.analysed), (PACKETS, by_port.iter().sum()));
    assert_eq!(ledger.total.filtered, PACKETS - ledger.total.analysed);
}

/// Battery: I8
#[test]
fn a_wrong_expression_is_a_usage_error_that_shows_the_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("one.pcapng");
    pcapng(&path, &[1], &[(0, vec![0; 60])]);
    let file = path.to_str().unwrap();
    let out = folder.path().join("out.pcapng");
    let record = ["record", "-r", file, "-w", out.to_str().unwrap()];
    let count = ["count", "-r", file];
    // More instructions than the limit, from 7,552 bytes; and more bytes than are passed to libpcap.
    let steps: Vec<String> = (1..560).map(|n| format!("host ::{n:x}")).collect();
    let (steps, bytes) = (steps.join(" or "), vec!["tcp"; 2000].join(" or "));
    let cases = [
        ("tcp prot 80", "tcp prot 80\n      ^ 'prot': did you mean 'port'?\n", "syntax error"),
        ("tcp port", "tcp port\n          ^ here something is missing", "syntax error"),
        ("tcp port 99999", "tcp port 99999\n           ^", "illegal port number 99999"),
        ("ip6 protochain 6", "^", "protochain takes a loop, which a filter here cannot have"),
        (&steps, "^", "there is room for 4096"),
        (&bytes, "^", "bytes, more than 8192"),
    ];
    for (expression, shown, reason) in cases {
        let commands = [&count[..], &record];
        // Long expressions take long, so they are tried with one command.
        for command in &commands[..if expression.len() > 1000 { 1 } else { 2 }] {
            // As one argument and as several.
            let words: Vec<&str> = expression.split(' ').collect();
            for words in [&[expression][..], &words] {
                let output = run(&[command, words].concat());
                let errors = String::from_utf8_lossy(&output.stderr).into_owned();
                assert_eq!(output.status.code(), Some(2), "{errors}");
                assert!(errors.starts_with("wirelane: filter: "), "{errors}");
                assert!(errors.contains(reason) && errors.contains(shown), "{errors}");
                assert!(output.stdout.is_empty() && errors.len() < 400, "{errors}");
                if expression.len() > 1000 {
                    break;
                }
            }
        }
    }
    assert!(!out.exists(), "nothing is left of what did not begin");
}

#[test]
fn an_expression_can_be_in_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ports.pcapng");
    let packets: Vec<(u32, Vec<u8>)> = [53, 80, 53].into_iter().map(|port| (0, udp(port))).collect();
    pcapng(&path, &[101], &packets);
    let file = path.to_str().unwrap();
    let text = folder.path().join("expression");
    fs::write(&text, "udp\n  and port 53\n").unwrap();
    let output = run(&["count", "-r", file, "--json", "-F", text.to_str().unwrap()]);
    assert_eq!(last(&output)["analysed"], 2, "{output:?}");
    let refused = |words: &[&str], status, message: &str| {
        let output = run(&[&["count", "-r", file, "--json"], words].concat());
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(status), "{errors}");
        assert!(errors.contains(message), "{errors}");
    };
    refused(&["-F", text.to_str().unwrap(), "udp"], 2, "cannot be used with");
    refused(&["-F", "/no/such/file"], 1, "/no/such/file");
    fs::write(&text, vec![b' '; 9000]).unwrap();
    refused(&["-F", text.to_str().unwrap()], 2, "has more than 8192 bytes");
    fs::write(&text, "udp prt 53\n").unwrap();
    refused(&["-F", text.to_str().unwrap()], 2, "udp prt 53\n      ^");
}

/// Filtering a file does not need more rights than reading it.
#[test]
fn a_file_is_filtered_without_any_right() {
    if !require_root("a_file_is_filtered_without_any_right") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let path = folder.path().join("ports.pcapng");
    let packets: Vec<(u32, Vec<u8>)> = [53, 80, 53].into_iter().map(|port| (0, udp(port))).collect();
    pcapng(&path, &[101], &packets);
    // A folder from which any user may run the program.
    let binary = folder.path().join("wirelane");
    fs::copy(wirelane_binary().unwrap(), &binary).unwrap();
    for expression in ["udp port 53", "udp port domain"] {
        let mut command = Command::new(&binary);
        command.args(["count", "-r", path.to_str().unwrap(), "--json", expression]).uid(65534).gid(65534);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let last = last(&output);
        assert_eq!((&last["analysed"], &last["filtered"]), (&2.into(), &1.into()), "{expression}");
    }
}
