//! `wirelane probe` with alarms exported to others: each alarm once, although some targets hang or vanish, and no
//! packet is delayed.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::Value;
use wirelane_tests::numbers::{LIMIT, capture, column, send};
use wirelane_tests::recordings::{Disk, NOON_NS, packet, write_header, write_packet};
use wirelane_tests::{Lab, require_root, wirelane_binary};

const SECOND: u64 = 1_000_000_000;
const WAIT: Duration = Duration::from_secs(20);

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Writes a capture of so many seconds, of which every other one raises the alarm.
fn make_file(path: &Path, seconds: u64) -> u64 {
    let mut file = std::io::BufWriter::new(fs::File::create(path).unwrap());
    write_header(&mut file).unwrap();
    let mut packets = 0;
    for second in 0..seconds {
        for turn in 0..if second % 2 == 0 { 10 } else { 1 } {
            write_packet(&mut file, NOON_NS + second * SECOND + turn * 1000, &packet(packets, 100)).unwrap();
            packets += 1;
        }
    }
    packets
}

fn configuration(folder: &Path, targets: &[String]) -> String {
    let mut config = "[[measurement]]\nname = \"all\"\nvalues = [\"packets\"]\n\
         [[alarm]]\nname = \"many\"\nmeasurement = \"all\"\nvalue = \"packets\"\nabove = 5\nactions = ["
        .to_owned();
    let names: Vec<String> = (0..targets.len()).map(|place| format!("\"to{place}\"")).collect();
    config += &(names.join(", ") + "]\n");
    for (name, target) in names.iter().zip(targets) {
        config += &format!("[[action]]\nname = {name}\nexport = \"{target}\"\n");
    }
    let path = folder.join("p.toml");
    fs::write(&path, config).unwrap();
    path.to_str().unwrap().to_owned()
}

fn probe(config: &str, file: &Path) -> Output {
    let words = ["probe", config, "-r", file.to_str().unwrap(), "--json", "--quiet"];
    Command::new(wirelane_binary().unwrap()).args(words).output().unwrap()
}

fn last(output: &Output) -> Value {
    assert!(output.status.success(), "{}", text(&output.stderr));
    totals(output)
}

/// The last object of a probe, also after a failure.
fn totals(output: &Output) -> Value {
    serde_json::from_str(text(&output.stdout).lines().last().unwrap()).unwrap()
}

fn counts(last: &Value) -> [u64; 3] {
    ["alarms_exported", "exports_failed", "exports_refused"].map(|name| column(last, name))
}

/// State and value of an alarm in JSON.
fn said(line: &str) -> (String, f64) {
    let line: Value = serde_json::from_str(line).unwrap();
    assert_eq!((&line["alarm"], &line["measurement"]), (&"many".into(), &"all".into()));
    (line["state"].as_str().unwrap().to_owned(), line["value"].as_f64().unwrap())
}

/// Alarms of three seconds: raised, cleared and raised.
fn expected() -> Vec<(String, f64)> {
    [("raised", 10.0), ("cleared", 1.0), ("raised", 10.0)]
        .map(|(state, value)| (state.to_owned(), value))
        .to_vec()
}

#[test]
fn alarms_reach_everybody_once() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let file = here.join("in.pcap");
    make_file(&file, 3);
    let lines = here.join("alarms.jsonl");
    let (udp, syslog) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("[::1]:0").unwrap());
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let log = UnixDatagram::bind(here.join("log")).unwrap();
    udp.set_read_timeout(Some(WAIT)).unwrap();
    syslog.set_read_timeout(Some(WAIT)).unwrap();
    log.set_read_timeout(Some(WAIT)).unwrap();
    let targets = [
        format!("file:{}", lines.display()),
        format!("udp://{}", udp.local_addr().unwrap()),
        format!("tcp://{}", tcp.local_addr().unwrap()),
        format!("syslog://{}", syslog.local_addr().unwrap()),
        format!("unix:{}", here.join("log").display()),
    ];
    let output = probe(&configuration(here, &targets), &file);
    assert_eq!(counts(&last(&output)), [15, 0, 0], "{}", text(&output.stderr));
    let of_file: Vec<_> = fs::read_to_string(&lines).unwrap().lines().map(said).collect();
    assert_eq!(of_file, expected());
    let of_tcp: Vec<_> =
        BufReader::new(tcp.accept().unwrap().0).lines().map(|line| said(&line.unwrap())).collect();
    assert_eq!(of_tcp, expected());
    let mut bytes = [0; 4096];
    for (state, value) in expected() {
        let length = udp.recv(&mut bytes).unwrap();
        assert_eq!(said(std::str::from_utf8(&bytes[..length]).unwrap()), (state.clone(), value));
        let by_net = syslog.recv(&mut bytes).unwrap();
        let by_net = text(&bytes[..by_net]);
        let by_file = log.recv(&mut bytes).unwrap();
        assert_eq!(text(&bytes[..by_file]), by_net);
        let severity = if state == "raised" { 28 } else { 29 };
        assert!(by_net.starts_with(&format!("<{severity}>1 2026-03-01T12:00:0")), "{by_net}");
        let data = format!(
            "[wirelane@32473 alarm=\"many\" state=\"{state}\" measurement=\"all\" key=\"\" valueName=\"packets\" value=\"{value}\" "
        );
        assert!(
            by_net.contains(&data) && by_net.ends_with(&format!("alarm many {state}: packets {value}")),
            "{by_net}"
        );
    }
}

/// One target does not read, one has vanished, and a disk is full: the others receive everything, and the file is
/// measured to its end.
#[test]
fn who_hangs_or_has_gone_is_not_waited_for() {
    if !require_root("who_hangs_or_has_gone_is_not_waited_for") {
        return;
    }
    // Raised and cleared so often that no kernel buffer holds all alarms.
    const SECONDS: u64 = 60_000;
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let disk = Disk::new("tmpfs", "size=4k").unwrap();
    let file = here.join("in.pcap");
    let packets = make_file(&file, SECONDS);
    let hangs = TcpListener::bind("127.0.0.1:0").unwrap();
    let gone = UdpSocket::bind("127.0.0.1:0").unwrap();
    let lines = here.join("alarms.jsonl");
    let targets = [
        format!("tcp://{}", hangs.local_addr().unwrap()),
        format!("udp://{}", gone.local_addr().unwrap()),
        format!("file:{}", disk.path().join("full").display()),
        format!("file:{}", lines.display()),
    ];
    drop(gone);
    let begun = Instant::now();
    let output = probe(&configuration(here, &targets), &file);
    let last = totals(&output);
    assert!(begun.elapsed() < Duration::from_secs(200), "{:?}", begun.elapsed());
    assert_eq!(column(&last, "probed"), packets);
    let [exported, failed, refused] = counts(&last);
    assert_eq!(exported + failed + refused, 4 * SECONDS, "every alarm at every target");
    assert!(failed > 0, "{last}");
    // The run continued to its end, and reports the missing exports.
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let undone = format!("{} exports of alarms not done", failed + refused);
    let last = text(&output.stderr).lines().last().unwrap_or_default().replace(',', "");
    assert!(last.ends_with(&undone), "{undone}: {last}");
    let written = fs::read_to_string(&lines).unwrap();
    let all: Vec<_> = written.lines().map(said).collect();
    assert!(all.len() as u64 + refused >= SECONDS && all.len() as u64 <= SECONDS, "{}", all.len());
    for what in ["No space left on device", "refused"] {
        assert!(text(&output.stderr).contains(what), "{what}: {}", text(&output.stderr));
    }
}

#[test]
fn targets_that_are_not_there_are_told_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let file = here.join("in.pcap");
    make_file(&file, 1);
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for (target, what) in [
        (format!("tcp://{nobody}"), "Connection refused"),
        (format!("unix:{}", here.join("none").display()), "No such file"),
        (format!("file:{}", here.join("no/such").display()), "No such file"),
        ("file:/dev/null".to_owned(), "not a file"),
    ] {
        let output = probe(&configuration(here, std::slice::from_ref(&target)), &file);
        assert_eq!(output.status.code(), Some(1), "{target}: {}", text(&output.stderr));
        assert!(
            text(&output.stderr).contains(what) && text(&output.stderr).contains(&target),
            "{}",
            text(&output.stderr)
        );
    }
}

/// A live capture has given up its rights before it exports.
#[test]
fn live_alarms_are_exported_without_rights() {
    if !require_root("live_alarms_are_exported_without_rights") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    fs::set_permissions(here, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let lab = Lab::new(1).unwrap();
    let log = UnixDatagram::bind(here.join("log")).unwrap();
    log.set_read_timeout(Some(LIMIT)).unwrap();
    let lines = here.join("alarms.jsonl");
    let targets = [format!("file:{}", lines.display()), format!("unix:{}", here.join("log").display())];
    let config = configuration(here, &targets);
    let child = capture(&lab, &["probe", &config, "-i", &lab.receiver().device, "--json"]).unwrap();
    send(&lab, 100, &[]).unwrap();
    let mut bytes = [0; 4096];
    let length = log.recv(&mut bytes).unwrap();
    assert!(text(&bytes[..length]).contains("alarm many raised"), "{}", text(&bytes[..length]));
    let last = child.terminate(LIMIT).unwrap().last_json().unwrap();
    let [exported, failed, refused] = counts(&last);
    assert_eq!((failed, refused), (0, 0));
    let all: Vec<_> = fs::read_to_string(&lines).unwrap().lines().map(said).collect();
    assert_eq!(exported, 2 * all.len() as u64);
    assert_eq!(all[0].0, "raised");
}
