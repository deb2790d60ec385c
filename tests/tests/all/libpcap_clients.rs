//! Packaged programs on our libpcap: each sees exactly the packets that were sent.

mod more;
mod readme;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use wirelane::groups::Group;
use wirelane_tests::libpcap::{Library, built, start, wait_for_groups, wait_for_handler};
use wirelane_tests::numbers::{LIMIT, capture, column, finish, in_file, send};
use wirelane_tests::recordings::count_packets;
use wirelane_tests::{Child, Finished, Lab, Signal, require_root, wirelane_binary};

/// Packets from source ports 1000 to 1015, in turn, each of 100 bytes.
const PACKETS: [&str; 8] = ["--pattern", "ports", "--flows", "16", "--src-port", "1000", "--size", "100"];
/// Number of packets sent, and of those that [`FILTER`] accepts.
const SENT: u64 = 160;
const FILTER: &str = "udp src port 1003 or udp src port 1011";
const ACCEPTED: u64 = 20;

/// A lab with a capture beside the tested programs, so that they join quickly; its ledger counts all packets.
struct Beside {
    lab: Lab,
    folder: tempfile::TempDir,
    holder: Child,
}

impl Beside {
    fn new() -> Beside {
        let lab = Lab::new(2).unwrap();
        let words = ["count", "-i", &lab.receiver().device, "--direction", "both", "--json"];
        let holder = capture(&lab, &words).unwrap();
        Beside { folder: tempfile::tempdir().unwrap(), holder, lab }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    /// Starts a program, and waits until a group of this owner captures, with a filter or without.
    fn begin(&self, library: Library, owner: &str, filtered: bool, words: &[&str]) -> Child {
        let mut child = start(&self.lab, library, self.folder.path(), words).unwrap();
        // The kernel truncates process names to 15 bytes.
        let owner = &owner[..owner.len().min(15)];
        // Without an expression some programs set a filter that accepts everything.
        let captures = |group: &Group| group.owner == owner && (group.filter.is_some() || !filtered);
        if let Err(error) = wait_for_groups(&self.lab, &mut child, captures) {
            panic!("{words:?}: {error}: {:?}", child.terminate(LIMIT));
        }
        child
    }

    fn send(&self) {
        send(&self.lab, SENT, &PACKETS).unwrap();
    }

    /// Starts a program, sends, and waits for its end (`ends`) or ends it.
    fn run(&self, owner: &str, filtered: bool, ends: bool, words: &[&str]) -> Finished {
        let child = self.begin(Library::DropIn, owner, filtered, words);
        self.send();
        let finished = if ends { child.finish(LIMIT) } else { child.terminate(LIMIT) }.unwrap();
        assert!(finished.status.success() || !ends, "{words:?}: {finished:?}");
        finished
    }
}

/// The number before these words.
fn number_before(text: &str, words: &str) -> u64 {
    let line = text.lines().find(|line| line.contains(words));
    let line = line.unwrap_or_else(|| panic!("no '{words}' in: {text}"));
    let before = line.split(words).next().unwrap().trim();
    before.rsplit(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap_or_else(|_| panic!("{line}"))
}

/// Filter expressions, and the number of packets that each accepts.
const CASES: [(&str, u64); 2] = [("", SENT), (FILTER, ACCEPTED)];

/// Battery: L1
#[test]
fn programs_see_exactly_what_was_sent() {
    if !require_root("programs_see_exactly_what_was_sent") {
        return;
    }
    let beside = Beside::new();
    let device = beside.lab.receiver().device.as_str();
    for (filter, count) in CASES {
        let filtered = !filter.is_empty();
        let number = count.to_string();
        let with = |mut words: Vec<&str>, filter: &'static str| -> Vec<String> {
            if filtered {
                words.push(filter);
            }
            words.into_iter().map(ToOwned::to_owned).collect()
        };
        let run = |owner: &str, words: Vec<String>| {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            beside.run(owner, filtered, true, &words)
        };
        // tcpdump's summary agrees with the counts of the group beside it, which sees the same packets.
        let words = vec!["tcpdump", "-Z", "nobody", "-n", "-i", device, "-c", &number, "-w", "/dev/null"];
        let finished = run("tcpdump", with(words, FILTER));
        for words in [" packets captured", " packets received by filter"] {
            assert_eq!(number_before(&finished.stderr, words), count, "{}", finished.stderr);
        }
        assert_eq!(number_before(&finished.stderr, " packets dropped by kernel"), 0);

        // dumpcap keeps two capabilities only, so that engine packet captures, with a message.
        let file = beside.path(&format!("dumpcap-{count}.pcapng"));
        let rule = if filtered { format!("-f '{filter}'") } else { String::new() };
        let command = format!("exec dumpcap -i {device} -c {count} -w {file} {rule} 2>&1");
        let child =
            start(&beside.lab, Library::DropIn, beside.folder.path(), &["sh", "-c", &command]).unwrap();
        let mut said = Vec::new();
        while !said.iter().any(|line: &String| line.starts_with("File:")) {
            said.push(child.next_line(LIMIT).unwrap().unwrap_or_else(|| panic!("{said:?}")));
        }
        let instead =
            format!("{device}@0-1 has Wirelane capture, by its extcap): engine ring does not work here");
        assert!(said.iter().any(|line| line.contains(&instead)), "{said:?}");
        beside.send();
        assert!(child.finish(LIMIT).unwrap().status.success());
        assert_eq!(in_file(Path::new(&file)).unwrap().len() as u64, count);

        let words = vec!["ngrep", "-q", "-d", device, "-n", &number, "-W", "single", ""];
        let finished = run("ngrep", with(words, FILTER));
        let matched = finished.lines.iter().filter(|line| line.starts_with("U ")).count();
        assert_eq!(matched as u64, count, "{finished:?}");

        let words = vec!["/usr/bin/python3", "-c", SCAPY, device, &number];
        let finished = run("python3", with(words, FILTER));
        assert_eq!(finished.lines, [format!("{count} packets")], "{}", finished.stderr);

        let words = vec!["/usr/bin/python3", "-c", PCAPY, device, &number];
        let finished = run("python3", with(words, FILTER));
        assert_eq!(finished.lines, [format!("{count} packets, {count} 0")], "{}", finished.stderr);
    }
    let ledger = finish(beside.holder).unwrap();
    // Five programs were sent the same packets, with a filter and without.
    assert_eq!(column(&ledger, "seen"), 5 * 2 * SENT, "{ledger}");
}

/// Script for Scapy that counts packets with libpcap: DEVICE COUNT [FILTER].
const SCAPY: &str = "import sys, logging
logging.disable(logging.CRITICAL)
from scapy.all import conf, sniff
conf.use_pcap = True
rule = sys.argv[3] if len(sys.argv) > 3 else None
print(len(sniff(iface=sys.argv[1], count=int(sys.argv[2]), filter=rule)), 'packets')";

/// Script for Pcapy that counts packets and prints libpcap's received and dropped packets: DEVICE COUNT [FILTER].
const PCAPY: &str = "import sys, pcapy
reader, count = pcapy.open_live(sys.argv[1], 65535, 1, 100), 0
if len(sys.argv) > 3:
    reader.setfilter(sys.argv[3])
while count < int(sys.argv[2]):
    header, data = reader.next()
    count += header is not None and header.getcaplen() == len(data)
print(count, 'packets,', *reader.stats()[:2])";

/// Battery: L1
#[test]
fn collectors_of_flows_account_for_every_packet() {
    if !require_root("collectors_of_flows_account_for_every_packet") {
        return;
    }
    let beside = Beside::new();
    let device = beside.lab.receiver().device.as_str();

    let control = beside.path("softflowd.ctl");
    let pid = beside.path("softflowd.pid");
    let words = ["softflowd", "-d", "-i", device, "-c", &control, "-p", &pid];
    let child = beside.begin(Library::DropIn, "softflowd", false, &words);
    beside.send();
    let statistics = || {
        let output =
            std::process::Command::new("softflowctl").args(["-c", &control, "statistics"]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let end = Instant::now() + LIMIT;
    while !statistics().contains(&format!("Packets processed: {SENT}")) {
        assert!(Instant::now() < end, "{}", statistics());
    }
    assert!(statistics().contains("Number of active flows: 16"), "{}", statistics());
    assert!(statistics().contains(&format!("Packets received by libpcap: {SENT}")), "{}", statistics());
    child.terminate(LIMIT).unwrap();

    // Connections: their reassembled bytes, and fingerprints of their SYNs.
    let folder = beside.path("tcpflow");
    let flows = beside.begin(Library::DropIn, "tcpflow", false, &["tcpflow", "-o", &folder, "-i", device]);
    let log = beside.path("p0f.log");
    let finger = beside.begin(Library::DropIn, "p0f", true, &["p0f", "-i", device, "-o", &log]);
    let file = beside.path("both.pcap");
    let both = beside.begin(Library::DropIn, "tcpdump", false, &["tcpdump", "-U", "-i", device, "-w", &file]);
    let sent = connect(&beside.lab);
    // tcpflow and tcpdump end at a signal without processing the packets that they have not read yet.
    let rebuilt = || -> Vec<(PathBuf, u64)> {
        let paths = std::fs::read_dir(&folder).into_iter().flatten().map(|entry| entry.unwrap().path());
        let from_port = paths.filter(|path| path.to_str().unwrap().contains("04096"));
        from_port.map(|path| (path.clone(), std::fs::metadata(&path).unwrap().len())).collect()
    };
    let end = Instant::now() + LIMIT;
    while rebuilt().iter().filter(|(_, bytes)| *bytes >= sent.len() as u64).count() < 3 {
        assert!(Instant::now() < end, "{:?} {:?}", rebuilt(), flows.terminate(LIMIT));
        std::thread::sleep(Duration::from_millis(20));
    }
    while in_text(&file, "tcp[tcpflags] & tcp-fin != 0").lines().count() < 6 {
        assert!(Instant::now() < end, "{:?}", both.terminate(LIMIT));
    }
    let syns = || {
        std::fs::read_to_string(&log).unwrap_or_default().matches("|mod=syn|").count()
            + std::fs::read_to_string(&log).unwrap_or_default().matches(" mod=syn|").count()
    };
    while syns() < 3 {
        assert!(Instant::now() < end, "{:?}", std::fs::read_to_string(&log));
    }
    assert_eq!(syns(), 3);
    let finished = both.terminate(LIMIT).unwrap();
    in_order(&file, number_before(&finished.stderr, " packets captured"));
    finger.terminate(LIMIT).unwrap();
    flows.terminate(LIMIT).unwrap();
    for (path, _) in rebuilt() {
        assert_eq!(std::fs::read(&path).unwrap(), sent, "{}", path.display());
    }
    assert_eq!(rebuilt().len(), 3);
    finish(beside.holder).unwrap();
}

/// Asserts that a file of connections has so many packets, of both directions, in time order.
fn in_order(file: &str, packets: u64) {
    let text = in_text(file, "");
    let times: Vec<&str> = text.lines().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(times.len() as u64, packets);
    // The times have the same number of digits, so they can be compared as text.
    assert!(times.is_sorted(), "{text}");
    let from_port = text.lines().filter(|line| line.contains(".4096 >")).count();
    let to_port = text.lines().filter(|line| line.contains(".4096: ")).count();
    assert!(from_port > 10 && to_port > 10 && from_port + to_port == times.len(), "{from_port} {to_port}");
}

/// The packets of a file that a filter accepts, as printed by tcpdump, one per line.
fn in_text(file: &str, filter: &str) -> String {
    let output =
        std::process::Command::new("tcpdump").args(["-tt", "-n", "-r", file, filter]).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// Makes three connections to the receiver's port 4096, sends the same bytes in each, and returns these.
fn connect(lab: &Lab) -> Vec<u8> {
    let bytes: Vec<u8> = (0..100_000u32).flat_map(u32::to_be_bytes).collect();
    let address = SocketAddr::from((lab.receiver().address, 4096));
    let listener = lab.enter(&lab.receiver().namespace, || TcpListener::bind(address)).unwrap().unwrap();
    for _ in 0..3 {
        let mut client = lab.enter(&lab.sender().namespace, || TcpStream::connect(address)).unwrap().unwrap();
        let (mut server, _) = listener.accept().unwrap();
        let writer = std::thread::spawn({
            let bytes = bytes.clone();
            move || client.write_all(&bytes)
        });
        let mut received = Vec::new();
        server.read_to_end(&mut received).unwrap();
        writer.join().unwrap().unwrap();
        assert!(received == bytes);
    }
    bytes
}

/// Battery: L1
#[test]
fn processes_share_a_group_by_flow() {
    if !require_root("processes_share_a_group_by_flow") {
        return;
    }
    let beside = Beside::new();
    let device = format!("{}:ids/6", beside.lab.receiver().device);
    let begin = |number: usize| {
        let file = beside.path(&format!("share-{number}.pcap"));
        let binary = wirelane_binary().unwrap();
        let words =
            [binary.to_str().unwrap(), "run", "--", "tcpdump", "-U", "-n", "-i", &device, "-w", &file];
        let mut child = start(&beside.lab, Library::System, beside.folder.path(), &words).unwrap();
        let pid = child.pid();
        wait_for_groups(&beside.lab, &mut child, |group| group.pid == pid).unwrap();
        wait_for_handler(&child).unwrap();
        child
    };
    let mut children: Vec<Child> = (0..6).map(begin).collect();
    let binary = wirelane_binary().unwrap();
    let one_more = [binary.to_str().unwrap(), "run", "--", "tcpdump", "-n", "-i", &device];
    let refused = start(&beside.lab, Library::System, beside.folder.path(), &one_more).unwrap();
    let refused = refused.finish(LIMIT).unwrap();
    assert!(refused.stderr.contains("all 6 shares of group 'ids'"), "{refused:?}");
    // Nine more groups fill the device: with the six shares and the capture beside them all 16 slots are taken.
    let open = |_| {
        let selectors = wirelane::Selector::parse_list(&beside.lab.receiver().device).unwrap();
        let builder = wirelane::Builder::new(selectors).direction(wirelane::Direction::Both);
        builder.ring_size(1 << 20).open().unwrap()
    };
    let others: Vec<wirelane::Capture> =
        beside.lab.enter(&beside.lab.receiver().namespace, || (0..9).map(open).collect()).unwrap();
    let sixteen = device.replace("ids/6", "more/16");
    let one_more = [binary.to_str().unwrap(), "run", "--", "tcpdump", "-n", "-i", &sixteen];
    let refused = start(&beside.lab, Library::System, beside.folder.path(), &one_more).unwrap();
    let refused = refused.finish(LIMIT).unwrap();
    assert!(refused.stderr.contains("already has 16 groups, the maximum"), "{refused:?}");
    drop(others);
    // The share of a killed process goes to the next one.
    let killed = children.remove(2);
    killed.signal(Signal::Kill).unwrap();
    killed.finish(LIMIT).unwrap();
    children.insert(2, begin(2));
    beside.send();
    // tcpdump ends at a signal without processing the packets that it has not read yet.
    let file = |number: usize| beside.path(&format!("share-{number}.pcap"));
    let written = || {
        (0..6)
            .map(|number| in_file(Path::new(&file(number))).map_or(0, |found| found.len() as u64))
            .sum::<u64>()
    };
    let end = Instant::now() + LIMIT;
    while written() < SENT {
        assert!(Instant::now() < end, "{} of {SENT} packets were written", written());
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut all = Vec::new();
    for (number, child) in children.into_iter().enumerate() {
        let finished = child.terminate(LIMIT).unwrap();
        let file = file(number);
        let numbers = in_file(Path::new(&file)).unwrap();
        assert_eq!(number_before(&finished.stderr, " packets captured"), numbers.len() as u64);
        // Complete flows: each of the 16 has 10 packets.
        assert_eq!(numbers.len() % 10, 0, "{numbers:?}");
        all.extend(numbers);
    }
    all.sort_unstable();
    assert_eq!(all, (0..SENT).collect::<Vec<_>>());
    finish(beside.holder).unwrap();
}

#[test]
fn wireshark_lists_and_captures_virtual_devices() {
    if !require_root("wireshark_lists_and_captures_virtual_devices") {
        return;
    }
    let beside = Beside::new();
    let folder = beside.path("extcap");
    std::fs::create_dir(&folder).unwrap();
    let script = format!("#!/bin/sh\nexec {} extcap \"$@\"\n", wirelane_binary().unwrap().display());
    let file = format!("{folder}/wirelane");
    std::fs::write(&file, script).unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    // Replaces the folder of extcap programs, in the mount namespace that 'ip netns exec' makes.
    let with = |command: &str| {
        format!(
            "place=$(tshark -G folders 2>/dev/null | sed -n 's/^Extcap path:[[:space:]]*//p') && \
             mount --bind {folder} $place && exec {command}"
        )
    };
    let device = &beside.lab.receiver().device;
    let listed =
        beside.lab.exec(&beside.lab.receiver().namespace, &["sh", "-c", &with("tshark -D")]).unwrap();
    for name in [format!("{device}@0-1 "), format!("{device}@0 "), format!("{device}@1 ")] {
        assert!(listed.contains(&name), "{name}: {listed}");
    }
    let ask = |filter: &str| {
        let binary = wirelane_binary().unwrap();
        let name = format!("{device}@0");
        let words = [
            binary.to_str().unwrap(),
            "extcap",
            "--extcap-interface",
            &name,
            "--extcap-capture-filter",
            filter,
        ];
        beside.lab.exec(&beside.lab.receiver().namespace, &words).unwrap()
    };
    assert_eq!(ask("udp"), "");
    assert!(ask("foo bar").contains("syntax error"));
    let file = beside.path("extcap.pcapng");
    let command = with(&format!("tshark -q -i {device}@0-1 -f '{FILTER}' -c {ACCEPTED} -w {file}"));
    let words = ["sh", "-c", &command];
    let finished = beside.run("wirelane", true, true, &words);
    assert!(!finished.stderr.contains("Error"), "{}", finished.stderr);
    assert_eq!(count_packets(Path::new(&file)).unwrap(), ACCEPTED);
    finish(beside.holder).unwrap();
}

#[test]
fn a_preloaded_library_takes_what_is_named_and_all_where_it_is_told() {
    if !require_root("a_preloaded_library_takes_what_is_named_and_all_where_it_is_told") {
        return;
    }
    built("libwirelane_libpcap_preload.so").unwrap();
    let beside = Beside::new();
    let device = beside.lab.receiver().device.clone();
    // A selector with an RX queue opens our library; the files divide the packets by queue.
    let mut seen = 0;
    for queue in 0..2 {
        let file = beside.path(&format!("queue-{queue}.pcap"));
        let name = format!("{device}@{queue}");
        let words = ["tcpdump", "-U", "-n", "-i", &name, "-w", &file];
        let child = beside.begin(Library::Preload, "tcpdump", false, &words);
        beside.send();
        // Packets are batched before the program is woken; it does not read the rest after a signal.
        std::thread::sleep(Duration::from_millis(300));
        child.terminate(LIMIT).unwrap();
        seen += in_file(Path::new(&file)).unwrap().len() as u64;
    }
    assert_eq!(seen, SENT);
    // An ordinary name opens the system's library, which batches packets for tcpdump's time-out, or until it has
    // enough.
    let command = format!("exec tcpdump -n -c 16 -i {device} -w /dev/null 2>&1");
    let child = start(&beside.lab, Library::Preload, beside.folder.path(), &["sh", "-c", &command]).unwrap();
    let first = child.next_line(LIMIT).unwrap().unwrap();
    assert!(first.contains("listening on"), "{first}");
    let groups = beside.lab.enter(&beside.lab.receiver().namespace, wirelane::groups::list).unwrap().unwrap();
    let owners: Vec<&str> = groups.iter().map(|group| group.owner.as_str()).collect();
    assert_eq!(owners, ["wirelane", "wirelane"], "one of received and one of sent packets");
    beside.send();
    let finished = child.finish(LIMIT).unwrap();
    assert_eq!(number_before(&finished.lines.join("\n"), " packets captured"), 16, "{finished:?}");
    finish(beside.holder).unwrap();
}
