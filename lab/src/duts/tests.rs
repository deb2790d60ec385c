use std::path::Path;

use super::*;

fn numbers(name: &str, said: &str) -> (Option<u64>, u64, u64, u64) {
    let counts = Duts::shipped().get(name).unwrap().counts(said).unwrap();
    (counts.seen, counts.captured, counts.analysed, counts.lost)
}

#[test]
fn what_the_shipped_sensors_say_is_understood() {
    let said = "tcpdump: listening on rx0, link-type EN10MB (Ethernet), snapshot length 262144 bytes\n\
                484956 packets captured\n493248 packets received by filter\n8292 packets dropped by kernel\n";
    assert_eq!(numbers("tcpdump", said), (Some(493_248), 484_956, 484_956, 8292));
    let said = "1 packet captured\n1 packet received by filter\n0 packets dropped by kernel\n";
    assert_eq!(numbers("tcpdump", said), (Some(1), 1, 1, 0));
    let said = "Capturing on 'rx0'\nFile: /dev/null\nPackets captured: 115572\nPackets received/dropped on interface \
                'rx0': 115572/147916 (pcap:147916/dumpcap:0/flushed:0/ps_ifdrop:0) (43.9%)\n";
    assert_eq!(numbers("dumpcap", said), (None, 115_572, 115_572, 147_916));
    let said = "Running! Hang up with ^C!\n\n      176081  packets incoming (417401 unread on exit)\n      176081  \
                packets passed filter\n      417401  packets failed filter (out of space)\n";
    assert_eq!(numbers("netsniff-ng", said), (None, 176_081, 176_081, 417_401));
    let said = "Packets processed: 598228\nFragments: 0\nPackets received by libpcap: 598272\n\
                Packets dropped by libpcap: 72\nPackets dropped by interface: 0\n";
    assert_eq!(numbers("softflowd", said), (Some(598_272), 598_200, 598_228, 72));
    let said = "Stat: received: 668032, dropped by OS/Buffer: 32, freeze_q_cnt: 0\n\
                Ident: 'none' Flows: 4096, Packets: 668000, Bytes: 30728000\nTerminating nfpcapd.\n";
    assert_eq!(numbers("nfpcapd", said), (Some(668_032), 668_000, 668_000, 32));
    let said = "all 2 packet processing threads, 4 management threads initialized, engine started.\nSignal Received.  Stopping \
                engine.\nStats for 'rx0':  pkts: 5000, drop: 20 (0.40%), invalid chksum: 0\n";
    assert_eq!(numbers("suricata", said), (Some(5000), 4980, 4980, 20));
    let said = "Notice: threads: Threads created -> W: 2 FM: 1 FR: 1   Engine started.\nNotice: suricata: Signal Received.  \
                Stopping engine.\nNotice: device: rx0: packets: 5000, drops: 20 (0.40%), invalid chksum: 0\n";
    assert_eq!(numbers("suricata", said), (Some(5000), 4980, 4980, 20));
    let said = "{\"ready\": true}\n{\"final\": true, \"seen\": 10, \"filtered\": 1, \"absorbed\": 0, \"shed\": 2, \"lost\": 3, \
                \"delivered\": 4, \"analysed\": 4}\n";
    assert_eq!(numbers("wirelane-count", said), (Some(10), 4, 4, 3));
    assert_eq!(Duts::shipped().get("wirelane-count").unwrap().counts(said).unwrap().aside, 3);
    let kept = said.replace("\"analysed\": 4", "\"analysed\": 4, \"flow_cache\": {\"packets\": 90}");
    assert_eq!(numbers("wirelane-flows-kernel", &kept), (Some(10), 94, 94, 3));
}

#[test]
fn what_is_not_understood_is_quoted() {
    let sensors = Duts::shipped();
    let error =
        format!("{:#}", sensors.get("tcpdump").unwrap().counts("tcpdump: rx0: No such device").unwrap_err());
    assert!(error.contains("No such device") && error.contains("no seen"), "{error}");
    let error = format!("{:#}", sensors.get("wirelane-count").unwrap().counts("{\"seen\": 1}").unwrap_err());
    assert!(error.contains("/lost"), "{error}");
    assert!(sensors.get("wirelane-count").unwrap().counts("").is_err());
}

fn order() -> DutOrder {
    DutOrder {
        cores: vec![1, 2],
        queues: 4,
        workers: 3,
        engine: "ring".into(),
        loops: 1000,
        entries: 40,
        duration_s: 0.5,
        buffer: 8,
        ..DutOrder::default()
    }
}

fn fill(order: &DutOrder) -> Fill<'_> {
    let (folder, wirelane) = (Path::new("/f"), Path::new("/w"));
    Fill { device: "rx0", order, index: 1, folder, outside: folder, wirelane }
}

#[test]
fn command_lines_are_filled_in() {
    let sensors = Duts::shipped();
    let words = |name: &str| sensors.get(name).unwrap().words(&fill(&order())).unwrap().join(" ");
    assert_eq!(words("tcpdump"), "tcpdump -n -i rx0 -B 8192 -w /dev/null");
    assert_eq!(
        words("wirelane-count"),
        "/w count -i rx0 --direction rx --json --interval 3600 --cores 1,2 --ring-size 8 --engine ring --workers 3 --load 1000"
    );
    assert_eq!(
        sensors.get("softflowd").unwrap().asking(&fill(&order())).unwrap().join(" "),
        "softflowctl -c /f/ctl statistics"
    );
    let no_files = |adapter: &&Adapter| adapter.files.is_empty() && !adapter.asks_for(&["load-program"]);
    for adapter in sensors.all().filter(no_files) {
        assert!(!adapter.words(&fill(&order())).unwrap().join(" ").contains('{'), "{}", adapter.name);
    }
}

#[test]
fn loads_of_the_kernel_are_those_that_there_are() {
    let sensors = Duts::shipped();
    let kernel = sensors.get("wirelane-kernel-loops").unwrap();
    assert!(kernel.serves(&[0, 1000, 25_000]).is_ok());
    let error = kernel.serves(&[1000, 1234]).unwrap_err().to_string();
    assert!(error.contains("1234") && error.contains("25000"), "{error}");
    assert!(sensors.get("wirelane-count").unwrap().serves(&[1234]).is_ok());
    let (folder, order) = (tempfile::tempdir().unwrap(), order());
    let words =
        kernel.words(&Fill { folder: folder.path(), outside: folder.path(), ..fill(&order) }).unwrap();
    let object = fs::read(words.last().unwrap()).unwrap();
    assert_eq!(&object[..4], b"\x7fELF");
}

const MINE: &str = "program = \"true\"\ncommand = [\"true\", \"{device}\"]\nready = \"packet-socket\"\nquiet = \"1s\"\n\
                    [counts]\ncaptured = { regex = '(\\d+)' }\n";

#[test]
fn files_are_brought_along() {
    let (folder, order) = (tempfile::tempdir().unwrap(), order());
    let sensors = Duts::shipped();
    let set = sensors.get("wirelane-rules-set").unwrap();
    let fill = Fill { outside: folder.path(), ..fill(&order) };
    assert_eq!(set.words(&fill).unwrap().last().unwrap(), "/f/rules.toml");
    let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
    assert!(read("rules.toml").starts_with("default = \"drop\"\n"));
    let wanted = read("wanted.txt");
    let lines: Vec<&str> = wanted.lines().collect();
    assert_eq!((lines.len(), lines[0], lines[15], lines[16]), (4096, "10.1.0.0", "10.1.0.15", "100.64.0.0"));
    assert_eq!(lines[4095], "100.64.15.239");
}

#[test]
fn anybodys_adapters_are_added() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("mine.toml"), MINE).unwrap();
    fs::write(folder.path().join("tcpdump.toml"), MINE).unwrap();
    fs::write(folder.path().join("notes.txt"), "no adapter").unwrap();
    let mut sensors = Duts::shipped();
    sensors.add(folder.path()).unwrap();
    assert_eq!(sensors.names().len(), SHIPPED.len() + 1);
    let mine = sensors.get("mine").unwrap();
    assert_eq!((mine.title.as_str(), mine.stop.as_str(), mine.missing()), ("mine", "TERM", None));
    assert_eq!(sensors.get("tcpdump").unwrap().program, "true");
    // The last match counts.
    assert_eq!(mine.counts("1 2\n31").unwrap(), Counts { captured: 31, analysed: 31, ..Counts::default() });
    assert!(sensors.add(Path::new("/nonexistent.toml")).is_err());
}

#[test]
fn a_missing_program_is_named_with_its_package() {
    let mut adapter = Duts::shipped().get("tcpdump").unwrap().clone();
    adapter.program = "no-such-program".into();
    assert_eq!(adapter.missing().unwrap(), "no-such-program is not installed (Debian's package tcpdump)");
}

#[test]
fn mistakes_in_adapters_have_places() {
    for (from, to, place, words) in [
        ("{device}", "{devcie}", "2:20", "{devcie}"),
        ("\"packet-socket\"", "\"socket\"", "3:9", "packet-socket"),
        ("\"packet-socket\"", "{ json = \"ready\" }", "3:9", "json"),
        ("\"1s\"", "\"1h\"", "4:9", "60s"),
        ("(\\d+)", "\\d+", "6:12", "one group"),
        ("(\\d+)", "(", "6:12", "unclosed"),
        ("captured", "lost", "5:1", "captured"),
        ("captured", "taken", "6:1", "unknown field `taken`"),
        ("[counts]", "[files]\n\"../a\" = \"\"\n[counts]", "5:1", "../a"),
        ("[counts]", "[files]\na = { addresses = [[\"255.255.255.255\", 2]] }\n[counts]", "5:1", "how many"),
        ("[counts]", "[files]\na = { addresses = [] }\n[counts]", "5:1", "give addresses"),
        ("[counts]", "[files]\na = 3\n[counts]", "6:5", ""),
        ("quiet", "stop = \"KILL\"\nquiet", "4:8", "TERM"),
    ] {
        let text = MINE.replace(from, to);
        let found = Adapter::parse("mine", &text, Path::new("mine.toml")).unwrap_err().to_string();
        assert!(found.contains(&format!("mine.toml:{place}:")) && found.contains(words), "{text}: {found}");
    }
}
