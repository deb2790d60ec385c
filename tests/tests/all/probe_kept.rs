//! Results of a probe in the store, queries, metrics and reports.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Instant;

use serde_json::Value;
use wirelane_tests::numbers::{LIMIT, capture, column, finish, send};
use wirelane_tests::pages::{assert_visible, elements};
use wirelane_tests::recordings::{NOON_NS, write_header, write_packet};
use wirelane_tests::{Lab, frames, require_root, wirelane_binary};

/// Seconds since 1970 of the first packet of a made-up capture: 2026-03-01 12:00:00.
const NOON: u64 = NOON_NS / 1_000_000_000;

/// Writes a capture with so many packets of 60 bytes from 10.0.0.1 in each of these seconds.
fn make_file(path: &Path, seconds: &[u32]) {
    let mut file = fs::File::create(path).unwrap();
    write_header(&mut file).unwrap();
    for (second, packets) in seconds.iter().enumerate() {
        for number in 0..*packets {
            let at = NOON_NS + second as u64 * 1_000_000_000 + u64::from(number) * 1_000_000;
            let frame = frames::udp([10, 0, 0, 1], [10, 0, 0, 2], (1, 2), b"0123456789");
            write_packet(&mut file, at, &frames::ethernet(0x0800, &frame)).unwrap();
        }
    }
}

fn wirelane(folder: &Path, words: &[&str]) -> Output {
    Command::new(wirelane_binary().unwrap()).current_dir(folder).args(words).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The standard output of a command that succeeds.
fn done(folder: &Path, words: &[&str]) -> String {
    let output = wirelane(folder, words);
    assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

fn objects(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn asked(folder: &Path, store: &str, sql: &str) -> Vec<Value> {
    objects(&done(folder, &["query", sql, "--json", "--store", store]))
}

const CONFIG: &str = "[[measurement]]\nname = \"all\"\nvalues = [\"packets\", \"bps\", \"lengths\", \"top-src\"]\n\
    [[measurement]]\nname = \"ports\"\nkey = [\"src\", \"dst-port\"]\nvalues = [\"pps\"]\n\
    [[alarm]]\nname = \"many\"\nmeasurement = \"all\"\nvalue = \"packets\"\nabove = 4\nclear = 3\n";

/// A store with a hostile name.
const STORE: &str = "<script>alert(1)&\"'";

/// Battery: I10
#[test]
fn results_of_a_file_are_stored_asked_and_reported() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    make_file(&here.join("in.pcap"), &[3, 0, 5, 1]);
    fs::write(here.join("p.toml"), CONFIG).unwrap();
    let output = objects(&done(here, &["probe", "p.toml", "-r", "in.pcap", "--json", "--store", STORE]));
    let last = output.last().unwrap();
    let stored = &last["store"];
    let rows = ["measurements", "alarms", "ledgers"].map(|name| column(stored, name));
    // Four intervals of two measurements, and a key in three of these; in each of these three a length class and a
    // source.
    assert_eq!(rows, [4 + 4 + 3 + 3 + 3, 2, 1], "{stored}");
    let ask = |sql: &str| asked(here, STORE, sql);
    let of_all = ask(
        "SELECT count(*) AS n, sum(packets) AS p, sum(bytes) AS b, max(bps) AS bps, min(start_ns) AS first, \
         sum(duration_ns) AS ns FROM measurements WHERE kind = 'all' AND measurement = 'all'",
    );
    assert_eq!(
        of_all,
        [
            serde_json::json!({ "n": 4, "p": 9, "b": 540, "bps": 2400.0, "first": NOON_NS, "ns": 4_000_000_000u64 })
        ]
    );
    let keys = ask(
        "SELECT key, src, dst_port, packets, bytes, pps FROM measurements WHERE kind = 'key' ORDER BY start_ns",
    );
    assert_eq!(keys.len(), 3);
    let key = serde_json::json!({ "key": "10.0.0.1 2", "src": "10.0.0.1", "dst_port": 2, "packets": 5, "bytes": 300, "pps": 5.0 });
    assert_eq!(keys[1], key);
    let lists = ask(
        "SELECT list, item, sum(packets) AS p, sum(error) AS e FROM measurements WHERE kind = 'list' GROUP BY 1, 2 ORDER BY 1",
    );
    assert_eq!(
        lists,
        [
            serde_json::json!({ "list": "lengths", "item": "32-63", "p": 9 }),
            serde_json::json!({ "list": "top_src", "item": "10.0.0.1", "p": 9, "e": 0 })
        ]
    );
    let alarms =
        ask("SELECT alarm, measurement, state, value_name, value, start_ns AS at FROM alarms ORDER BY at");
    let alarm = |state: &str, value: f64, second: u64| {
        serde_json::json!({ "alarm": "many", "measurement": "all", "state": state, "value_name": "packets",
            "value": value, "at": (NOON + second) * 1_000_000_000 })
    };
    assert_eq!(alarms, [alarm("raised", 5.0, 3), alarm("cleared", 1.0, 4)]);
    let ledger = ask(
        "SELECT seen, filtered, lost, delivered, analysed, bytes, start_ns AS s, duration_ns AS d FROM ledgers",
    );
    let whole = serde_json::json!({ "seen": 9, "filtered": 0, "lost": 0, "delivered": 9, "analysed": 9, "bytes": 540,
        "s": NOON_NS, "d": 4_000_000_000u64 });
    assert_eq!(ledger, [whole]);

    let told = done(here, &["report", "--store", STORE]);
    for what in [
        "2026-03-01 12:00:00 to 2026-03-01 12:00:04 UTC",
        "  all    most 2.40k bit/s  ▅_█▂\n",
        "Keys with most bytes: ports",
        "10.0.0.1 2",
        "Sources with most packets: all",
        "many   all               1        1",
        "2026-03-01 12:00:03  many   raised   -    packets ",
        "Every packet that was seen is in one column",
        "  analysed                  9       100.00 %",
    ] {
        assert!(told.contains(what), "{what:?} is not in:\n{told}");
    }
    let sections = objects(&done(here, &["report", "--json", "--store", STORE]));
    let traffic = &sections[0];
    let points: Vec<f64> = traffic["lines"][0]["points"]
        .as_array()
        .unwrap()
        .iter()
        .map(|p| p["value"].as_f64().unwrap())
        .collect();
    assert_eq!(points, [1440.0, 0.0, 2400.0, 480.0], "{traffic}");
    // The second half: intervals that ended at that time or later.
    let half = objects(&done(here, &["report", "--json", "--store", STORE, "--from", "2026-03-01 12:00:03"]));
    assert_eq!(half[0]["rows"][0]["packets"], 6, "{}", half[0]);
    let nothing = done(here, &["report", "--store", STORE, "--from", "2030-01-01"]);
    assert!(nothing.contains("Nothing is stored for this time span."), "{nothing}");

    assert_eq!(done(here, &["report", "--store", STORE, "--html", "r.html"]), "");
    let page = fs::read_to_string(here.join("r.html")).unwrap();
    assert!(!page.contains("<script"), "{page}");
    let names = elements(&page);
    assert_visible(&page);
    // Traffic for wide and for narrow pages, and a sample of each of its lines and of the alarms.
    assert!(names.contains(&"svg=5".to_owned()), "{names:?}");
    assert!(
        page.contains("of the store &lt;script&gt;alert(1)&amp;&quot;&#39;</p>") && page.contains("<svg"),
        "{page}"
    );
    for (words, status, what) in [
        (
            &["report", "--store", STORE, "--html", "r.html"][..],
            1,
            "r.html is there already: --overwrite replaces it",
        ),
        (&["report", "--store", "."], 1, ". is not a store: none of these folders exists: flows"),
        (&["report", "--store", STORE, "--step", "1.5s"], 2, "--step: give whole seconds"),
        (&["report", "--store", STORE, "--from", "2026-03-02", "--to", "2026-03-01"], 2, "no time is left"),
    ] {
        let output = wirelane(here, words);
        assert_eq!(output.status.code(), Some(status), "{words:?}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(what), "{words:?}: {}", text(&output.stderr));
    }
    done(here, &["report", "--store", STORE, "--html", "r.html", "--overwrite", "-n", "1"]);
}

/// A TCP segment over IPv4 with this payload.
fn segment(to_server: bool, sequence: u32, acknowledged: u32, payload: &[u8]) -> Vec<u8> {
    let len = (40 + payload.len()) as u16;
    let (client, server) = (([10, 0, 0, 1], 40_000u16), ([10, 0, 0, 2], 80u16));
    let (from, to) = if to_server { (client, server) } else { (server, client) };
    let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, 6, 0, 0];
    packet[2..4].copy_from_slice(&len.to_be_bytes());
    packet.extend_from_slice(&from.0);
    packet.extend_from_slice(&to.0);
    packet.extend_from_slice(&from.1.to_be_bytes());
    packet.extend_from_slice(&to.1.to_be_bytes());
    packet.extend_from_slice(&sequence.to_be_bytes());
    packet.extend_from_slice(&acknowledged.to_be_bytes());
    packet.extend_from_slice(&[0x50, 0x18, 0xff, 0xff, 0, 0, 0, 0]);
    packet.extend_from_slice(payload);
    frames::ethernet(0x0800, &packet)
}

/// Packets contain names for a report: they appear there as text only.
/// Battery: S6
#[test]
fn names_out_of_packets_are_text_in_a_report() {
    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: <script>alert(1)</script>\r\n\r\n";
    const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let mut file = fs::File::create(here.join("in.pcap")).unwrap();
    write_header(&mut file).unwrap();
    let end = 1 + REQUEST.len() as u32;
    let packets = [segment(true, 1, 1, REQUEST), segment(false, 1, end, RESPONSE)];
    for (number, packet) in packets.iter().enumerate() {
        write_packet(&mut file, NOON_NS + number as u64 * 1_000_000, packet).unwrap();
    }
    drop(file);
    for command in ["http", "flows"] {
        done(here, &[command, "-r", "in.pcap", "--store", "web.db"]);
    }
    let page = done(here, &["report", "--store", "web.db", "--html", "-"]);
    elements(&page);
    assert!(!page.contains("<script"), "{page}");
    assert!(page.contains(">&lt;script&gt;alert(1)&lt;/script&gt;</td>"), "{page}");
    for what in [
        "Top talkers, by the bytes of their flows",
        ">10.0.0.2</td>",
        "No ledger is stored for this time span",
    ] {
        assert!(page.contains(what), "{what:?} is not in {page}");
    }
}

/// Live, without rights: stored and scraped numbers equal those of the packets sent.
/// Battery: I10
#[test]
fn a_live_probe_is_stored_and_scraped() {
    if !require_root("a_live_probe_is_stored_and_scraped") {
        return;
    }
    const SENT: u64 = 2000;
    let lab = Lab::new(1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let (path, store) = (folder.path().join("p.toml"), folder.path().join("probe.db"));
    let config = "interval = \"100ms\"\n[[measurement]]\nname = \"all\"\nvalues = [\"packets\"]\n\
        [[measurement]]\nname = \"keyed\"\nkey = [\"dst\"]\nvalues = [\"packets\", \"entropy\"]\n\
        [[alarm]]\nname = \"some\"\nmeasurement = \"all\"\nvalue = \"packets\"\nabove = 0\n";
    fs::write(&path, config).unwrap();
    let (device, store) = (lab.receiver().device.clone(), store.to_str().unwrap());
    let words = ["probe", path.to_str().unwrap(), "-i", &device, "--json", "-q", "-p", "--interval", "0.2"];
    let kept = ["--store", store, "--metrics", "127.0.0.1:9464"];
    let probe = capture(&lab, &[&words[..], &kept[..]].concat()).unwrap();
    send(&lab, SENT, &["--rate", "5000"]).unwrap();
    let scrape = || {
        let mut stream = TcpStream::connect(("127.0.0.1", 9464)).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    };
    let wanted = [
        format!("wirelane_probe_packets_total{{measurement=\"all\"}} {SENT}"),
        "wirelane_probe_value{measurement=\"all\",value=\"packets\"} 0.0".to_owned(),
        "wirelane_probe_alarms_raised{alarm=\"some\"} 0".to_owned(),
        format!("wirelane_packets_total{{column=\"analysed\"}} {SENT}"),
    ];
    let end = Instant::now() + LIMIT;
    let page = loop {
        let page = lab.enter(&lab.receiver().namespace, scrape).unwrap();
        let has = |line: &String| page.lines().any(|one| one == line);
        if wanted.iter().all(has) || Instant::now() > end {
            break page;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    };
    for line in &wanted {
        assert!(page.lines().any(|one| one == line), "{line} is not in\n{page}");
    }
    let last = finish(probe).unwrap();
    assert_eq!(["analysed", "probed"].map(|name| column(&last, name)), [SENT; 2]);
    for name in ["unwritten_measurements", "unwritten_alarms", "unwritten_ledgers"] {
        assert_eq!(column(&last["store"], name), 0, "{last}");
    }
    let ask = |sql: &str| asked(folder.path(), store, sql).remove(0);
    let sums = ask("SELECT sum(packets) FILTER (WHERE measurement = 'all') AS p, \
        sum(packets) FILTER (WHERE measurement = 'keyed') AS k FROM measurements WHERE kind = 'all'");
    assert_eq!(["p", "k"].map(|name| column(&sums, name)), [SENT; 2]);
    let ledger = ask(
        "SELECT sum(seen) AS seen, sum(filtered) AS filtered, sum(lost) AS lost, sum(analysed) AS analysed, \
        sum(bytes) AS bytes, count(*) AS parts FROM ledgers",
    );
    for name in ["seen", "filtered", "lost", "analysed", "bytes"] {
        assert_eq!(column(&ledger, name), column(&last, name), "{name}: {ledger} {last}");
    }
    assert!(column(&ledger, "parts") > 1, "it is kept as it grows: {ledger}");
    let alarms = ask("SELECT count(*) FILTER (WHERE state = 'raised') AS raised, \
        count(*) FILTER (WHERE state = 'cleared') AS cleared FROM alarms");
    for (name, total) in [("raised", "alarms_raised"), ("cleared", "alarms_cleared")] {
        assert_eq!(column(&alarms, name), column(&last, total));
    }
}
