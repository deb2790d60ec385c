//! `wirelane rules` against running captures: over a socket that only its user can reach, and that is removed at any
//! end of the capture.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use wirelane_tests::numbers::{LIMIT, capture, column, finish, send, wirelane};
use wirelane_tests::{
    Child, ControlGroup, Finished, Lab, Signal, brokers, require_root, timed, wirelane_binary,
};

/// Packets from source ports 1000 to 1255, in turn.
const PORTS: [&str; 6] = ["--pattern", "ports", "--flows", "256", "--src-port", "1000"];
/// Packets that are sent: 8 of each port.
const SENT: u64 = 2048;

const FIRST: &str = r#"
[[rule]]
id = 10
name = "the lower half"
src-port = "1000-1127"
action = "drop"

[[exact]]
id = 100
src-port = 1255
protocol = "udp"
action = "count"
"#;

/// Runs `wirelane rules` on a capture.
fn rules(lab: &Lab, child: &Child, words: &[&str]) -> Finished {
    let pid = child.pid().to_string();
    let words = [&["rules"], words, &["--pid", &pid]].concat();
    wirelane(lab, &lab.receiver().namespace, &words).unwrap().finish(LIMIT).unwrap()
}

/// Runs `wirelane rules` on a capture, and asserts success.
fn done(lab: &Lab, child: &Child, words: &[&str]) -> Finished {
    let finished = rules(lab, child, words);
    assert!(finished.status.success(), "{words:?}: {}", finished.stderr);
    finished
}

/// Counters of the rules.
fn stats(lab: &Lab, child: &Child) -> Value {
    done(lab, child, &["stats", "--json"]).last_json().unwrap()
}

/// Packets that hit a wildcard rule.
fn hits(stats: &Value, id: u64) -> u64 {
    let line = stats["rules"].as_array().unwrap().iter().find(|line| line["rule"]["id"] == id);
    line.map_or(0, |line| column(&line["hits"], "packets"))
}

/// Sends packets, and waits until all of them have been evaluated.
fn send_all(lab: &Lab, child: &Child, seen: u64) {
    send(lab, SENT, &PORTS).unwrap();
    let deadline = Instant::now() + LIMIT;
    let mut sum = 0;
    while sum < seen && Instant::now() < deadline {
        let interval = child.next_json(LIMIT).unwrap().unwrap();
        sum += ["analysed", "filtered", "absorbed"].map(|name| column(&interval, name)).iter().sum::<u64>();
    }
}

/// The control socket of a capture.
fn socket_of(child: &Child) -> Option<PathBuf> {
    let begin = format!("{}.", child.pid());
    let entries = fs::read_dir("/run/wirelane").into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).find(|path| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        name.starts_with(&begin) && name.ends_with(".control")
    })
}

fn file(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Every request to a capture with these options.
fn a_capture_is_managed(options: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let first = file(folder.path(), "first.toml", FIRST);
    let lab = Lab::new(1).unwrap();
    let device = lab.receiver().device.clone();
    // A ring for all packets of one transmission: other tests may keep the worker from its core.
    let words =
        ["count", "-i", &device, "--json", "--interval", "0.1", "--ring-size", "32", "--rules", &first];
    let words = [&words[..], &["--direction", "rx"], options].concat();
    let child = capture(&lab, &words).unwrap();

    // Access for its user only: by the mode of the folder and of the file.
    let socket = socket_of(&child).unwrap();
    let metadata = fs::symlink_metadata(&socket).unwrap();
    assert!(metadata.file_type().is_socket());
    assert_eq!((metadata.permissions().mode() & 0o777, metadata.uid()), (0o600, 0));
    assert_eq!(fs::metadata("/run/wirelane").unwrap().permissions().mode() & 0o077, 0);
    let listed = wirelane(&lab, &lab.receiver().namespace, &["rules", "instances", "--json"]).unwrap();
    let listed = listed.finish(LIMIT).unwrap().json().unwrap();
    let ours = listed.iter().find(|line| line["pid"] == child.pid()).unwrap();
    assert_eq!((&ours["here"], &ours["devices"][0]), (&true.into(), &device.as_str().into()));

    // Selected by the device, as there is one capture on it; the other namespace does not have a capture.
    let by_device = ["rules", "list", "-i", &device, "--json"];
    let list = wirelane(&lab, &lab.receiver().namespace, &by_device).unwrap().finish(LIMIT).unwrap();
    assert!(list.status.success(), "{}", list.stderr);
    assert_eq!(list.last_json().unwrap()["exact"], 1);
    let elsewhere = wirelane(&lab, &lab.sender().namespace, &by_device).unwrap().finish(LIMIT).unwrap();
    assert_eq!(elsewhere.status.code(), Some(1));
    assert!(elsewhere.stderr.contains(&format!("no capture on {device}")), "{}", elsewhere.stderr);

    send_all(&lab, &child, SENT);
    let now = stats(&lab, &child);
    assert_eq!((hits(&now, 10), column(&now["exact_hits"], "packets")), (SENT / 2, 8), "{options:?}");
    let table = done(&lab, &child, &["list", "--exact"]).lines.join("\n");
    assert!(
        table.contains("10 the lower half") && table.contains("1,024") && table.contains("100 exact"),
        "{table}"
    );

    // Rules are added one by one, as arguments and from a file.
    done(&lab, &child, &["add", "id=20", "src-port=1128-1191", "action=pass", "truncate=64"]);
    done(&lab, &child, &["add", "--exact", "id=101", "src-port=1254", "protocol=udp", "action=drop"]);
    let more = file(folder.path(), "more.toml", "[[rule]]\nid = 30\nsrc-port = 1253\naction = \"count\"\n");
    done(&lab, &child, &["add", "--file", &more]);
    send_all(&lab, &child, SENT);
    let now = stats(&lab, &child);
    assert_eq!([10, 20, 30].map(|id| hits(&now, id)), [SENT, 512, 8], "{options:?}");
    assert_eq!((column(&now, "exact"), column(&now["exact_hits"], "packets")), (2, 24));

    // An invalid request does not change anything, and the error names the place.
    let faulty = file(folder.path(), "faulty.toml", "[[rule]]\nid = 1\nsrc-prot = 80\naction = \"drop\"\n");
    let version = column(&now, "version");
    for (words, reason) in [
        (&["load", &faulty][..], "faulty.toml:3:1"),
        (&["load", "/no/such/file.toml"], "/no/such/file.toml"),
        (&["add", "id=20", "action=drop"], "rule 20: this id is in use"),
        (&["add", "id=21", "action=explode"], "explode"),
        (&["add", "--exact", "id=102", "src-port=1254", "protocol=udp", "action=drop"], "rule 101"),
        (&["del", "77"], "no such rule"),
    ] {
        let refused = rules(&lab, &child, words);
        assert_eq!(refused.status.code(), Some(1), "{words:?}: {}", refused.stderr);
        assert!(refused.stderr.contains(reason), "{words:?}: {}", refused.stderr);
        assert!(refused.lines.is_empty(), "{words:?}");
    }
    assert_eq!(rules(&lab, &child, &["del", "x"]).status.code(), Some(2));
    assert_eq!(column(&stats(&lab, &child), "version"), version, "nothing has changed");

    // Rules are removed by id, by fields, all of them, or by loading another set.
    done(&lab, &child, &["del", "20", "101"]);
    done(&lab, &child, &["del", "--exact", "src-port=1255", "protocol=udp"]);
    let now = stats(&lab, &child);
    assert_eq!((column(&now, "exact"), now["rules"].as_array().unwrap().len()), (0, 2));
    assert_eq!((column(&now["exact_gone"], "packets"), column(&now["rules_gone"], "packets")), (24, 512));
    done(&lab, &child, &["load", &first]);
    let now = stats(&lab, &child);
    assert_eq!((column(&now, "exact"), hits(&now, 10)), (1, SENT), "what stays goes on counting");
    done(&lab, &child, &["flush"]);
    assert_eq!(column(&stats(&lab, &child), "exact"), 0);
    done(&lab, &child, &["flush", "--all"]);
    send_all(&lab, &child, SENT);

    let last = finish(child).unwrap();
    // The first half is dropped twice; port 1255 counted twice, 1254 dropped once and 1253 counted once.
    assert_eq!((column(&last, "seen"), column(&last, "lost")), (3 * SENT, 0), "{options:?}");
    assert_eq!((column(&last, "filtered"), column(&last, "absorbed")), (SENT + 8, 24), "{options:?}");
    assert_eq!(column(&last, "analysed"), 2 * SENT - 32, "{options:?}");
    assert_eq!(column(&last["rule_stats"]["rules_gone"], "packets"), SENT + 512 + 8, "{options:?}");
    assert!(!socket.exists(), "{options:?}: the socket stays");
}

#[test]
fn a_capture_of_the_ring_is_managed() {
    if !require_root("a_capture_of_the_ring_is_managed") {
        return;
    }
    for options in [&["--hook", "native"][..], &["--hook", "generic"], &["--hook", "tc"], &["--keep-rights"]]
    {
        a_capture_is_managed(options);
    }
}

/// Battery: S8
#[test]
fn a_capture_of_sockets_is_managed() {
    if !require_root("a_capture_of_sockets_is_managed") {
        return;
    }
    for options in [
        &["--engine", "packet"][..],
        &["--engine", "xsk", "--exclusive"],
        &["--engine", "packet", "--keep-rights"],
    ] {
        a_capture_is_managed(options);
    }
}

/// The socket is removed at any end of a capture, also if the broker is killed with it.
/// Battery: S8
#[test]
fn no_socket_stays_behind() {
    if !require_root("no_socket_stays_behind") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let device = lab.receiver().device.clone();
    let start = || {
        capture(&lab, &["count", "-i", &device, "--engine", "packet", "--json", "--rules-capacity", "100"])
            .unwrap()
    };
    let gone = |socket: &Path, how: &str| {
        let deadline = Instant::now() + LIMIT;
        while socket.exists() {
            assert!(Instant::now() < deadline, "{how}: the socket stays");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    for signal in [Signal::Kill, Signal::Terminate] {
        let child = start();
        let socket = socket_of(&child).unwrap();
        assert_eq!(brokers(&lab).len(), 1);
        child.signal(signal).unwrap();
        child.finish(LIMIT).unwrap();
        gone(&socket, &format!("{signal:?}"));
        let deadline = Instant::now() + LIMIT;
        while !brokers(&lab).is_empty() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(brokers(&lab).is_empty(), "a broker is left");
    }
    // Both killed: the next command removes the socket, which may be one of another test.
    let child = start();
    let socket = socket_of(&child).unwrap();
    for broker in brokers(&lab) {
        assert!(Command::new("kill").args(["-9", &broker.to_string()]).status().unwrap().success());
    }
    child.signal(Signal::Kill).unwrap();
    child.finish(LIMIT).unwrap();
    wirelane(&lab, &lab.receiver().namespace, &["rules", "instances"]).unwrap().finish(LIMIT).unwrap();
    assert!(!socket.exists());
    // Without rules there is no socket.
    let child = capture(&lab, &["count", "-i", &device, "--engine", "packet", "--json"]).unwrap();
    assert_eq!((socket_of(&child), brokers(&lab).len()), (None, 0));
    finish(child).unwrap();
}

/// The largest resident memory of a process so far.
fn peak_bytes(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    peak.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// A rule file whose only line has 2 MiB and no rule: a short refusal with the place, in bounded memory.
/// Battery: F8
#[test]
fn a_line_of_2_mib_without_rules_is_refused_with_its_place() {
    const NAME: &str = "a_line_of_2_mib_without_rules_is_refused_with_its_place";
    if !require_root(NAME) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let long = "x".repeat(2 << 20);
    for (text, place) in [
        (format!("{long} = 1"), ":1:1: "),
        (format!("default = \"{long}\""), ":1:11: "),
        (format!("# {long}\nno-such-key = 1"), ":2:1: "),
        (long, ":1:"),
    ] {
        let path = file(folder.path(), "long.toml", &text);
        // The program takes some 14 MiB, and its file is charged to the first reader.
        let Some(group) = ControlGroup::limited(NAME, 64 << 20) else { return };
        let mut command = group.command(wirelane_binary().unwrap());
        let output = command.args(["rules", "check", &path]).output().unwrap();
        let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
        assert!(matches!(output.status.code(), Some(1 | 2)), "{place}: {}", output.status);
        assert!(said.contains(&format!("long.toml{place}")), "{place}: {said:.300}");
        assert!(said.len() < 2000, "{place}: {} bytes: {said:.300}", said.len());
        println!("{place}: peak {:?}", group.peak());
        assert_eq!(group.killed(), 0);
    }
}

/// Invalid requests are refused, and clients with endless requests do not block others.
/// Battery: S8
#[test]
fn hostile_connections_harm_nobody() {
    if !require_root("hostile_connections_harm_nobody") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let device = lab.receiver().device.clone();
    let words = [
        "count",
        "-i",
        &device,
        "--engine",
        "packet",
        "--json",
        "--interval",
        "0.1",
        "--rules-capacity",
        "10",
    ];
    let child = capture(&lab, &words).unwrap();
    let socket = socket_of(&child).unwrap();
    let deep = ["[".repeat(200_000), "\n".to_owned()].concat();
    let rule =
        r#"{"version":1,"ask":{"add":{"rules":[{"id":0,"conditions":[],"action":"pass","then":"stop"}]}}}"#;
    let range = r#"{"version":1,"ask":{"add":{"rules":[{"id":1,"conditions":[{"test":{"port":[{"start":9,"end":1}]}}],"action":"pass","then":"stop"}]}}}"#;
    for (line, reason) in [
        ("\n", "invalid request"),
        ("{}\n", "version"),
        ("\u{0}\u{1}\u{7f}\n", "invalid request"),
        (&deep, "invalid request"),
        (r#"{"version":9,"ask":"status"}"#, "version 1"),
        (r#"{"version":1,"ask":"reboot"}"#, "invalid request"),
        (rule, "ids begin at 1"),
        (range, "ends before it begins"),
        (r#"{"version":1,"ask":{"exact":{"from":{"device":99,"at":4294967295}}}}"#, r#""rules":[]"#),
        (r#"{"version":1,"ask":{"exact":{"from":{"device":0,"at":4294967295}}}}"#, r#""rules":[]"#),
    ] {
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.write_all(line.as_bytes()).unwrap();
        stream.write_all(b"\n").unwrap();
        let mut answer = Vec::new();
        let mut byte = [0];
        while stream.read(&mut byte).unwrap() == 1 && byte != *b"\n" {
            answer.push(byte[0]);
        }
        let answer = String::from_utf8_lossy(&answer).into_owned();
        assert!(answer.contains(reason), "{}: {answer}", &line[..line.len().min(100)]);
    }
    // A line of 2 MiB that brings no rules is refused before its end; the memory of the process does not grow by it.
    let before = peak_bytes(child.pid());
    let long = [r#"{"version":1,"ask":""#, &"x".repeat(2 << 20), "\"}\n"].concat();
    for _ in 0..20 {
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        // The capture does not read the rest, so that the write fails, or the answer is followed by a reset.
        let _ = stream.write_all(long.as_bytes());
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer).into_owned();
        assert!(answer.contains("a line of more than 1048576 bytes that brings no rules"), "{answer}");
    }
    let grown = peak_bytes(child.pid()) - before;
    println!("20 lines of 2 MiB: {grown} bytes more at the peak");
    assert!(grown < 6 << 20, "{grown} bytes");
    // More half-open connections than slots, all held: another client is still answered immediately.
    let silent: Vec<UnixStream> = (0..200)
        .map(|_| {
            let mut stream = UnixStream::connect(&socket).unwrap();
            stream.write_all(b"{\"version\":").unwrap();
            stream
        })
        .collect();
    let begun = Instant::now();
    done(&lab, &child, &["stats"]);
    assert!(!timed() || begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    // The remaining ones are closed, too.
    for mut stream in silent {
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let end = stream.read(&mut [0]);
        assert!(matches!(&end, Ok(0) | Err(_)) && begun.elapsed() < LIMIT, "{end:?}");
    }
    assert!(begun.elapsed() > Duration::from_secs(5), "half-open connections have some seconds");
    send_all(&lab, &child, SENT);
    assert_eq!(column(&finish(child).unwrap(), "analysed"), SENT);
}

/// A user other than root does not find root's capture, and the error says so.
/// Battery: S8
#[test]
fn others_are_told_that_they_may_not() {
    if !require_root("others_are_told_that_they_may_not") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let device = lab.receiver().device.clone();
    let child =
        capture(&lab, &["count", "-i", &device, "--engine", "packet", "--json", "--rules-capacity", "1"])
            .unwrap();
    // A copy that other users can run.
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let copy = folder.path().join("wirelane");
    fs::copy(wirelane_binary().unwrap(), &copy).unwrap();
    let user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let pid = child.pid().to_string();
    let words = [&user[..], &[copy.to_str().unwrap(), "rules", "stats", "--pid", &pid]].concat();
    let refused = lab.spawn(&lab.receiver().namespace, &words).unwrap().finish(LIMIT).unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(refused.stderr.contains("use sudo"), "{}", refused.stderr);
    finish(child).unwrap();
}

/// A set with tens of thousands of exact-match rules is loaded in one request, and takes effect at once.
#[test]
fn a_large_set_is_loaded_at_once() {
    if !require_root("a_large_set_is_loaded_at_once") {
        return;
    }
    const RULES: u32 = 50_000;
    let folder = tempfile::tempdir().unwrap();
    let mut rows = "id,src,action\n".to_owned();
    for number in 0..RULES {
        rows += &format!("{},{},drop\n", number + 1, std::net::Ipv4Addr::from_bits(0x0b00_0000 + number));
    }
    file(folder.path(), "rules.csv", &rows);
    let large = file(folder.path(), "large.toml", "[[exact]]\nfile = \"rules.csv\"\n");
    let lab = Lab::new(1).unwrap();
    let device = lab.receiver().device.clone();
    let words = [
        "count",
        "-i",
        &device,
        "--engine",
        "packet",
        "--direction",
        "rx",
        "--json",
        "--interval",
        "0.1",
        "--rules-capacity",
        "100000",
    ];
    let child = capture(&lab, &words).unwrap();
    done(&lab, &child, &["load", &large]);
    assert_eq!(column(&stats(&lab, &child), "exact"), u64::from(RULES));
    let listed = done(&lab, &child, &["list", "--exact", "--json"]);
    assert_eq!(listed.lines.len(), RULES as usize + 1);
    // The capacity suffices for another set of this size beside it.
    done(&lab, &child, &["load", &large]);
    let now = stats(&lab, &child);
    assert_eq!((column(&now, "exact"), column(&now, "version")), (u64::from(RULES), 3));
    finish(child).unwrap();
}
