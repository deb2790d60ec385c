//! tc by clsact filters, as kernels before Linux 6.6 need it: exact, shared, and gone with the processes that made
//! them, however these end; other people's filters and qdiscs stay. `tests/kernels.rs` runs it on such a kernel.

use std::fs;
use std::time::{Duration, Instant};

use wirelane_tests::numbers::{LIMIT, capture, column, finish, send, wirelane};
use wirelane_tests::{
    Child, Lab, LabOptions, Signal, bpf_objects, brokers, require_root, settled_bpf_objects,
    wait_for_bpf_objects,
};

const BOTH: [&str; 4] = ["--hook", "clsact", "--direction", "both"];

fn alone() -> Lab {
    Lab::with(&LabOptions { queues: 2, alone: true, ..LabOptions::default() }).unwrap()
}

fn count(lab: &Lab, options: &[&str]) -> Child {
    capture(lab, &[&["count", "-i", &lab.receiver().device, "--json"], options].concat()).unwrap()
}

fn kill(child: Child) {
    child.signal(Signal::Kill).unwrap();
    assert!(!child.finish(LIMIT).unwrap().status.success());
}

/// Output of tc(8) for the receiver: the qdisc beside its queues, and the filters of both directions.
fn shown(lab: &Lab) -> String {
    let end = lab.receiver();
    let tc = |words: &[&str]| lab.exec(&end.namespace, &[&["tc"], words].concat()).unwrap();
    let qdiscs = tc(&["qdisc", "show", "dev", &end.device]);
    let qdiscs: String =
        qdiscs.lines().filter(|line| line.contains("ffff:")).map(|line| format!("{line}\n")).collect();
    let filters = |direction| tc(&["filter", "show", "dev", &end.device, direction]);
    qdiscs + &filters("ingress") + &filters("egress")
}

fn tc(lab: &Lab, words: &str) {
    let all = format!("{words} dev {}", lab.receiver().device);
    // "qdisc add" and "filter add" take the device after the verb.
    let (head, tail) = all.split_once(" add ").expect("something is added");
    let (tail, device) = tail.rsplit_once(" dev ").expect("the device is last");
    let all = format!("tc {head} add dev {device} {tail}");
    lab.exec(&lab.receiver().namespace, &all.split_whitespace().collect::<Vec<_>>()).unwrap();
}

fn wait_until_shown(lab: &Lab, expected: &str) {
    let start = Instant::now();
    while shown(lab) != expected && start.elapsed() < LIMIT {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(shown(lab), expected);
}

#[test]
fn both_directions_count_exactly_and_leave_nothing() {
    if !require_root("both_directions_count_exactly_and_leave_nothing") {
        return;
    }
    let lab = alone();
    let before = settled_bpf_objects();
    let child = count(&lab, &BOTH);
    assert!(shown(&lab).contains("wirelane_clsact"), "{}", shown(&lab));
    send(&lab, 5000, &["--rate", "50k"]).unwrap();
    let last = finish(child).unwrap();
    assert_eq!((column(&last, "seen"), column(&last, "analysed"), column(&last, "lost")), (5000, 5000, 0));
    // Immediately: the command ends after its broker.
    assert_eq!(shown(&lab), "");
    assert!(brokers(&lab).is_empty());
    assert_eq!(wait_for_bpf_objects(&before, LIMIT), before);
}

#[test]
fn processes_share_one_filter_and_the_last_one_removes_it() {
    if !require_root("processes_share_one_filter_and_the_last_one_removes_it") {
        return;
    }
    let lab = alone();
    let before = settled_bpf_objects();
    let first = count(&lab, &BOTH);
    let with_one = settled_bpf_objects();
    // It replaces the programs for one group by those for several.
    let second = count(&lab, &BOTH);
    let with_two = settled_bpf_objects();
    assert_eq!(
        with_two.programs.len(),
        with_one.programs.len(),
        "the second process has programs of its own"
    );
    send(&lab, 1000, &[]).unwrap();
    kill(first);
    send(&lab, 1000, &[]).unwrap();
    let third = count(&lab, &BOTH);
    assert_eq!(bpf_objects().programs, with_two.programs, "the third process loaded programs of its own");
    send(&lab, 1000, &[]).unwrap();
    let last = finish(second).unwrap();
    assert_eq!((column(&last, "analysed"), column(&last, "lost")), (3000, 0));
    assert!(shown(&lab).contains("wirelane_clsact"), "the third process still captures");
    send(&lab, 500, &[]).unwrap();
    let last = finish(third).unwrap();
    assert_eq!((column(&last, "analysed"), column(&last, "lost")), (1500, 0));
    wait_until_shown(&lab, "");
    assert_eq!(wait_for_bpf_objects(&before, LIMIT), before);
}

/// Battery: F2
#[test]
fn processes_killed_at_once_leave_nothing() {
    if !require_root("processes_killed_at_once_leave_nothing") {
        return;
    }
    let lab = alone();
    let before = settled_bpf_objects();
    for _ in 0..2 {
        let children = [count(&lab, &BOTH), count(&lab, &BOTH), count(&lab, &BOTH)];
        // One broker for each process, whatever it captures.
        assert_eq!(brokers(&lab).len(), 3);
        for child in &children {
            child.signal(Signal::Kill).unwrap();
        }
        drop(children);
        wait_until_shown(&lab, "");
        assert_eq!(wait_for_bpf_objects(&before, LIMIT), before);
    }
}

/// If the broker was killed too, the filter stays but does nothing, even if the capture consumed packets; any capture
/// on the device removes it.
#[test]
fn what_nobody_removed_does_nothing_and_is_healed() {
    if !require_root("what_nobody_removed_does_nothing_and_is_healed") {
        return;
    }
    let lab = alone();
    let before = settled_bpf_objects();
    for next in [["--hook", "native"], ["--hook", "clsact"]] {
        let victim = count(&lab, &["--hook", "clsact", "--exclusive"]);
        assert!(!ping(&lab), "the capture takes all packets");
        for broker in brokers(&lab) {
            lab.exec(&lab.receiver().namespace, &["kill", "-KILL", &broker.to_string()]).unwrap();
        }
        kill(victim);
        assert!(shown(&lab).contains("wirelane_clsact"), "nobody was there to remove it");
        // The kernel empties the program array that leads to the capture program a moment later.
        let start = Instant::now();
        while !ping(&lab) && start.elapsed() < LIMIT {}
        assert!(ping(&lab), "the filter still takes packets");
        let healer = count(&lab, &next);
        send(&lab, 300, &[]).unwrap();
        let last = finish(healer).unwrap();
        assert_eq!((column(&last, "analysed"), column(&last, "lost")), (300, 0), "{next:?}");
        assert_eq!(shown(&lab), "", "{next:?}");
        assert_eq!(wait_for_bpf_objects(&before, LIMIT), before);
    }
}

/// True if the receiver's stack answers.
fn ping(lab: &Lab) -> bool {
    let to = lab.receiver().address.to_string();
    lab.exec(&lab.sender().namespace, &["ping", "-c", "1", "-W", "1", &to]).is_ok()
}

#[test]
fn other_peoples_qdiscs_and_filters_stay() {
    if !require_root("other_peoples_qdiscs_and_filters_stay") {
        return;
    }
    let lab = alone();
    tc(&lab, "qdisc add clsact");
    let empty = shown(&lab);
    let child = count(&lab, &BOTH);
    finish(child).unwrap();
    assert_eq!(shown(&lab), empty, "an empty qdisc of somebody else");
    // A program (classic BPF that matches everything) at the first priority: it lets packets pass, and no filter after
    // it runs. Ours shares the priority and runs first.
    let words = ["tc", "filter", "add", "dev", &lab.receiver().device, "ingress", "prio", "1", "bpf"];
    let program = ["bytecode", "1,6 0 0 4294967295,", "flowid", "1:1"];
    lab.exec(&lab.receiver().namespace, &[&words[..], &program].concat()).unwrap();
    tc(&lab, "filter add egress prio 3 protocol ip u32 match u32 0 0 flowid 1:1");
    let theirs = shown(&lab);
    for end_well in [true, false] {
        let child = count(&lab, &BOTH);
        send(&lab, 1000, &[]).unwrap();
        if end_well {
            let last = finish(child).unwrap();
            assert_eq!((column(&last, "analysed"), column(&last, "lost")), (1000, 0));
        } else {
            kill(child);
        }
        wait_until_shown(&lab, &theirs);
    }
}

/// A qdisc that was made for us stays while others use it.
#[test]
fn a_qdisc_that_others_have_come_to_use_stays() {
    if !require_root("a_qdisc_that_others_have_come_to_use_stays") {
        return;
    }
    let lab = alone();
    let child = count(&lab, &["--hook", "clsact"]);
    tc(&lab, "filter add egress prio 3 protocol ip u32 match u32 0 0 flowid 1:1");
    finish(child).unwrap();
    let left = shown(&lab);
    assert!(left.contains("clsact") && left.contains("u32") && !left.contains("wirelane"), "{left}");
}

#[test]
fn a_filter_that_decides_first_is_named() {
    if !require_root("a_filter_that_decides_first_is_named") {
        return;
    }
    let lab = alone();
    tc(&lab, "qdisc add clsact");
    tc(&lab, "filter add ingress prio 1 protocol arp u32 match u32 0 0 flowid 1:1");
    let theirs = shown(&lab);
    let child = count(&lab, &["--hook", "clsact"]);
    send(&lab, 200, &[]).unwrap();
    let finished = child.terminate(LIMIT).unwrap();
    assert!(finished.stderr.contains("priority 1"), "{}", finished.stderr);
    assert_eq!(column(&finished.last_json().unwrap(), "analysed"), 200);
    assert_eq!(shown(&lab), theirs);
}

/// The older ingress qdisc takes the slot of clsact: it has no egress side.
#[test]
fn an_ingress_qdisc_serves_received_packets_only() {
    if !require_root("an_ingress_qdisc_serves_received_packets_only") {
        return;
    }
    let lab = alone();
    tc(&lab, "qdisc add ingress");
    let theirs = shown(&lab);
    let child = count(&lab, &["--hook", "clsact"]);
    send(&lab, 200, &[]).unwrap();
    let last = finish(child).unwrap();
    assert_eq!((column(&last, "analysed"), column(&last, "lost")), (200, 0));
    let words = ["count", "-i", &lab.receiver().device, "--hook", "clsact", "--direction", "tx"];
    let refused = wirelane(&lab, &lab.receiver().namespace, &words).unwrap().finish(LIMIT).unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(refused.stderr.contains("ingress qdisc"), "{}", refused.stderr);
    assert_eq!(shown(&lab), theirs);
}

#[test]
fn the_broker_has_one_capability_and_no_files_of_others() {
    if !require_root("the_broker_has_one_capability_and_no_files_of_others") {
        return;
    }
    let lab = alone();
    let child = count(&lab, &BOTH);
    let pids = brokers(&lab);
    let [broker] = pids[..] else { panic!("brokers {pids:?}") };
    let status = fs::read_to_string(format!("/proc/{broker}/status")).unwrap();
    for wanted in ["CapEff:\t0000000000001000", "CapPrm:\t0000000000001000", "NoNewPrivs:\t1"] {
        assert!(status.contains(wanted), "{wanted}: {status}");
    }
    let open = fs::read_dir(format!("/proc/{broker}/fd")).unwrap();
    let open = open.map(|fd| fs::read_link(fd.unwrap().path()).unwrap().display().to_string());
    let open: Vec<String> = open.collect();
    // The lock, the capturing process and the socket to it, a folder in place of standard input, output and error, and
    // the descriptors of the two filters: a netlink socket and `wl_owners` for each.
    let kinds = ["bpf-map", "net:", "pidfd", "socket:"];
    let counts = kinds.map(|kind| open.iter().filter(|file| file.contains(kind)).count());
    let folders = open.iter().filter(|file| *file == "/").count();
    assert_eq!((counts, folders, open.len()), ([2, 1, 1, 3], 3, 10), "{open:?}");
    // None of its mappings keeps rings alive: a page of constants at most.
    let maps = fs::read_to_string(format!("/proc/{broker}/maps")).unwrap();
    for mapping in maps.lines().filter(|line| line.contains("bpf-map")) {
        let (start, end) = mapping.split_whitespace().next().unwrap().split_once('-').unwrap();
        let [start, end] = [start, end].map(|address| u64::from_str_radix(address, 16).unwrap());
        assert!(end - start <= 64 * 1024, "{mapping}");
    }
    // Ctrl-C in a terminal reaches its whole process group, so the broker has a session of its own.
    let session = fs::read_to_string(format!("/proc/{broker}/stat")).unwrap();
    let session = session.split_whitespace().nth(5).unwrap().to_owned();
    assert_ne!(session, child.pid().to_string());
    finish(child).unwrap();
}
