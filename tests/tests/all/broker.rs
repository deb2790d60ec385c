//! The broker (`crates/wirelane-privsep/src/broker/`): one process, with the few rights that are needed later, undoes every
//! change of a capture on a device at any end of the capture, and creates the maps of named sets meanwhile.
//! Tests of clsact filters alone are in `clsact.rs`, and those of both processes killed in `tune.rs`.
//!
//! A veth device does not have interrupts of its own: the changes here are threaded NAPI and the CPUs of its threads.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use wirelane_tests::numbers::{LIMIT, capture, column, finish, last_of, send, wirelane};
use wirelane_tests::{Child, Lab, LabOptions, Signal, brokers, kernel_version, require_root};

const NOBODY: &str = "65534";
pub(super) const POLLED: [&str; 2] = ["--polling", "threaded"];

/// A lab whose receivers have NAPI instances also without an XDP program.
pub(super) fn lab_with_gro(links: u32) -> Lab {
    let lab = Lab::with(&LabOptions { queues: 2, links, ..LabOptions::default() }).unwrap();
    for link in &lab.links {
        let end = &link.receiver;
        lab.exec(&end.namespace, &["ethtool", "-K", &end.device, "gro", "on"]).unwrap();
    }
    lab
}

/// Runs a command in the receiver's namespace.
fn here(lab: &Lab, words: &[&str]) -> String {
    lab.exec(&lab.receiver().namespace, words).unwrap()
}

fn threaded(lab: &Lab, device: &str) -> String {
    here(lab, &["cat", &format!("/sys/class/net/{device}/threaded")]).trim().to_owned()
}

/// The journal of a device, as `tune status` reports it.
fn journal(lab: &Lab, device: &str) -> Option<String> {
    let words = ["tune", "status", "-i", device, "--json"];
    let status = wirelane(lab, &lab.receiver().namespace, &words).unwrap().finish(LIMIT).unwrap();
    status.json().unwrap()[0]["journal"].as_str().map(str::to_owned)
}

/// Polling, GRO, journal, qdiscs and filters of a device: everything that a capture here can change.
pub(super) fn state(lab: &Lab, device: &str) -> BTreeMap<&'static str, String> {
    let gro = here(lab, &["ethtool", "-k", device]);
    let gro = gro.lines().find(|line| line.starts_with("generic-receive-offload")).unwrap().to_owned();
    let filters = |direction| here(lab, &["tc", "filter", "show", "dev", device, direction]);
    BTreeMap::from([
        ("threaded", threaded(lab, device)),
        ("gro", gro),
        ("journal", format!("{:?}", journal(lab, device))),
        ("qdiscs", here(lab, &["tc", "qdisc", "show", "dev", device])),
        ("filters", filters("ingress") + &filters("egress")),
    ])
}

/// Waits until `look` returns `expected`.
pub(super) fn until<T: PartialEq + std::fmt::Debug>(expected: T, look: impl Fn() -> T, what: &str) {
    let end = Instant::now() + LIMIT;
    while look() != expected && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(look(), expected, "{what}");
}

pub(super) fn until_no_broker(lab: &Lab) {
    until(Vec::new(), || brokers(lab), "brokers that are left");
}

/// A `wirelane count` on these devices that is ready.
pub(super) fn count(lab: &Lab, devices: &str, options: &[&str]) -> Child {
    capture(lab, &[&["count", "-i", devices, "--json"], options].concat()).unwrap()
}

fn kill(child: Child) {
    child.signal(Signal::Kill).unwrap();
    assert!(!child.finish(LIMIT).unwrap().status.success());
}

fn signal(lab: &Lab, pid: u32, signal: &str) {
    here(lab, &["kill", &format!("-{signal}"), &pid.to_string()]);
}

pub(super) fn only_broker(lab: &Lab) -> u32 {
    let pids = brokers(lab);
    let [pid] = pids[..] else { panic!("brokers {pids:?}") };
    pid
}

/// The lines of `/proc/PID/status`, or of a thread's.
pub(super) fn status(path: &str) -> BTreeMap<String, String> {
    let text = fs::read_to_string(format!("{path}/status")).unwrap();
    let line = |line: &str| line.split_once(':').map(|(name, value)| (name.into(), value.trim().into()));
    text.lines().filter_map(line).collect()
}

/// Queue, thread, and the CPUs of that thread.
fn polling_threads(lab: &Lab, device: &str) -> Vec<(u64, u64, String)> {
    let words = ["devices", device, "--json"];
    let seen = wirelane(lab, &lab.receiver().namespace, &words).unwrap().finish(LIMIT).unwrap();
    let queues = seen.json().unwrap()[0]["rx_queues"].as_array().unwrap().clone();
    let of = |queue: &serde_json::Value| {
        let pid = queue["napi_thread"].as_u64()?;
        let cpus = status(&format!("/proc/{pid}")).remove("Cpus_allowed_list")?;
        Some((queue["queue"].as_u64()?, pid, cpus))
    };
    queues.iter().filter_map(of).collect()
}

/// True if polling threads can be identified and bound here; otherwise a message says that the test is skipped.
fn threads_can_move(test: &str) -> bool {
    let can = kernel_version().unwrap() >= (6, 8) && std::thread::available_parallelism().unwrap().get() > 1;
    if !can {
        println!("left out: {test} (no second CPU, or a kernel before 6.8, which does not tell threads)");
    }
    can
}

/// Every engine, with its changes, and every way to end.
/// Battery: F2
#[test]
fn everything_is_put_back_however_the_capture_ends() {
    if !require_root("everything_is_put_back_however_the_capture_ends") {
        return;
    }
    let lab = lab_with_gro(1);
    let before = state(&lab, "rx0");
    assert_eq!(before["threaded"], "0");
    let kinds: [&[&str]; 4] = [
        &["--hook", "native"],
        &["--hook", "clsact", "--direction", "both"],
        &["--engine", "packet"],
        &["--engine", "xsk", "--exclusive"],
    ];
    for options in kinds {
        let options = [options, &POLLED].concat();
        for end in [Signal::Terminate, Signal::Interrupt, Signal::Kill] {
            let child = count(&lab, "rx0", &options);
            assert_eq!(threaded(&lab, "rx0"), "1", "{options:?}");
            assert!(journal(&lab, "rx0").is_some(), "{options:?}");
            only_broker(&lab);
            send(&lab, 300, &["--rate", "20k"]).unwrap();
            child.signal(end).unwrap();
            let finished = child.finish(LIMIT).unwrap();
            if end == Signal::Kill {
                assert!(!finished.status.success());
                until(before.clone(), || state(&lab, "rx0"), &format!("{options:?}, killed"));
            } else {
                let last = last_of(&finished).unwrap();
                assert_eq!((column(&last, "analysed"), column(&last, "lost")), (300, 0), "{options:?}");
                // Immediately: the command ends after its broker.
                assert_eq!(state(&lab, "rx0"), before, "{options:?}, {end:?}");
                assert_eq!(brokers(&lab), [0; 0]);
                let complaints = finished.complaints();
                assert!(!complaints.iter().any(|line| line.contains("WARN")), "{options:?}: {complaints:?}");
            }
            until_no_broker(&lab);
        }
        let child = count(&lab, "rx0", &[&options[..], &["--duration", "0.3"]].concat());
        assert!(child.finish(LIMIT).unwrap().status.success());
        assert_eq!(state(&lab, "rx0"), before, "{options:?}, after its time");
    }
}

/// Without GRO, a veth device loses its NAPI instances with the program, and the kernel refuses to switch threads off:
/// the broker has to create an instance for a moment.
#[test]
fn threads_are_switched_off_where_the_program_has_gone_before() {
    if !require_root("threads_are_switched_off_where_the_program_has_gone_before") {
        return;
    }
    let lab = Lab::new(2).unwrap();
    let before = state(&lab, "rx0");
    assert!(before["gro"].ends_with("off"), "{before:?}");
    for _ in 0..3 {
        let child = count(&lab, "rx0", &[&["--hook", "native"], &POLLED[..]].concat());
        assert_eq!(threaded(&lab, "rx0"), "1");
        kill(child);
        until(before.clone(), || state(&lab, "rx0"), "what was before");
        until_no_broker(&lab);
    }
}

/// Battery: S1
#[test]
fn a_capture_that_sets_polling_has_no_rights_in_any_thread() {
    if !require_root("a_capture_that_sets_polling_has_no_rights_in_any_thread") {
        return;
    }
    let lab = lab_with_gro(1);
    for options in [&["--workers", "2"][..], &["--engine", "packet"], &["--engine", "xsk", "--exclusive"]] {
        let child = count(&lab, "rx0", &[options, &POLLED].concat());
        // Only the start of threads follows 'ready'.
        std::thread::sleep(Duration::from_millis(200));
        let tasks = fs::read_dir(format!("/proc/{}/task", child.pid())).unwrap();
        let threads: Vec<_> = tasks.map(|task| status(task.unwrap().path().to_str().unwrap())).collect();
        assert!(threads.len() >= 4, "{options:?}: {} threads", threads.len());
        for thread in &threads {
            assert!(thread["Uid"].split_whitespace().all(|id| id == NOBODY), "{thread:?}");
            assert!(thread["Gid"].split_whitespace().all(|id| id == NOBODY), "{thread:?}");
            for set in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
                assert_eq!(u64::from_str_radix(&thread[set], 16).unwrap(), 0, "{set} of {thread:?}");
            }
            assert_eq!((&*thread["NoNewPrivs"], &*thread["Seccomp"]), ("1", "2"), "{thread:?}");
        }
        assert_eq!(threaded(&lab, "rx0"), "1");
        finish(child).unwrap();
        assert_eq!(threaded(&lab, "rx0"), "0", "{options:?}");
    }
}

/// Battery: S1
#[test]
fn the_broker_has_what_it_needs_and_nothing_else() {
    if !require_root("the_broker_has_what_it_needs_and_nothing_else") {
        return;
    }
    let lab = Lab::new(2).unwrap();
    let child = count(&lab, "rx0", &[&["--hook", "native"], &POLLED[..]].concat());
    let broker = only_broker(&lab);
    let folder = format!("/proc/{broker}");
    assert_eq!(fs::read_dir(format!("{folder}/task")).unwrap().count(), 1);
    let told = status(&folder);
    // CAP_NET_ADMIN and CAP_SYS_NICE: bits 12 and 23 of linux/capability.h.
    for (set, wanted) in
        [("CapEff", 1 << 12 | 1 << 23), ("CapPrm", 1 << 12 | 1 << 23), ("CapInh", 0), ("CapAmb", 0)]
    {
        assert_eq!(u64::from_str_radix(&told[set], 16).unwrap(), wanted, "{set}: {told:?}");
    }
    assert_eq!(told["NoNewPrivs"], "1");
    // The capturing process, the socket to it, the lock; a folder in place of standard input, output and error.
    let files = fs::read_dir(format!("{folder}/fd")).unwrap();
    let files: Vec<String> =
        files.map(|fd| fs::read_link(fd.unwrap().path()).unwrap().display().to_string()).collect();
    let counts =
        ["net:", "pidfd", "socket:"].map(|kind| files.iter().filter(|file| file.contains(kind)).count());
    let folders = files.iter().filter(|file| *file == "/").count();
    assert_eq!((counts, folders, files.len()), ([1, 1, 1], 3, 6), "{files:?}");
    // None of its mappings keeps rings or programs alive.
    let maps = fs::read_to_string(format!("{folder}/maps")).unwrap();
    assert!(!maps.contains("bpf"), "{maps}");
    assert_eq!(fs::read_link(format!("{folder}/cwd")).unwrap().to_str(), Some("/"));
    // A process group and session of its own; a child of init, which reaps it.
    let group = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let fields: Vec<String> =
            stat.rsplit_once(')').unwrap().1.split_whitespace().map(str::to_owned).collect();
        (fields[2].clone(), fields[3].clone())
    };
    assert_ne!(group(broker).0, group(child.pid()).0);
    assert_ne!(group(broker).1, group(child.pid()).1);
    assert_ne!(told["PPid"], child.pid().to_string());
    // Signals that a terminal, a shell or a service manager sends to all processes.
    for ending in ["TERM", "INT", "HUP", "QUIT", "USR1", "USR2", "PIPE"] {
        signal(&lab, broker, ending);
    }
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(only_broker(&lab), broker);
    finish(child).unwrap();
    assert_eq!(threaded(&lab, "rx0"), "0");
    assert_eq!(brokers(&lab), [0; 0]);
}

/// The broker is killed first. The capture undoes what its rights allow; a confined one reports the remaining
/// changes, and the command that undoes them.
#[test]
fn without_its_broker_a_capture_does_what_it_may_and_names_the_rest() {
    if !require_root("without_its_broker_a_capture_does_what_it_may_and_names_the_rest") {
        return;
    }
    let lab = lab_with_gro(1);
    let before = state(&lab, "rx0");
    let options = [&["--hook", "clsact"], &POLLED[..]].concat();
    let child = count(&lab, "rx0", &[&options[..], &["--keep-rights"]].concat());
    signal(&lab, only_broker(&lab), "KILL");
    until_no_broker(&lab);
    let finished = child.terminate(LIMIT).unwrap();
    assert!(finished.status.success() && !finished.stderr.contains("WARN"), "{}", finished.stderr);
    assert_eq!(state(&lab, "rx0"), before);

    let child = count(&lab, "rx0", &options);
    signal(&lab, only_broker(&lab), "KILL");
    until_no_broker(&lab);
    // The capture goes on undisturbed.
    send(&lab, 500, &[]).unwrap();
    let finished = child.terminate(LIMIT).unwrap();
    assert_eq!(column(&last_of(&finished).unwrap(), "analysed"), 500);
    for part in
        ["restoring its settings: wl-broker", "wirelane tune restore -i rx0", "removing the tc filter"]
    {
        assert!(finished.stderr.contains(part), "no {part}: {}", finished.stderr);
    }
    assert_eq!(threaded(&lab, "rx0"), "1");
    assert!(state(&lab, "rx0")["filters"].contains("wirelane_clsact"));
    // The next capture on the device, with any options, cleans up.
    let next = count(&lab, "rx0", &["--hook", "clsact"]);
    assert_eq!(threaded(&lab, "rx0"), "0");
    finish(next).unwrap();
    assert_eq!(state(&lab, "rx0"), before);
}

/// A request to a stopped broker times out; the broker does its work when it continues.
#[test]
fn a_broker_that_hangs_holds_nobody_up_for_ever() {
    if !require_root("a_broker_that_hangs_holds_nobody_up_for_ever") {
        return;
    }
    let lab = Lab::new(2).unwrap();
    let before = state(&lab, "rx0");
    let child = count(&lab, "rx0", &[&["--hook", "native"], &POLLED[..]].concat());
    let broker = only_broker(&lab);
    signal(&lab, broker, "STOP");
    let finished = child.terminate(LIMIT).unwrap();
    assert!(finished.status.success(), "{}", finished.stderr);
    assert!(finished.stderr.contains("is gone or does not answer"), "{}", finished.stderr);
    assert_eq!(threaded(&lab, "rx0"), "1");
    signal(&lab, broker, "CONT");
    until_no_broker(&lab);
    assert_eq!(state(&lab, "rx0"), before);
}

#[test]
fn several_devices_and_both_kinds_of_change_have_one_broker() {
    if !require_root("several_devices_and_both_kinds_of_change_have_one_broker") {
        return;
    }
    let lab = lab_with_gro(3);
    let devices = ["rx0", "rx1", "rx2"];
    let states = || devices.map(|device| state(&lab, device));
    let before = states();
    for end in [Signal::Terminate, Signal::Kill] {
        let options = [&["--hook", "clsact", "--direction", "both"], &POLLED[..]].concat();
        let child = count(&lab, "rx0,rx1,rx2", &options);
        only_broker(&lab);
        for during in states() {
            assert_eq!(during["threaded"], "1");
            assert_eq!(during["filters"].matches("name wirelane_clsact").count(), 2, "{during:?}");
        }
        child.signal(end).unwrap();
        child.finish(LIMIT).unwrap();
        until(before.clone(), states, &format!("{end:?}"));
        until_no_broker(&lab);
    }
}

/// Each capture has its broker; shared changes are undone by the last.
/// Battery: F2
#[test]
fn the_last_of_several_captures_has_it_put_back() {
    if !require_root("the_last_of_several_captures_has_it_put_back") {
        return;
    }
    let lab = lab_with_gro(1);
    let before = state(&lab, "rx0");
    let options = [&["--hook", "clsact"], &POLLED[..]].concat();
    // One after the other; a broker whose capture has ended does not wait for the others.
    let [first, second, third] = [0; 3].map(|_| count(&lab, "rx0", &options));
    assert_eq!(brokers(&lab).len(), 3);
    kill(first);
    until(2, || brokers(&lab).len(), "brokers");
    finish(second).unwrap();
    assert_eq!(brokers(&lab).len(), 1);
    assert_eq!(threaded(&lab, "rx0"), "1");
    assert!(state(&lab, "rx0")["filters"].contains("wirelane_clsact"));
    send(&lab, 200, &[]).unwrap();
    kill(third);
    until(before.clone(), || state(&lab, "rx0"), "after the last was killed");
    until_no_broker(&lab);
    // All at once.
    for _ in 0..3 {
        let children = [0; 3].map(|_| count(&lab, "rx0", &options));
        children.iter().for_each(|child| child.signal(Signal::Kill).unwrap());
        drop(children);
        until(before.clone(), || state(&lab, "rx0"), "after all were killed");
        until_no_broker(&lab);
    }
}

/// The CPUs of threads that existed before are restored, which needs CAP_SYS_NICE; later changes by others are kept.
#[test]
fn threads_get_their_cpus_back_unless_others_have_moved_them() {
    const NAME: &str = "threads_get_their_cpus_back_unless_others_have_moved_them";
    if !require_root(NAME) || !threads_can_move(NAME) {
        return;
    }
    let lab = lab_with_gro(1);
    here(&lab, &["sh", "-c", "echo 1 > /sys/class/net/rx0/threaded"]);
    let before = polling_threads(&lab, "rx0");
    assert_eq!(before.iter().map(|(queue, ..)| *queue).collect::<Vec<_>>(), [0, 1]);
    assert!(before.iter().all(|(_, _, cpus)| cpus.parse::<usize>().is_err()), "not bound: {before:?}");
    let options = [&["--hook", "clsact", "--workers", "2"], &POLLED[..]].concat();
    for end in [Signal::Terminate, Signal::Kill] {
        let child = count(&lab, "rx0", &options);
        let during = polling_threads(&lab, "rx0");
        assert!(during.iter().all(|(_, _, cpus)| cpus.parse::<usize>().is_ok()), "{during:?}");
        child.signal(end).unwrap();
        child.finish(LIMIT).unwrap();
        until(before.clone(), || polling_threads(&lab, "rx0"), &format!("{end:?}"));
        until_no_broker(&lab);
    }
    let child = count(&lab, "rx0", &options);
    let (_, pid, bound) = polling_threads(&lab, "rx0").remove(0);
    let other = if bound == "0" { "1" } else { "0" };
    here(&lab, &["taskset", "--cpu-list", "--pid", other, &pid.to_string()]);
    let finished = child.terminate(LIMIT).unwrap();
    assert!(finished.status.success(), "{}", finished.stderr);
    let said = format!(
        "CPU of the polling thread of queue 0 was changed to {other} by another program: it is left alone"
    );
    assert!(finished.stderr.contains(&said), "{}", finished.stderr);
    until_no_broker(&lab);
    let after = polling_threads(&lab, "rx0");
    assert_eq!((&after[0].2[..], &after[1]), (other, &before[1]));
    assert_eq!((threaded(&lab, "rx0"), journal(&lab, "rx0")), ("1".into(), None));
}

#[test]
fn a_device_that_was_renamed_gets_its_settings_back() {
    if !require_root("a_device_that_was_renamed_gets_its_settings_back") {
        return;
    }
    for end in [Signal::Terminate, Signal::Kill] {
        let lab = lab_with_gro(1);
        let before = state(&lab, "rx0");
        let child = count(&lab, "rx0", &[&["--hook", "clsact"], &POLLED[..]].concat());
        // Some kernels rename only a device that is down.
        here(&lab, &["ip", "link", "set", "rx0", "down"]);
        here(&lab, &["ip", "link", "set", "rx0", "name", "uplink0"]);
        here(&lab, &["ip", "link", "set", "uplink0", "up"]);
        assert_eq!(threaded(&lab, "uplink0"), "1");
        child.signal(end).unwrap();
        child.finish(LIMIT).unwrap();
        until(before, || state(&lab, "uplink0"), &format!("{end:?}"));
        until_no_broker(&lab);
    }
}

/// Nothing is left to undo, and no warning about leftovers is printed; a new device with the same name is not touched.
#[test]
fn a_device_that_was_deleted_leaves_no_journal_and_no_broker() {
    if !require_root("a_device_that_was_deleted_leaves_no_journal_and_no_broker") {
        return;
    }
    for killed in [false, true] {
        let lab = lab_with_gro(1);
        let mut child = count(&lab, "rx0", &[&["--hook", "clsact"], &POLLED[..]].concat());
        let journal = journal(&lab, "rx0").unwrap();
        if killed {
            // So that the capture cannot end by itself.
            child.signal(Signal::Stop).unwrap();
        }
        here(&lab, &["ip", "link", "del", "rx0"]);
        here(&lab, &["ip", "link", "add", "rx0", "type", "veth", "peer", "name", "tx9"]);
        here(&lab, &["ip", "link", "set", "rx0", "up"]);
        here(&lab, &["ethtool", "-K", "rx0", "gro", "on"]);
        here(&lab, &["sh", "-c", "echo 1 > /sys/class/net/rx0/threaded"]);
        if killed {
            assert!(child.is_running().unwrap());
            kill(child);
        } else {
            let finished = child.finish(LIMIT).unwrap();
            assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
            assert!(finished.stderr.contains("device rx0 disappeared"), "{}", finished.stderr);
            assert!(!finished.stderr.contains("restoring its settings"), "{}", finished.stderr);
        }
        until_no_broker(&lab);
        assert!(!fs::exists(&journal).unwrap(), "{journal}");
        assert_eq!(threaded(&lab, "rx0"), "1", "another device");
    }
}

/// No broker if the kernel undoes all changes with the end of the capture.
#[test]
fn a_capture_that_changes_nothing_lasting_has_no_broker() {
    if !require_root("a_capture_that_changes_nothing_lasting_has_no_broker") {
        return;
    }
    let lab = Lab::new(2).unwrap();
    for options in [
        &["--hook", "native"][..],
        &["--hook", "generic", "--direction", "both"],
        &["--engine", "packet", "--workers", "2"],
        &["--engine", "xsk", "--exclusive"],
        &["--cores", "auto"],
    ] {
        let child = count(&lab, "rx0", options);
        assert_eq!(brokers(&lab), [0; 0], "{options:?}");
        finish(child).unwrap();
    }
}
