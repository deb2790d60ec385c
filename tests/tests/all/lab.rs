//! The lab itself: properties on which the other tests rely.

use std::net::UdpSocket;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use wirelane::device::{Device, Monitor};
use wirelane_tests::{Child, Lab, LabOptions, Signal, bpf_objects, cpu_time, open_descriptors, require_root};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn counts_are_exact_and_nothing_strays() {
    if !require_root("counts_are_exact_and_nothing_strays") {
        return;
    }
    let lab = Lab::with(&LabOptions { queues: 2, mtu: 4000, links: 2, ..LabOptions::default() }).unwrap();
    let received = |link: usize| {
        let end = &lab.links[link].receiver;
        lab.enter(&end.namespace, || {
            let device = Device::open(&end.device).unwrap();
            assert_eq!((device.mtu, device.rx_queues.len()), (4000, 2));
            Monitor::open().unwrap().statistics(device.ifindex).unwrap().rx_packets
        })
        .unwrap()
    };
    let silent = [received(0), received(1)];
    sleep(SECOND);
    assert_eq!([received(0), received(1)], silent, "a packet that nobody sent");
    assert_eq!(silent, [0, 0], "packets while the links came up");

    let to = (lab.receiver().address, 9);
    lab.enter(&lab.sender().namespace, || {
        let socket = UdpSocket::bind((lab.sender().address, 0)).unwrap();
        for _ in 0..100 {
            socket.send_to(b"counted", to).unwrap();
        }
    })
    .unwrap();
    assert_eq!([received(0), received(1)], [100, 0]);
}

#[test]
fn everything_is_removed() {
    if !require_root("everything_is_removed") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let namespaces = [lab.sender().namespace.clone(), lab.receiver().namespace.clone()];
    assert!(namespaces.iter().all(|name| Path::new("/run/netns").join(name).exists()));
    let child = lab.spawn(&namespaces[0], &["sleep", "60"]).unwrap();
    let pid = child.pid();
    assert!(Path::new(&format!("/proc/{pid}")).exists());
    drop(child);
    drop(lab);
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
    assert!(namespaces.iter().all(|name| !Path::new("/run/netns").join(name).exists()));
}

#[test]
fn commands_run_in_their_namespace() {
    if !require_root("commands_run_in_their_namespace") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let receiver = lab.receiver();
    let seen = lab.exec(&receiver.namespace, &["ls", "/sys/class/net"]).unwrap();
    assert_eq!(seen.split_whitespace().collect::<Vec<_>>(), ["lo", "rx0"]);
    let error = lab.exec(&receiver.namespace, &["ls", "/no-such-path"]).unwrap_err();
    assert!(error.to_string().contains("no-such-path"), "{error}");
    // A panic inside is passed on to the test.
    let panicked = std::panic::catch_unwind(|| lab.enter(&receiver.namespace, || panic!("inside")));
    assert!(panicked.is_err());
}

#[test]
fn a_lab_alone_waits_for_the_others() {
    if !require_root("a_lab_alone_waits_for_the_others") {
        return;
    }
    let together = [Lab::new(1).unwrap(), Lab::new(1).unwrap()];
    let start = Instant::now();
    let alone = std::thread::spawn(|| Lab::with(&LabOptions { alone: true, ..LabOptions::default() }));
    sleep(SECOND / 2);
    assert!(!alone.is_finished());
    drop(together);
    alone.join().unwrap().unwrap();
    assert!(start.elapsed() >= SECOND / 2);
}

fn shell(script: &str) -> Child {
    Child::spawn(std::process::Command::new("sh").args(["-c", script])).unwrap()
}

#[test]
fn children_are_heard_and_ended() {
    let mut child = shell(
        r#"trap 'echo "{\"final\": true}"; exit 3' TERM
        echo starting; echo '{"ready": true}'; echo '{"seen": 1}'; echo 'noise' >&2
        while :; do sleep 0.05; done"#,
    );
    child.wait_ready(10 * SECOND).unwrap();
    assert_eq!(child.next_json(10 * SECOND).unwrap().unwrap()["seen"], 1);
    assert!(child.next_line(SECOND / 10).unwrap_err().to_string().contains("no line"));
    assert!(child.is_running().unwrap());
    let finished = child.terminate(10 * SECOND).unwrap();
    assert_eq!(finished.status.code(), Some(3));
    assert_eq!(finished.last_json().unwrap()["final"], true);
    assert_eq!(finished.stderr, "noise\n");
}

#[test]
fn a_child_that_fails_to_start_says_why() {
    let error = shell("echo 'the reason' >&2; exit 1").wait_ready(10 * SECOND).unwrap_err();
    assert!(error.to_string().contains("the reason"), "{error}");
    assert!(shell("sleep 60").wait_ready(SECOND / 10).is_err());
    let error = shell("exec sleep 60").finish(SECOND / 10).unwrap_err();
    assert!(error.to_string().contains("did not end"), "{error}");
}

#[test]
fn a_busy_child_is_told_from_an_idle_one() {
    let (busy, idle) = (shell("while :; do :; done"), shell("exec sleep 60"));
    sleep(SECOND / 2);
    assert!(cpu_time(busy.pid()).unwrap() >= SECOND / 20);
    assert!(cpu_time(idle.pid()).unwrap() <= SECOND / 20);
    assert!(open_descriptors(idle.pid()).unwrap() >= 3);
    busy.signal(Signal::Stop).unwrap();
    sleep(SECOND / 20);
    let stopped_at = cpu_time(busy.pid()).unwrap();
    sleep(SECOND / 5);
    assert_eq!(cpu_time(busy.pid()).unwrap(), stopped_at);
    busy.signal(Signal::Kill).unwrap();
    assert!(!busy.finish(10 * SECOND).unwrap().status.success());
}

#[test]
fn our_bpf_objects_are_seen_and_seen_to_go() {
    if !require_root("our_bpf_objects_are_seen_and_seen_to_go") {
        return;
    }
    let _lab = Lab::with(&LabOptions { alone: true, ..LabOptions::default() }).unwrap();
    let options = libbpf_rs::libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_rs::libbpf_sys::bpf_map_create_opts>() as _,
        ..Default::default()
    };
    let before = bpf_objects();
    let kind = libbpf_rs::MapType::Array;
    let map = libbpf_rs::MapHandle::create(kind, Some("wl_lab_test"), 4, 8, 1, &options).unwrap();
    let with_map = bpf_objects();
    assert_eq!(with_map.maps.difference(&before.maps).count(), 1);
    assert!(!with_map.is_empty());
    drop(map);
    let after = wirelane_tests::wait_for_bpf_objects(&before, 5 * SECOND);
    assert_eq!(after, before);
}
