//! Clocks of timestamps: the kernel's for each packet or each batch, or the card's.

use std::collections::BTreeMap;
use std::mem::offset_of;
use std::time::{Duration, SystemTime};

use libbpf_rs::query::{ProgInfoIter, ProgInfoQueryOptions};
use libbpf_rs::{MapCore as _, MapFlags, MapHandle};
use wirelane::{Builder, Capture, Clock, Direction, HookChoice, Selector};
use wirelane_bpf::instance::{Group, Instance, group_flags};
use wirelane_tests::numbers::{column, drain, last_of, number_of, wirelane};
use wirelane_tests::{Lab, LabOptions, kernel_version, require_root, test_run};

const QUIET: Duration = Duration::from_secs(1);
const PACKETS: u64 = 20_000;

fn open(lab: &Lab, clock: Clock, hook: HookChoice) -> wirelane::Result<Capture> {
    let end = lab.receiver();
    let selectors = [end.device.parse::<Selector>().unwrap()];
    lab.enter(&end.namespace, || {
        Builder::new(selectors).direction(Direction::Rx).clock(clock).hook(hook).ring_size(16 << 20).open()
    })
    .unwrap()
}

fn utc_ns() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos() as u64
}

/// Timestamps, with their clock, of numbered packets in the order of their numbers; all of them within the time of
/// sending.
fn stamps(lab: &Lab, mut captures: Vec<Capture>) -> Vec<Vec<(Clock, u64)>> {
    let before = utc_ns();
    let (end, packets) = (lab.sender(), PACKETS.to_string());
    let words = ["send", "-i", &end.device, "--packets", &packets, "--method", "kernel", "--json"];
    let sent =
        last_of(&wirelane(lab, &end.namespace, &words).unwrap().finish(Duration::from_secs(20)).unwrap())
            .unwrap();
    assert_eq!(column(&sent, "sent"), PACKETS);
    let mut all = Vec::new();
    for capture in &mut captures {
        let mut worker = capture.workers().remove(0);
        let time = worker.timebase();
        let mut stamps = BTreeMap::new();
        drain(&mut worker, QUIET, |record| {
            // The namespaces' own stacks may send packets too.
            if let Some(number) = number_of(record) {
                stamps.insert(number, (record.clock(), record.header().ts_ns, time.utc_ns(record)));
            }
        })
        .unwrap();
        let after = utc_ns();
        assert_eq!(stamps.len() as u64, PACKETS);
        // The offset to UTC is known to less than a millisecond, with any scheduling of its readings.
        let span = before - 1_000_000..after + 1_000_000;
        assert!(stamps.values().all(|(_, _, utc)| span.contains(utc)));
        all.push(stamps.into_values().map(|(clock, ts_ns, _)| (clock, ts_ns)).collect());
    }
    all
}

#[test]
fn a_batch_shares_one_reading_and_the_record_says_so() {
    if !require_root("a_batch_shares_one_reading_and_the_record_says_so") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    if kernel_version().unwrap() < (6, 11) {
        let error = open(&lab, Clock::Batch, HookChoice::Native).unwrap_err().to_string();
        assert!(error.contains("6.11") && error.contains("--clock packet"), "{error}");
        return;
    }
    // A veth without an XDP program accepts live frames only if its NAPI is on, which GRO ensures.
    let end = lab.receiver();
    lab.exec(&end.namespace, &["ethtool", "-K", &end.device, "gro", "on"]).unwrap();
    for hook in [HookChoice::Native, HookChoice::Generic, HookChoice::Tc] {
        let stamps = stamps(&lab, vec![open(&lab, Clock::Batch, hook).unwrap()]).remove(0);
        assert!(stamps.iter().all(|(clock, _)| *clock == Clock::Batch), "{hook:?}");
        assert!(stamps.is_sorted_by_key(|(_, ts_ns)| *ts_ns), "{hook:?}: time went back");
        let mut batches: BTreeMap<u64, u32> = BTreeMap::new();
        for (_, ts_ns) in &stamps {
            *batches.entry(*ts_ns).or_default() += 1;
        }
        assert!(batches.values().all(|packets| *packets <= 64), "{hook:?}: {batches:?}");
        // The generator passes on 64 frames at a time, and NAPI processes as many.
        assert!(batches.values().any(|packets| *packets > 1), "{hook:?}: no reading was shared");
    }
}

#[test]
fn one_group_that_wants_a_reading_per_packet_has_it_for_all() {
    if !require_root("one_group_that_wants_a_reading_per_packet_has_it_for_all")
        || kernel_version().unwrap() < (6, 11)
    {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let both = [Clock::Batch, Clock::Packet].map(|clock| open(&lab, clock, HookChoice::Native).unwrap());
    let stamps = stamps(&lab, both.into());
    assert_eq!(stamps[0], stamps[1]);
    assert!(stamps[0].iter().all(|(clock, _)| *clock == Clock::Packet));
}

#[test]
fn a_device_without_a_clock_is_refused() {
    if !require_root("a_device_without_a_clock_is_refused") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    for hook in [HookChoice::Native, HookChoice::Generic, HookChoice::Tc] {
        let error = open(&lab, Clock::Card, hook).unwrap_err().to_string();
        assert!(error.contains(&lab.receiver().device) && error.contains("--clock packet"), "{error}");
    }
}

/// A card with a clock is not available in a test. A test run of the capture program sets the timestamp that the card
/// would leave in the socket buffer.
#[test]
fn the_cards_stamp_stands_in_the_record() {
    if !require_root("the_cards_stamp_stands_in_the_record") {
        return;
    }
    // Devices of two namespaces may have the same index: the program is found by it, so no other lab may exist.
    let lab = Lab::with(&LabOptions { alone: true, ..LabOptions::default() }).unwrap();
    let mut capture = open(&lab, Clock::Packet, HookChoice::Tc).unwrap();
    let program = ProgInfoIter::with_query_opts(ProgInfoQueryOptions::default().include_map_ids(true))
        .filter(|program| program.name.to_string_lossy() == "wirelane_in")
        .find(|program| {
            let Some(instance) = map_of(&program.map_ids, "wl_instance") else { return false };
            let value = instance.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).unwrap().unwrap();
            let ifindex = u32_at(&value, offset_of!(Instance, ifindex));
            let ours = lab.exec(
                &lab.receiver().namespace,
                &["cat", &format!("/sys/class/net/{}/ifindex", lab.receiver().device)],
            );
            ours.unwrap().trim() == ifindex.to_string() && value[0] == 1
        })
        .expect("the capture's program");
    let groups = map_of(&program.map_ids, "wl_groups").unwrap();
    let mut group = groups.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).unwrap().unwrap();
    let flags = offset_of!(Group, flags);
    let wanted = u32_at(&group, flags) | group_flags::CARD_CLOCK;
    group[flags..flags + 4].copy_from_slice(&wanted.to_ne_bytes());
    groups.update(&0u32.to_ne_bytes(), &group, MapFlags::ANY).unwrap();

    for stamp in [1_234_567_890_123u64, 0] {
        // struct __sk_buff of linux/bpf.h: hwtstamp stands last, at byte 184.
        let mut context = [0; 192];
        context[184..].copy_from_slice(&stamp.to_ne_bytes());
        test_run(program.id, &[0x11; 60], &context).unwrap();
    }
    let mut worker = capture.workers().remove(0);
    let mut stamps = Vec::new();
    drain(&mut worker, QUIET, |record| stamps.push((record.clock(), record.header().ts_ns))).unwrap();
    assert_eq!(stamps.len(), 2);
    assert_eq!(stamps[0], (Clock::Card, 1_234_567_890_123));
    assert_eq!(stamps[1].0, Clock::Packet, "a packet that the card did not stamp has the kernel's time");
}

fn map_of(ids: &[u32], name: &str) -> Option<MapHandle> {
    ids.iter().filter_map(|id| MapHandle::from_map_id(*id).ok()).find(|map| map.name() == name)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())
}
