//! `wirelane probe`: over files, programs run by alarms, and a configuration that is replaced under traffic.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::Value;
use wirelane_tests::numbers::{LIMIT, capture, column, finish, send};
use wirelane_tests::recordings::{NOON_NS, write_header, write_packet};
use wirelane_tests::{Child, Lab, LabOptions, Signal, frames, require_root, wirelane_binary};

/// Writes a capture with so many packets from 10.0.0.1 in each of these seconds.
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

fn probe(folder: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(wirelane_binary().unwrap());
    command.current_dir(folder).arg("probe").args(words).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

const RATE: &str = "[[measurement]]\nname = \"all\"\nvalues = [\"packets\", \"bytes\"]\n";

#[test]
fn files_are_measured_and_mistakes_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    make_file(&here.join("in.pcap"), &[3, 0, 5]);
    fs::write(here.join("p.toml"), RATE).unwrap();
    fs::write(here.join("bad.toml"), format!("{RATE}kay = 1\n")).unwrap();
    let output = probe(here, &["p.toml", "-r", "in.pcap", "--json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let objects: Vec<Value> =
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of: Vec<_> = objects.iter().filter(|one| one["measurement"] == "all").collect();
    let packets: Vec<u64> = of.iter().map(|one| column(one, "packets")).collect();
    assert_eq!(packets, [3, 0, 5, 8], "three intervals and the total");
    assert_eq!(
        (of[3]["total"].clone(), of[0]["start"].clone()),
        (true.into(), "1772366400.000000000".into())
    );
    let last = objects.last().unwrap();
    assert_eq!((column(last, "analysed"), column(last, "probed"), column(last, "intervals")), (8, 8, 3));
    for (words, status, what) in [
        (&["bad.toml", "-r", "in.pcap"][..], 1, "bad.toml:4:1: unknown field `kay`, expected one of `name`"),
        (&["bad.toml", "--check"], 1, "bad.toml:4:1: unknown field"),
        (&["nothing.toml", "--check"], 1, "nothing.toml"),
        (&["--ready", "nothing"], 2, "there are arp-spoofing, bandwidth"),
        (&["p.toml"], 2, "name a device"),
        (&["p.toml", "-r", "in.pcap", "--steering", "copy"], 2, "counted by one worker"),
        (&["p.toml", "-r", "in.pcap", "udp port"], 2, "udp port"),
    ] {
        let output = probe(here, words);
        assert_eq!(output.status.code(), Some(status), "{words:?}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(what), "{words:?}: {}", text(&output.stderr));
        assert_eq!(text(&output.stdout), "", "{words:?}");
    }
    let checked = probe(here, &["p.toml", "--check"]);
    assert!(
        checked.status.success()
            && text(&checked.stdout).contains("measurement all: all packets: packets, bytes\n")
    );
    let printed = probe(here, &["--ready", "syn-flood", "--print-ready"]);
    let file =
        fs::read_to_string(wirelane_tests::repository().join("examples/probes/syn-flood.toml")).unwrap();
    assert_eq!(text(&printed.stdout), file);
    // A filter after a ready probe: its first word is not taken as a configuration.
    let output = probe(here, &["--ready", "bandwidth", "-r", "in.pcap", "udp", "port", "2"]);
    assert!(output.status.success() && text(&output.stdout).contains("10.0.0.0/24"), "{output:?}");
}

/// Battery: F5
#[test]
fn programs_run_without_a_shell_and_hang_and_fail_without_harm() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    // The programs may run as another user.
    fs::set_permissions(here, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    make_file(&here.join("in.pcap"), &[20, 0]);
    let config = format!(
        "{RATE}[[alarm]]\nname = \"many\"\nmeasurement = \"all\"\nvalue = \"packets\"\nabove = 10\n\
         actions = [\"good\", \"bad\", \"slow\", \"none\"]\n\
         [[action]]\nname = \"good\"\nrun = [\"/bin/sh\", \"-c\", 'printf \"%s|\" \"$@\" >> told', \"sh\", \"{{alarm}} $(id); {{state}}\", \"{{value}}\"]\n\
         [[action]]\nname = \"bad\"\nrun = [\"/bin/false\"]\n\
         [[action]]\nname = \"slow\"\nrun = [\"/bin/sh\", \"-c\", \"sleep 100 & sleep 100\"]\ntimeout = \"100ms\"\non = [\"raise\"]\n\
         [[action]]\nname = \"none\"\nrun = [\"/no/such/program\"]\non = [\"raise\"]\n"
    );
    fs::write(here.join("p.toml"), config).unwrap();
    let start = Instant::now();
    // The single packet of the last second clears the alarm.
    make_file(&here.join("in.pcap"), &[20, 1]);
    let output = probe(here, &["p.toml", "-r", "in.pcap", "--json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(start.elapsed() < Duration::from_secs(90));
    let last: Value = serde_json::from_str(text(&output.stdout).lines().last().unwrap()).unwrap();
    let counts = ["commands_done", "commands_failed", "commands_timed_out", "commands_refused"]
        .map(|name| column(&last, name));
    assert_eq!(counts, [2, 3, 1, 0], "{}", text(&output.stderr));
    let told = fs::read_to_string(here.join("told")).unwrap();
    assert!(told.contains("many $(id); raised|20|") && told.contains("many $(id); cleared|1|"), "{told}");
    for what in [
        "/bin/false ended with exit status: 1",
        "was ended, as it had not ended in 100ms",
        "/no/such/program cannot be started",
    ] {
        assert!(text(&output.stderr).contains(what), "{}", text(&output.stderr));
    }
}

/// Waits for an output line of this measurement with packets.
fn until_measured(child: &Child, name: &str) {
    let end = Instant::now() + LIMIT;
    while Instant::now() < end {
        let line = child.next_json(LIMIT).unwrap().expect("the probe goes on");
        if line["measurement"] == name && line["packets"].as_u64().is_some_and(|packets| packets > 0) {
            return;
        }
    }
    panic!("nothing of {name}");
}

/// While packets arrive, a new configuration becomes active, and one with mistakes does not: each packet is counted
/// once, by one of the two active ones.
/// Battery: L1
#[test]
fn a_configuration_is_replaced_under_traffic() {
    if !require_root("a_configuration_is_replaced_under_traffic") {
        return;
    }
    const SENT: u64 = 60_000;
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let path = folder.path().join("p.toml");
    let config = |name: &str| {
        format!(
            "interval = \"200ms\"\n[[measurement]]\nname = \"{name}\"\nkey = [\"dst\"]\nkeys = 50\nvalues = [\"packets\", \"bytes\"]\n"
        )
    };
    fs::write(&path, config("old")).unwrap();
    let lab = Lab::with(&LabOptions { queues: 2, ..LabOptions::default() }).unwrap();
    let device = lab.receiver().device.clone();
    let words = ["probe", path.to_str().unwrap(), "-i", &device, "--workers", "2", "--json", "-p"];
    let probe = capture(&lab, &words).unwrap();
    let last = std::thread::scope(|scope| {
        let sending = scope.spawn(|| send(&lab, SENT, &["--rate", "20000"]));
        until_measured(&probe, "old");
        fs::write(&path, "[[measurement]]\nname = 7\n").unwrap();
        probe.signal(Signal::HangUp).unwrap();
        until_measured(&probe, "old");
        fs::write(&path, config("new")).unwrap();
        probe.signal(Signal::HangUp).unwrap();
        until_measured(&probe, "new");
        sending.join().unwrap().unwrap();
        std::thread::sleep(Duration::from_millis(300));
        probe.terminate(LIMIT).unwrap()
    });
    assert!(last.status.success(), "{}", last.stderr);
    assert!(
        last.stderr.contains("stays as it was") && last.stderr.contains("p.toml:2:8: "),
        "{}",
        last.stderr
    );
    assert!(last.stderr.contains("was read again, and is active"), "{}", last.stderr);
    let objects = last.json().unwrap();
    let total = |name: &str| -> u64 {
        let of = objects.iter().filter(|one| one["measurement"] == name && one["total"] == true);
        of.map(|one| column(one, "packets")).sum()
    };
    let end = objects.last().unwrap();
    assert_eq!((column(end, "lost"), column(end, "shed")), (0, 0));
    assert_eq!((column(end, "analysed"), column(end, "probed")), (SENT, SENT));
    assert_eq!((column(end, "reloads"), column(end, "reloads_refused")), (1, 1));
    let new = total("new");
    assert!(0 < new && new < SENT, "{new}");
    let rows = objects.iter().find(|one| one["measurement"] == "new" && one["total"] == true).unwrap();
    let shown = |row: &Value| column(row, "packets");
    let (keys, other) = (column(rows, "keys"), rows["other"]["packets"].as_u64().unwrap_or(0));
    assert!(keys == 50 && other > 0, "4096 destinations, and room for 50: {rows}");
    assert!(rows["rows"].as_array().unwrap().iter().map(shown).sum::<u64>() + other < new);
}

/// A live probe measures in real time, also without packets; an alarm is raised while packets arrive and cleared later.
#[test]
fn alarms_are_raised_and_cleared_live() {
    if !require_root("alarms_are_raised_and_cleared_live") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("p.toml");
    let config = "interval = \"100ms\"\n[[measurement]]\nname = \"all\"\nvalues = [\"pps\", \"packets\"]\n\
        [[alarm]]\nname = \"many\"\nmeasurement = \"all\"\nvalue = \"pps\"\nabove = 500\nclear = 10\nactions = [\"tell\"]\n\
        [[action]]\nname = \"tell\"\nlog = true\n";
    fs::write(&path, config).unwrap();
    let device = lab.receiver().device.clone();
    let words = ["probe", path.to_str().unwrap(), "-i", &device, "--json", "-p"];
    let probe = capture(&lab, &words).unwrap();
    send(&lab, 1000, &["--rate", "2000"]).unwrap();
    let mut states = Vec::new();
    while states.len() < 2 {
        let line = probe.next_json(LIMIT).unwrap().expect("the probe goes on");
        if line["alarm"] == "many" {
            states.push(line["state"].as_str().unwrap().to_owned());
        }
    }
    assert_eq!(states, ["raised", "cleared"]);
    let end = finish(probe).unwrap();
    assert_eq!(
        (column(&end, "probed"), column(&end, "alarms_raised"), column(&end, "alarms_cleared")),
        (1000, 1, 1)
    );
}
