//! Properties that hold on every supported kernel, on this one as well as on those that `make test-kernels` boots:
//! numbered packets are accounted for one by one, a killed process leaves nothing behind, and a feature that a kernel
//! lacks is refused by name.
//!
//! Inside such a guest there is a real driver too: a virtio-net device with several queues, whose other end is a tap
//! device of the host. `WIRELANE_PEER_DEVICE` names the device, and `WIRELANE_PEER` the serial line on which the host
//! receives requests to send and reports the packets that have arrived.

mod bench;
mod beside;
mod card_clocks;
mod card_losses;
mod cards;
mod clock_slew;
mod clock_steps;
pub(crate) mod device_wide;
mod evaluated;
mod flow_caches;
mod jumbo;
mod libpcap;
mod offloads;
mod plugin_rules;
mod rss_key;
mod rss_table;
mod rules;
mod rules_egress_devices;
mod rules_patterns;
mod rules_plugins;
mod rules_sets;
mod rules_wide;
mod streams;
mod zero_copy;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use wirelane_tests::{
    Child, Lab, LabOptions, Signal, bpf_objects, kernel_version, require_root, wait_for_bpf_objects,
    wirelane_binary,
};

use bench::{Bench, Guest, field, kill, kill_process, last_of, processes, start};

/// An emulated machine is a hundred times slower than a real one.
const LIMIT: Duration = Duration::from_secs(240);
/// Programs on tc are attached by link (TCX) since this kernel; earlier kernels use filters.
const TCX: (u32, u32) = (6, 6);
/// Packets of a run: fewer than the smallest buffer on the way holds without a reader.
const PACKETS: u64 = 5000;
const FRAME: u64 = 60;

/// `count` and `record` on the same device at once, as two groups of one instance; both must account for
/// every packet, and every number must be in the recording exactly once.
fn account_for_every_packet(bench: &dyn Bench, hook: &str, method: &str) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("numbered.pcapng");
    let options = ["-i", bench.device(), "--hook", hook, "--json"];
    let packets = PACKETS.to_string();
    let mut counter = bench.wirelane(&[&["count"], &options[..]].concat());
    counter.wait_ready(LIMIT).unwrap();
    let recording = ["record", "-w", file.to_str().unwrap(), "--packets", &packets];
    let mut recorder = bench.wirelane(&[&recording, &options[..]].concat());
    recorder.wait_ready(LIMIT).unwrap();

    let sent = bench.send(PACKETS, method);
    let recorded = if sent == PACKETS {
        // The recorder ends by itself with the last packet, so all of them have passed the hook.
        recorder.finish(LIMIT).unwrap()
    } else {
        // Frames of the kernel's generator are at most queued at the receiver.
        std::thread::sleep(Duration::from_secs(1));
        recorder.terminate(LIMIT).unwrap()
    };
    assert!(recorded.status.success(), "{hook} {method}: {}", recorded.stderr);
    let counted = counter.terminate(LIMIT).unwrap();
    assert!(counted.status.success(), "{hook} {method}: {}", counted.stderr);

    let last = counted.last_json().unwrap();
    for column in ["seen", "delivered", "analysed"] {
        assert_eq!(field(&last, column), sent, "{hook} {method}: {column} of {last}");
    }
    for column in ["filtered", "absorbed", "shed", "lost"] {
        assert_eq!(field(&last, column), 0, "{hook} {method}: {column} of {last}");
    }
    assert_eq!(field(&last, "bytes"), sent * FRAME, "{hook} {method}");
    for parts in ["virtual_devices", "workers"] {
        let sum: u64 = last[parts].as_array().unwrap().iter().map(|part| field(part, "analysed")).sum();
        assert_eq!(sum, sent, "{hook} {method}: {parts} of {last}");
    }
    let numbers = numbers(&file);
    assert!(numbers.values().all(|times| *times == 1), "{hook} {method}: a packet was recorded twice");
    assert_eq!(numbers.len() as u64, sent, "{hook} {method}: packets missing from the recording");
    assert!(numbers.keys().all(|number| *number < PACKETS), "{hook} {method}: a number that was not sent");
    last
}

/// The numbers of the packets in a file, which follow the magic of `send`, and how often each occurs.
fn numbers(file: &Path) -> BTreeMap<u64, u32> {
    const MAGIC: &[u8] = b"WLn1";
    let mut found = BTreeMap::new();
    for window in fs::read(file).unwrap().windows(MAGIC.len() + size_of::<u64>()) {
        if let Some(number) = window.strip_prefix(MAGIC) {
            *found.entry(u64::from_be_bytes(number.try_into().unwrap())).or_default() += 1;
        }
    }
    found
}

fn queues_used(last: &Value) -> usize {
    let lines = last["virtual_devices"].as_array().unwrap();
    lines.iter().filter(|line| field(line, "seen") > 0).count()
}

/// Assigns all CPUs to every TX queue: a packet socket's frames go to the queue of the sender's CPU, and if several
/// queues have that CPU, the hash chooses (net/core/dev.c, get_xps_queue).
fn spread_by_hash(lab: &Lab, queues: u32) {
    let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get().min(32));
    let mask = (1u64 << cpus) - 1;
    let device = &lab.sender().device;
    for queue in 0..queues {
        let set = format!("echo {mask:x} > /sys/class/net/{device}/queues/tx-{queue}/xps_cpus");
        lab.exec(&lab.sender().namespace, &["sh", "-c", &set]).unwrap();
    }
}

fn veth(queues: u32, hook: &str) {
    let test = format!("veth with {queues} queues by {hook}");
    if !require_root(&test) {
        return;
    }
    let lab = Lab::new(queues).unwrap();
    if queues > 1 {
        spread_by_hash(&lab, queues);
    }
    let last = account_for_every_packet(&lab, hook, "socket");
    // tc does not see the RX queues of a veth.
    if queues > 1 && !matches!(hook, "tc" | "clsact") {
        assert!(queues_used(&last) > 1, "all packets on one queue: {last}");
    }
    if hook == "native" {
        // Generated in the kernel, without the sender's stack. The frames arrive on the queue of the sender's CPU.
        account_for_every_packet(&lab, hook, "kernel");
    }
}

#[test]
fn veth_one_queue_native() {
    veth(1, "native");
}

#[test]
fn veth_one_queue_generic() {
    veth(1, "generic");
}

#[test]
fn veth_one_queue_tc() {
    veth(1, "tc");
}

#[test]
fn veth_four_queues_native() {
    veth(4, "native");
}

#[test]
fn veth_four_queues_generic() {
    veth(4, "generic");
}

#[test]
fn veth_four_queues_tc() {
    veth(4, "tc");
}

/// A clsact filter, also on kernels with TCX links.
#[test]
fn veth_four_queues_clsact() {
    veth(4, "clsact");
}

fn virtio(hook: &str) {
    let test = format!("virtio_net by {hook}");
    let Some(guest) = Guest::find(&test) else { return };
    let last = account_for_every_packet(&guest, hook, "socket");
    assert!(queues_used(&last) > 1, "all packets on one queue: {last}");
}

#[test]
fn virtio_net_native() {
    virtio("native");
}

#[test]
fn virtio_net_generic() {
    virtio("generic");
}

#[test]
fn virtio_net_tc() {
    virtio("tc");
}

/// Received and transmitted packets of a real driver's device are counted separately.
#[test]
fn virtio_net_both_directions() {
    let Some(guest) = Guest::find("virtio_net in both directions") else { return };
    let words = ["count", "-i", guest.device(), "--hook", "tc", "--direction", "both", "--json"];
    let mut counter = guest.wirelane(&words);
    counter.wait_ready(LIMIT).unwrap();
    guest.send(500, "socket");
    let words = ["send", "-i", guest.device(), "--packets", "300", "--rate", "2k", "--method", "socket"];
    let sent = guest.wirelane(&words).finish(LIMIT).unwrap();
    assert!(sent.status.success(), "{}", sent.stderr);
    let last = last_of(counter, 800);
    let lines = last["virtual_devices"].as_array().unwrap();
    let seen = |egress: bool| -> u64 {
        lines
            .iter()
            .filter(|line| (line["direction"] == "egress") == egress)
            .map(|line| field(line, "seen"))
            .sum()
    };
    assert_eq!((seen(false), seen(true)), (500, 300), "{last}");
    assert_eq!((field(&last, "analysed"), field(&last, "lost")), (800, 0), "{last}");
}

/// The stack removes the tag before tc sees the packet: the recording has it again.
#[test]
fn virtio_net_vlan_tags() {
    let Some(guest) = Guest::find("virtio_net with VLAN tags") else { return };
    let folder = tempfile::tempdir().unwrap();
    for hook in ["native", "generic", "tc"] {
        let file = folder.path().join(hook);
        let words = ["record", "-i", guest.device(), "--hook", hook, "-w", file.to_str().unwrap(), "--json"];
        let mut recorder = guest.wirelane(&[&words[..], &["--packets", "200"]].concat());
        recorder.wait_ready(LIMIT).unwrap();
        guest.send_with(200, "socket", "--vlan 7");
        assert!(recorder.finish(LIMIT).unwrap().status.success(), "{hook}");
        assert_eq!(numbers(&file).len(), 200, "{hook}");
        // TPID, TCI, and the EtherType of IPv4 after them.
        let tag = [0x81, 0x00, 0x00, 0x07, 0x08, 0x00];
        let tags = fs::read(&file).unwrap().windows(tag.len()).filter(|window| *window == tag).count();
        assert_eq!(tags, 200, "{hook}");
    }
}

/// A capture with polling threads accounts for every packet, and leaves no thread behind.
#[test]
fn veth_polling_threads() {
    if !require_root("veth_polling_threads") {
        return;
    }
    let lab = Lab::new(2).unwrap();
    let threaded = || {
        let path = format!("/sys/class/net/{}/threaded", lab.device());
        lab.exec(&lab.receiver().namespace, &["cat", &path]).unwrap().trim().to_owned()
    };
    assert_eq!(threaded(), "0");
    count_with_polling(&lab, "threaded", || assert_eq!(threaded(), "1"));
    assert_eq!(threaded(), "0");
}

/// Counts the packets sent while queues are polled in this mode; `look` inspects the device in between.
fn count_with_polling(bench: &dyn Bench, polling: &str, look: impl FnOnce()) {
    let words = ["count", "-i", bench.device(), "--hook", "native", "--json", "--polling", polling];
    let mut counter = bench.wirelane(&words);
    counter.wait_ready(LIMIT).unwrap();
    look();
    let sent = bench.send(PACKETS, "socket");
    let last = last_of(counter, sent);
    assert_eq!((field(&last, "seen"), field(&last, "lost")), (sent, 0), "{polling}: {last}");
}

/// Settings of a device that tuning may change: queues, the CPUs of their interrupts, threads, offloads.
fn settings(bench: &dyn Bench) -> Value {
    let seen = bench.wirelane(&["devices", bench.device(), "--json"]).finish(LIMIT).unwrap().json().unwrap();
    let irqs: Vec<&Value> = seen[0]["rx_queues"].as_array().unwrap().iter().map(|one| &one["irqs"]).collect();
    let cpus: Vec<&Value> = irqs.iter().map(|irqs| &irqs[0]["cpus"]).collect();
    let features = Command::new("ethtool").args(["-k", bench.device()]).output().unwrap().stdout;
    let features = String::from_utf8(features).unwrap();
    let rss = Command::new("ethtool").args(["-x", bench.device()]).output().unwrap().stdout;
    let rss = String::from_utf8(rss).unwrap();
    serde_json::json!({ "cpus": cpus, "threaded": seen[0]["threaded_napi"], "features": features, "rss": rss })
}

/// Interrupts of a real driver are bound to other CPUs than the worker, with polling threads and without, and restored.
#[test]
fn virtio_net_polling_is_put_back() {
    let Some(guest) = Guest::find("virtio_net_polling_is_put_back") else { return };
    let before = settings(&guest);
    assert!(before["cpus"].as_array().unwrap().iter().all(Value::is_string), "no interrupts: {before}");
    let bound_apart = |threaded: bool| {
        let now = settings(&guest);
        assert_eq!(now["threaded"], threaded, "{now}");
        // One worker on one of the two CPUs, all queues on the other.
        let cpus = now["cpus"].as_array().unwrap();
        assert!(cpus.iter().all(|one| *one == cpus[0] && one.as_str().unwrap().len() == 1), "{now}");
    };
    count_with_polling(&guest, "threaded", || bound_apart(true));
    assert_eq!(settings(&guest), before);
    count_with_polling(&guest, "interrupt", || bound_apart(false));
    assert_eq!(settings(&guest), before);
    // A kernel with busy-polling threads (6.19) uses them; on an older one the error names that version.
    let words = ["count", "-i", guest.device(), "--hook", "native", "--polling", "busy", "--duration", "1"];
    let busy = guest.wirelane(&words).finish(LIMIT).unwrap();
    let has_them = kernel_version().unwrap() >= (6, 19);
    assert_eq!(busy.status.success(), has_them, "{}", busy.stderr);
    assert!(has_them || busy.stderr.contains("6.19"), "{}", busy.stderr);
    assert!(!busy.stderr.contains("put back"), "{}", busy.stderr);
    assert_eq!(settings(&guest), before);

    let polling = || {
        let words = ["count", "-i", guest.device(), "--json", "--polling", "threaded"];
        let mut capture = guest.wirelane(&words);
        capture.wait_ready(LIMIT).unwrap();
        assert_ne!(settings(&guest), before);
        capture
    };
    // The broker restores the settings.
    kill(polling());
    let deadline = Instant::now() + LIMIT;
    while settings(&guest) != before {
        assert!(Instant::now() < deadline, "nobody puts it back: {}", settings(&guest));
        std::thread::sleep(Duration::from_millis(100));
    }
    // If the broker is killed too, the next command restores them.
    let capture = polling();
    for broker in processes("wl-broker") {
        kill_process(broker);
    }
    kill(capture);
    assert_ne!(settings(&guest), before, "nobody could put it back");
    let restored = guest.wirelane(&["tune", "restore", "-i", guest.device()]).finish(LIMIT).unwrap();
    assert!(restored.status.success(), "{}", restored.stderr);
    assert_eq!(settings(&guest), before);
}

/// A real driver's queues, interrupts and offloads are changed as planned, and changed back.
#[test]
fn virtio_net_is_tuned_and_restored() {
    let Some(guest) = Guest::find("virtio_net_is_tuned_and_restored") else { return };
    tune_and_restore(&guest);
    // With a table that an administrator has set, which prevents a change of the queues.
    let table = |words: &[&str]| {
        let set = Command::new("ethtool").args(["-X", guest.device()]).args(words).status().unwrap();
        assert!(set.success(), "ethtool -X {words:?}");
    };
    table(&["weight", "3", "1", "0", "0"]);
    tune_and_restore(&guest);
    table(&["default"]);
}

fn tune_and_restore(guest: &Guest) {
    let before = settings(guest);
    let plan = guest.wirelane(&["tune", "-i", guest.device(), "--json"]).finish(LIMIT).unwrap();
    let plan = plan.json().unwrap();
    let changes = plan[0]["changes"].as_array().unwrap();
    assert!(changes.iter().any(|change| change["what"]["setting"] == "channels"), "{changes:?}");
    assert_eq!(settings(guest), before, "a plan changes nothing");
    let applied = guest.wirelane(&["tune", "apply", "-i", guest.device(), "--json"]).finish(LIMIT).unwrap();
    assert!(applied.status.success(), "{}", applied.stderr);
    let now = settings(guest);
    // Two CPUs: one queue on the one, its worker on the other.
    assert_eq!(now["cpus"].as_array().unwrap().len(), 1, "{now}");
    assert_eq!(now["threaded"], true, "{now}");
    let worker = applied.last_json().unwrap()["workers"][0]["core"].clone();
    assert_ne!(now["cpus"][0].as_str().unwrap(), worker.to_string(), "{now}");

    let restored =
        guest.wirelane(&["tune", "restore", "-i", guest.device(), "--json"]).finish(LIMIT).unwrap();
    assert!(restored.status.success(), "{}", restored.stderr);
    assert_eq!(settings(guest), before, "{:?}", restored.lines);
}

/// The kernel itself removes a killed process from the device: its slot is free for another, the others go on, and with
/// the last one everything is removed.
/// Battery: F10
#[test]
fn killed_processes_leave_nothing() {
    killed("native");
}

/// The same with a filter, which the kernel would keep.
#[test]
fn killed_processes_leave_no_filter() {
    killed("clsact");
}

fn killed(hook: &str) {
    if !require_root(&format!("killed processes, {hook}")) {
        return;
    }
    let lab = Lab::with(&LabOptions { queues: 2, alone: true, ..LabOptions::default() }).unwrap();
    let before = bpf_objects();
    let words = ["count", "-i", lab.device(), "--hook", hook, "--json"];
    let begin = || {
        let mut child = lab.wirelane(&words);
        child.wait_ready(LIMIT).unwrap();
        child
    };
    let (first, second) = (begin(), begin());
    let with_two = bpf_objects();
    lab.send(100, "socket");
    first.signal(Signal::Kill).unwrap();
    assert!(!first.finish(LIMIT).unwrap().status.success());
    lab.send(100, "socket");
    // In the slot of the killed one, with rings of its own.
    let third = begin();
    assert_eq!(bpf_objects().programs, with_two.programs, "the third process did not join");
    lab.send(100, "socket");
    let last = second.terminate(LIMIT).unwrap().last_json().unwrap();
    assert_eq!(field(&last, "analysed"), 300, "{last}");
    assert_eq!(field(&last, "seen"), 300, "{last}");
    third.signal(Signal::Kill).unwrap();
    assert!(!third.finish(LIMIT).unwrap().status.success());
    assert_eq!(wait_for_bpf_objects(&before, LIMIT), before);
}

/// `wirelane devices` names exactly the features that this kernel lacks.
/// Battery: F9
#[test]
fn missing_features_are_named() {
    if !require_root("missing_features_are_named") {
        return;
    }
    let finished =
        Child::spawn(Command::new(wirelane_binary().unwrap()).args(["devices", "--json"])).unwrap();
    let finished = finished.finish(LIMIT).unwrap();
    assert!(finished.status.success(), "{}", finished.stderr);
    let kernel = finished.last_json().unwrap()["kernel"].clone();
    let feature = |name: &str| {
        let features = kernel["features"].as_array().unwrap_or_else(|| panic!("no features in {kernel}"));
        features
            .iter()
            .find(|feature| feature["feature"] == name)
            .unwrap_or_else(|| panic!("no {name}"))
            .clone()
    };
    for name in ["version", "btf", "xdp"] {
        assert_eq!(feature(name)["present"], true, "{name}");
    }
    let tcx = feature("tcx");
    assert_eq!(tcx["present"], kernel_version().unwrap() >= TCX, "{tcx}");
    assert_eq!(tcx["note"].as_str().unwrap().is_empty(), tcx["present"] == true, "{tcx}");
}
