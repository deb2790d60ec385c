//! `[ship]` in the file of a monitor: a process without rights of a capture ships the store beside it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;
use wirelane_tests::numbers::{LIMIT, capture, column, send, wirelane};
use wirelane_tests::{Lab, Signal, require_root};

use super::door::Door;
use super::{make_file, run};

/// A folder that the user to whom the program drops its privileges may write to.
pub fn open_folder() -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    folder
}

/// Writes a configuration with a store that is shipped.
fn site(folder: &Path, capture: &str, to: &str, more: &str) -> PathBuf {
    let file = folder.join("site.toml");
    let text = format!(
        "[capture]\n{capture}\n[flows]\ninactive-timeout = 1\n[store]\nfolder = \"{}\"\nrotate = \"1s\"\n\
         probe = \"edge-7\"\n[ship]\nto = [\"{to}\"]\ncreate = true\nbatch-age = \"100ms\"\npatience = 5\n{more}",
        folder.join("db").display()
    );
    fs::write(&file, text).unwrap();
    file
}

/// The end of a monitor is the end of its shipper, which ships the last files before.
#[test]
fn a_monitor_of_a_file_ships_all_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let test = "a_monitor_of_a_file_ships_all_of_it";
    let Some(door) = Door::start(test, &folder.path().join("door"), &[]) else { return };
    let input = folder.path().join("in.pcap");
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    make_file(&input, 0..300, (now.as_secs() - 7200) * 1_000_000_000);
    let source = format!("read = \"{}\"", input.display());
    let file = site(folder.path(), &source, &door.to(), "");
    let monitored = |more: &[&str]| {
        let finished = run(&[&["monitor", file.to_str().unwrap()], more].concat());
        assert_eq!(finished.status.code(), Some(0), "{}", finished.stderr);
        finished
    };
    let last = monitored(&["--json"]).last_json().unwrap();
    let shipped = &last["analyses"]["ship"][0];
    let numbers = ["shipped_rows", "waiting_files", "unshipped_rows"].map(|name| column(shipped, name));
    assert_eq!(numbers, [300, 0, 0], "{last}");
    door.has_all_of(&folder.path().join("db"));
    let text = monitored(&[]).lines.join("\n");
    assert!(text.contains("[ship]") && text.contains(": 300 rows in 1 batch, 0 files unshipped"), "{text}");
    door.has_all_of(&folder.path().join("db"));

    // Nothing is lost where the server is away: the store keeps it, and the next shipper sends it.
    door.order("status", 503);
    let last = monitored(&["--json"]).last_json().unwrap();
    let waits = &last["analyses"]["ship"][0];
    assert!(column(waits, "waiting_files") > 0 && waits["error"].as_str().unwrap().contains("503"), "{last}");
    door.order("status", 0);
    monitored(&[]);
    door.has_all_of(&folder.path().join("db"));
}

/// `wirelane check` names mistakes of the section with their places.
#[test]
fn mistakes_of_shipping_are_named_with_their_places() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("site.toml");
    let head = "[capture]\ninterface = \"eth1\"\n[flows]\n";
    for (text, expected) in [
        ("[ship]\nto = \"clickhouse+http://h/d\"\n", "4:2: expected a section [store] with its folder"),
        (
            "[store]\nfolder = \"s\"\n[ship]\n",
            "6:2: [ship]: the following required arguments were not provided",
        ),
        (
            "[store]\nfolder = \"s\"\n[ship]\nto = \"http://h/d\"\n",
            "7:6: to: 'http://h/d': an unknown kind of target",
        ),
        (
            "[store]\nfolder = \"s\"\n[ship]\nto = [\"clickhouse+http://h/d\", \"clickhouse+http://h/d\"]\n",
            "7:6: to: a target is given twice",
        ),
        (
            "[store]\nfolder = \"s\"\n[ship]\nto = \"clickhouse+http://h/d\"\nonce = true\n",
            "8:1: unknown key 'once'",
        ),
        (
            "[store]\nfolder = \"s\"\n[ship]\nto = \"clickhouse+http://h/d\"\nbatch-size = \"big\"\n",
            "8:14: batch-size: ",
        ),
    ] {
        fs::write(&file, format!("{head}{text}")).unwrap();
        let finished = run(&["check", file.to_str().unwrap()]);
        assert_eq!(finished.status.code(), Some(2), "{text}: {}", finished.stderr);
        assert!(finished.stderr.contains(expected), "{expected}: {}", finished.stderr);
    }
    let right = "[store]\nfolder = \"s\"\n[ship]\nto = [\"clickhouse+http://h/d\", \"clickhouse+https://u@[::1]/d\"]\n";
    fs::write(&file, format!("{head}{right}")).unwrap();
    assert_eq!(run(&["check", file.to_str().unwrap()]).status.code(), Some(0));
}

/// Fields of a process in /proc.
fn field(pid: u32, name: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(str::trim));
    line.unwrap_or_else(|| panic!("no {name} in {text}")).to_owned()
}

/// The process that ships for a monitor.
fn shipper(monitor: u32) -> u32 {
    let children = fs::read_to_string(format!("/proc/{monitor}/task/{monitor}/children")).unwrap();
    let is_shipper = |pid: &&str| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.starts_with(b"wirelane-ship\0")
    };
    children.split_whitespace().find(is_shipper).expect("a shipper").parse().unwrap()
}

/// During a capture the rows arrive within seconds, from a process without capabilities; the monitor's status and metrics show a
/// server that refuses, and that works again. A monitor that is killed takes its shipper with it.
#[test]
fn a_monitor_shows_its_shipper_which_has_no_rights_and_ends_with_it() {
    let test = "a_monitor_shows_its_shipper_which_has_no_rights_and_ends_with_it";
    if !require_root(test) {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let inside = lab.receiver().namespace.clone();
    let folder = open_folder();
    let started = lab.enter(&inside, || Door::start(test, &folder.path().join("door"), &[])).unwrap();
    let Some(door) = started else { return };
    let device = &lab.receiver().device;
    let source = format!("interface = \"{device}\"\ndirection = \"rx\"\ninterval = 0.2");
    let file = site(folder.path(), &source, &door.to(), "[metrics]\naddress = \"127.0.0.1:9109\"\n");
    let status_when = |expected: &dyn Fn(&Value) -> bool| -> Value {
        let begun = Instant::now();
        loop {
            let asked =
                wirelane(&lab, &inside, &["status", device, "--json"]).unwrap().finish(LIMIT).unwrap();
            let status = asked.last_json().unwrap();
            let all = status["analyses"].as_array().unwrap();
            let ship = all.iter().find(|one| one["name"] == "ship").unwrap_or_else(|| panic!("{status}"));
            if !ship["outputs"][0].is_null() && expected(ship) {
                return ship.clone();
            }
            assert!(begun.elapsed() < LIMIT, "{status}");
            std::thread::sleep(Duration::from_millis(100));
        }
    };
    let metric = |name: &str| -> f64 {
        let text = lab.exec(&inside, &["curl", "-sS", "http://127.0.0.1:9109/metrics"]).unwrap();
        let found = text.lines().find(|line| line.starts_with(name) && line.contains("clickhouse+http"));
        found.unwrap_or_else(|| panic!("no {name} in {text}")).rsplit(' ').next().unwrap().parse().unwrap()
    };
    let monitor = capture(&lab, &["monitor", file.to_str().unwrap(), "--json"]).unwrap();
    let child = shipper(monitor.pid());
    send(&lab, 500, &["--flows", "20", "--size", "100"]).unwrap();
    let written = |ship: &Value| column(&ship["outputs"][0], "written");
    let works = |ship: &Value| ship["outputs"][0]["works"] == true;
    status_when(&|ship| {
        works(ship) && written(ship) >= 20 && column(&ship["outputs"][0], "waiting_bytes") == 0
    });
    for name in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
        assert_eq!(u64::from_str_radix(&field(child, name), 16), Ok(0), "{name}");
    }
    assert_eq!((field(child, "NoNewPrivs").as_str(), field(child, "Seccomp").as_str()), ("1", "2"));
    assert_ne!(field(child, "Uid").split_whitespace().next(), Some("0"));
    // The ledger of the packets may be stored and shipped after their flows.
    let begun = Instant::now();
    while metric("wirelane_ship_lag_seconds") > 0.0 {
        assert!(begun.elapsed() < LIMIT, "the shipper lags behind");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(metric("wirelane_ship_retries_total"), 0.0);

    door.order("status", 503);
    send(&lab, 500, &["--flows", "20", "--size", "100"]).unwrap();
    let refused = status_when(&|ship| !works(ship));
    assert!(refused["outputs"][0]["error"].as_str().unwrap().contains("HTTP status 503"), "{refused}");
    assert!(refused["outputs"][0]["failing_since_s"].is_u64(), "{refused}");
    status_when(&|ship| {
        column(&ship["counts"], "retries") > 0 && column(&ship["counts"], "seconds_of_lag") > 0
    });
    std::thread::sleep(Duration::from_millis(500));
    assert!(metric("wirelane_ship_lag_seconds") > 0.0 && metric("wirelane_ship_retries_total") > 0.0);
    assert_eq!(metric("wirelane_output_works{analysis=\"ship\""), 0.0);
    door.order("status", 0);
    status_when(&|ship| works(ship) && column(&ship["counts"], "waiting_files") == 0);

    monitor.signal(Signal::Kill).unwrap();
    monitor.finish(LIMIT).unwrap();
    let begun = Instant::now();
    while Path::new(&format!("/proc/{child}")).exists() {
        assert!(begun.elapsed() < LIMIT, "the shipper goes on");
        std::thread::sleep(Duration::from_millis(50));
    }
    // Its successor gets the lock, and ships the rest.
    let monitor = capture(&lab, &["monitor", file.to_str().unwrap(), "--json"]).unwrap();
    send(&lab, 100, &["--flows", "5", "--size", "100"]).unwrap();
    status_when(&|ship| works(ship) && written(ship) >= 5);
    let finished = monitor.terminate(LIMIT).unwrap();
    assert_eq!(finished.status.code(), Some(0), "{}", finished.stderr);
    let last = finished.last_json().unwrap();
    assert_eq!(column(&last["analyses"]["ship"][0], "waiting_files"), 0, "{last}");
    let db = folder.path().join("db");
    lab.enter(&inside, move || door.has_all_of(&db)).unwrap();
}

/// With the defaults of store and shipping, a row is at the server within 15 s of the last packet of its flow.
#[test]
#[ignore = "measures time, half a minute: make test-all"]
fn rows_arrive_within_15_seconds_of_their_packets() {
    let test = "rows_arrive_within_15_seconds_of_their_packets";
    if !require_root(test) {
        return;
    }
    const BURSTS: usize = 20;
    let lab = Lab::new(1).unwrap();
    let inside = lab.receiver().namespace.clone();
    let folder = open_folder();
    let started = lab.enter(&inside, || Door::start(test, &folder.path().join("door"), &[])).unwrap();
    let Some(door) = started else { return };
    let file = folder.path().join("site.toml");
    let text = format!(
        "[capture]\ninterface = \"{}\"\ndirection = \"rx\"\n[flows]\ninactive-timeout = 1\n[store]\nfolder = \"{}\"\n\
         [ship]\nto = [\"{}\"]\ncreate = true\n",
        lab.receiver().device,
        folder.path().join("db").display(),
        door.to()
    );
    fs::write(&file, text).unwrap();
    let monitor = capture(&lab, &["monitor", file.to_str().unwrap(), "--json"]).unwrap();
    let now = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64();
    let mut arrived: Vec<f64> = Vec::new();
    let query = "query=SELECT toFloat64(end_time) FROM fleet.flows ORDER BY end_time FORMAT TSV".to_owned();
    let place = door.to();
    let server = place.split(['@', '/']).nth(3).map(|place| format!("http://{place}/")).unwrap();
    let begun = Instant::now();
    let (mut sent, mut latencies) = (0, Vec::new());
    while latencies.len() < BURSTS {
        // Each is a flow of its own, at any time of the intervals in which files end.
        if sent < BURSTS && begun.elapsed() > Duration::from_millis(1700) * sent as u32 {
            send(&lab, 3, &["--flows", "1"]).unwrap();
            sent += 1;
        }
        let words = ["curl", "-sS", "-X", "POST", "--get", "--data-urlencode", &query, &server];
        let answer = lab.exec(&inside, &words).unwrap();
        let ends: Vec<f64> = answer.lines().filter_map(|line| line.parse().ok()).collect();
        for end in ends.iter().skip(arrived.len()) {
            latencies.push(now() - end);
            arrived.push(*end);
        }
        assert!(begun.elapsed() < LIMIT * 3, "{latencies:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
    monitor.terminate(LIMIT).unwrap();
    latencies.sort_by(f64::total_cmp);
    println!(
        "from the last packet to the row, s: median {:.1}, most {:.1}",
        latencies[BURSTS / 2],
        latencies[BURSTS - 1]
    );
    assert!(latencies.iter().all(|latency| *latency <= 15.0), "{latencies:?}");
}
