//! `wirelane probe set` and `wirelane probe show`: a probe that is changed under traffic, by authorised users only.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;
use wirelane_tests::numbers::{LIMIT, capture, column, finish, send, wirelane};
use wirelane_tests::{Child, Finished, Lab, LabOptions, Signal, brokers, require_root, wirelane_binary};

const CONFIG: &str = "interval = \"200ms\"\n\
    [[measurement]]\nname = \"all\"\nvalues = [\"packets\", \"bytes\"]\n\
    [[measurement]]\nname = \"one\"\nvalues = [\"packets\"]\n\
    [[measurement]]\nname = \"other\"\nvalues = [\"packets\"]\nactive = false\n\
    [[alarm]]\nname = \"any\"\nmeasurement = \"all\"\nvalue = \"packets\"\nabove = 0\nclear-after = 10000\n\
    [[schedule]]\nname = \"night\"\nat = \"03:00\"\nflush = true\n";

/// Settings of one request.
const SET: [&str; 4] = [
    "measurement.one.active=false",
    "measurement.other.active=true",
    "alarm.any.clear-after=9999",
    "schedule.night.every=1h",
];

fn write(folder: &Path, text: &str) -> String {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    let path = folder.join("p.toml");
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Runs `wirelane probe` against a running probe.
fn probe(lab: &Lab, child: &Child, words: &[&str]) -> Finished {
    let pid = child.pid().to_string();
    let words = [&["probe"], words, &["--pid", &pid]].concat();
    wirelane(lab, &lab.receiver().namespace, &words).unwrap().finish(LIMIT).unwrap()
}

/// Output of `probe show`.
fn shown(lab: &Lab, child: &Child) -> Value {
    let finished = probe(lab, child, &["show", "--json"]);
    assert!(finished.status.success(), "{}", finished.stderr);
    finished.last_json().unwrap()
}

/// Waits for an output line of this measurement with packets; returns all lines up to it.
fn until_measured(child: &Child, name: &str) -> Vec<Value> {
    let mut lines = Vec::new();
    let end = Instant::now() + LIMIT;
    while Instant::now() < end {
        let line = child.next_json(LIMIT).unwrap().expect("the probe goes on");
        if line["measurement"] == name && line["packets"].as_u64().is_some_and(|packets| packets > 0) {
            lines.push(line);
            return lines;
        }
        lines.push(line);
    }
    panic!("nothing of {name}");
}

/// The control sockets of a process.
fn sockets_of(pid: u32) -> Vec<PathBuf> {
    let begin = format!("{pid}.");
    let entries = fs::read_dir("/run/wirelane").into_iter().flatten().flatten();
    let name = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
    entries.map(|entry| entry.path()).filter(|path| name(path).starts_with(&begin)).collect()
}

/// While packets arrive one measurement is switched off and another on in one request: each packet is counted by one of
/// the two, and by the one that stays on.
fn a_probe_is_changed(engine: &str, analysis: &str) {
    const SENT: u64 = 60_000;
    let folder = tempfile::tempdir().unwrap();
    let analysed = format!("values = [\"packets\"]\nanalysis = \"{analysis}\"");
    let text = CONFIG.replace("values = [\"packets\"]", &analysed);
    let text = text.replace("\"bytes\"]", &format!("\"bytes\"]\nanalysis = \"{analysis}\""));
    let path = write(folder.path(), &text);
    let lab = Lab::with(&LabOptions { queues: 2, ..LabOptions::default() }).unwrap();
    let device = lab.receiver().device.clone();
    let words = ["probe", &path, "-i", &device, "--workers", "2", "--json", "-p", "--engine", engine];
    let child = capture(&lab, &words).unwrap();
    let before = shown(&lab, &child);
    assert_eq!((&before["devices"][0], &before["config"]), (&device.as_str().into(), &path.as_str().into()));
    let (mut objects, last) = std::thread::scope(|scope| {
        let sending = scope.spawn(|| send(&lab, SENT, &["--rate", "20000"]));
        let mut lines = until_measured(&child, "one");
        // A request with an invalid part does not change anything.
        for (words, what) in [
            (&["measurement.one.active=false", "alarm.any.above=many"][..], "give a number"),
            (&["measurement.one.active=false", "alarm.all.above=1"], "unknown alarm; defined: any"),
            (&["measurement.one.active=false", "alarm.any.clear=7"], "it would be cleared when it is raised"),
        ] {
            let told = probe(&lab, &child, &[&["set"], words].concat());
            assert!(matches!(told.status.code(), Some(1 | 2)), "{words:?}: {}", told.stderr);
            assert!(told.stderr.contains(what), "{words:?}: {}", told.stderr);
            let now = shown(&lab, &child);
            assert_eq!((&now["measurements"], &now["set"]), (&before["measurements"], &before["set"]));
            assert_eq!(now["alarms"][0]["when"], before["alarms"][0]["when"]);
        }
        let told = probe(&lab, &child, &[&["set"], &SET[..]].concat());
        assert!(told.status.success(), "{}", told.stderr);
        assert_eq!(told.lines, ["4 changes in force"]);
        lines.extend(until_measured(&child, "other"));
        sending.join().unwrap().unwrap();
        std::thread::sleep(Duration::from_millis(if analysis == "kernel" { 3000 } else { 600 }));
        let now = shown(&lab, &child);
        let active = now["measurements"].as_array().unwrap().iter().map(|one| one["active"] == true);
        assert_eq!(active.collect::<Vec<_>>(), [true, false, true]);
        assert_eq!((&now["alarms"][0]["raised"], &now["set"]), (&1.into(), &SET.to_vec().into()));
        assert!(now["schedules"][0]["when"] == "every 1h", "{now}");
        let text = probe(&lab, &child, &["show"]).lines.join("\n");
        assert!(text.contains("RAISED") && text.contains("other  ") && text.contains("every 1h"), "{text}");
        // Another interval: an error if the kernel adds up the sums.
        let told = probe(&lab, &child, &["set", "interval=100ms"]);
        let refused = "the interval of sums of the kernel: restart the probe";
        assert_eq!(told.status.success(), analysis != "kernel", "{}", told.stderr);
        assert_eq!(told.stderr.contains(refused), analysis == "kernel", "{}", told.stderr);
        // Reads the file again, which discards the settings.
        child.signal(Signal::HangUp).unwrap();
        let end = Instant::now() + LIMIT;
        while shown(&lab, &child)["set"] != Value::Array(Vec::new()) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(50));
        }
        let now = shown(&lab, &child);
        assert_eq!(
            (&now["measurements"], &now["interval_ns"]),
            (&before["measurements"], &before["interval_ns"])
        );
        (lines, child.terminate(LIMIT).unwrap())
    });
    assert!(last.status.success(), "{}", last.stderr);
    for what in [
        &format!("set, and active: {}", SET.join(" ")),
        "was read again, and is active; values that were set are discarded",
    ] {
        assert!(last.stderr.contains(what), "{}", last.stderr);
    }
    objects.extend(last.json().unwrap());
    let of = |name: &str, total: bool| -> u64 {
        let of = objects.iter().filter(|one| one["measurement"] == name && one["total"] == total);
        of.map(|one| column(one, "packets")).sum()
    };
    let end = objects.last().unwrap();
    assert_eq!((column(end, "lost"), column(end, "shed")), (0, 0), "{end}");
    assert_eq!(column(end, "probed"), SENT);
    for total in [false, true] {
        let [all, one, other] = ["all", "one", "other"].map(|name| of(name, total));
        assert_eq!((all, one + other), (SENT, SENT), "{one} and {other}");
        assert!(one > 0 && other > 0, "{one} and {other}");
    }
    let of_kernel = u64::from(analysis == "kernel");
    assert_eq!((column(end, "changes"), column(end, "changes_refused")), (2 - of_kernel, 2 + of_kernel));
}

#[test]
fn a_probe_is_changed_under_traffic() {
    if !require_root("a_probe_is_changed_under_traffic") {
        return;
    }
    a_probe_is_changed("ring", "user");
}

#[test]
fn a_probe_in_the_kernel_is_changed_under_traffic() {
    if !require_root("a_probe_in_the_kernel_is_changed_under_traffic") {
        return;
    }
    a_probe_is_changed("ring", "kernel");
}

/// Only root and the probe's user may ask; invalid requests are refused, and silent clients do not block others.
#[test]
fn who_may_not_is_told_and_hostile_questions_harm_nobody() {
    if !require_root("who_may_not_is_told_and_hostile_questions_harm_nobody") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), CONFIG);
    let lab = Lab::new(1).unwrap();
    let device = lab.receiver().device.clone();
    let child = capture(&lab, &["probe", &path, "-i", &device, "--engine", "packet", "--json"]).unwrap();
    let sockets = sockets_of(child.pid());
    let [socket] = &sockets[..] else { panic!("{sockets:?}") };
    let metadata = fs::symlink_metadata(socket).unwrap();
    assert_eq!((metadata.permissions().mode() & 0o777, metadata.uid()), (0o600, 0));
    // A copy that other users can run.
    let copy = folder.path().join("wirelane");
    fs::copy(wirelane_binary().unwrap(), &copy).unwrap();
    let pid = child.pid().to_string();
    for words in [&["set", "flush"][..], &["show"]] {
        let user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
        let words = [&user[..], &[copy.to_str().unwrap(), "probe"], words, &["--pid", &pid]].concat();
        let refused = lab.spawn(&lab.receiver().namespace, &words).unwrap().finish(LIMIT).unwrap();
        assert_eq!(refused.status.code(), Some(1));
        assert!(
            refused.stderr.contains("no probe of process") && refused.stderr.contains("use sudo"),
            "{}",
            refused.stderr
        );
    }
    // 'wirelane rules' does not list the probe as a capture with rules.
    let rules = wirelane(&lab, &lab.receiver().namespace, &["rules", "stats", "--pid", &pid]).unwrap();
    assert!(rules.finish(LIMIT).unwrap().stderr.contains("whose rules can be changed"));
    let deep = "[".repeat(100_000);
    for (line, reason) in [
        ("{}", "version"),
        (&deep, "invalid request"),
        (r#"{"version":1,"ask":"stats"}"#, "not for a capture's rules"),
        (r#"{"version":1,"ask":{"program":{"fly":[]}}}"#, "invalid request"),
        (r#"{"version":1,"ask":{"program":{"set":[]}}}"#, "nothing to set"),
        (r#"{"version":1,"ask":{"program":{"set":["\u001b[2J=1"]}}}"#, "unknown name"),
        (
            r#"{"version":1,"ask":{"program":"show"}}"#,
            r#""measurements":[{"active":true,"measurement":"all"}"#,
        ),
    ] {
        let mut stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.write_all(line.as_bytes()).unwrap();
        stream.write_all(b"\n").unwrap();
        let (mut answer, mut byte) = (Vec::new(), [0]);
        while stream.read(&mut byte).unwrap() == 1 && byte != *b"\n" {
            answer.push(byte[0]);
        }
        let answer = String::from_utf8_lossy(&answer).into_owned();
        assert!(answer.contains(reason), "{}: {answer}", &line[..line.len().min(100)]);
        assert!(!answer.contains('\u{1b}'), "{answer}");
    }
    let mut silent: Vec<UnixStream> = (0..16).map(|_| UnixStream::connect(socket).unwrap()).collect();
    silent.iter_mut().for_each(|stream| stream.write_all(b"{\"version\":").unwrap());
    let waiting = wirelane(&lab, &lab.receiver().namespace, &["probe", "show", "--pid", &pid]).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    drop(silent);
    assert!(waiting.finish(LIMIT).unwrap().status.success());
    send(&lab, 1000, &[]).unwrap();
    assert_eq!(column(&finish(child).unwrap(), "probed"), 1000);
}

/// The socket is removed at any end of a probe, and the next probe has its own.
#[test]
fn the_socket_goes_with_the_probe() {
    if !require_root("the_socket_goes_with_the_probe") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), CONFIG);
    let lab = Lab::new(1).unwrap();
    let device = lab.receiver().device.clone();
    let words = ["probe", &path, "-i", &device, "--json"];
    for signal in [Signal::Terminate, Signal::Kill] {
        let child = capture(&lab, &words).unwrap();
        let pid = child.pid();
        assert_eq!((sockets_of(pid).len(), brokers(&lab).len()), (1, 1));
        // Selected by the device, as there is one probe on it.
        let told =
            wirelane(&lab, &lab.receiver().namespace, &["probe", "set", "-i", &device, "flush"]).unwrap();
        let told = told.finish(LIMIT).unwrap();
        assert!(told.status.success(), "{}", told.stderr);
        child.signal(signal).unwrap();
        child.finish(LIMIT).unwrap();
        let end = Instant::now() + LIMIT;
        while !(sockets_of(pid).is_empty() && brokers(&lab).is_empty()) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!((sockets_of(pid), brokers(&lab)), (Vec::new(), Vec::new()), "{signal:?}");
    }
    let none = wirelane(&lab, &lab.receiver().namespace, &["probe", "show", "-i", &device]).unwrap();
    let none = none.finish(LIMIT).unwrap();
    assert!(
        none.status.code() == Some(1) && none.stderr.contains(&format!("no probe on {device} is running")),
        "{}",
        none.stderr
    );
    for (words, what) in [
        (&["set"][..], "required"),
        (&["set", "speed=1"], "unknown name"),
        (&["set", "measurement.x.keys=1"], "cannot be set while it runs"),
    ] {
        let told = wirelane(&lab, &lab.receiver().namespace, &[&["probe"], words].concat()).unwrap();
        let told = told.finish(LIMIT).unwrap();
        assert!(told.status.code() == Some(2) && told.stderr.contains(what), "{words:?}: {}", told.stderr);
    }
}
