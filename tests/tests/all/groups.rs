//! `wirelane groups`: the owner and selection of each capture, with exact counts.

use std::time::{Duration, Instant};

use serde_json::Value;
use wirelane_tests::numbers::{LIMIT, capture, column, finish, send, wirelane};
use wirelane_tests::{Lab, Signal, require_root};

fn groups(lab: &Lab, namespace: &str) -> Vec<Value> {
    let finished = wirelane(lab, namespace, &["groups", "--json"]).unwrap().finish(LIMIT).unwrap();
    assert!(finished.status.success(), "{}", finished.stderr);
    let mut lines = finished.json().unwrap();
    let last = lines.pop().unwrap();
    assert_eq!((&last["final"], &last["groups"]), (&Value::Bool(true), &lines.len().into()));
    lines
}

#[test]
fn each_group_is_listed_with_its_own_ledger() {
    if !require_root("each_group_is_listed_with_its_own_ledger") {
        return;
    }
    let lab = Lab::new(2).unwrap();
    let (namespace, device) = (lab.receiver().namespace.clone(), lab.receiver().device.clone());
    assert!(groups(&lab, &namespace).is_empty());
    let all = capture(
        &lab,
        &[
            "count",
            "-i",
            &device,
            "--hook",
            "native",
            "--direction",
            "rx",
            "--workers",
            "3",
            "--balance",
            "adaptive",
            "--json",
        ],
    )
    .unwrap();
    let one =
        capture(&lab, &["count", "-i", &format!("{device}@1"), "--steering", "queue", "--json"]).unwrap();
    let out = capture(&lab, &["count", "-i", &device, "--direction", "tx", "--exclusive", "--json"]).unwrap();
    send(&lab, 2000, &[]).unwrap();

    let listed = groups(&lab, &namespace);
    let of = |pid: u32| {
        let mut found = listed.iter().filter(|group| group["pid"] == pid);
        let group = found.next().unwrap_or_else(|| panic!("no group of {pid} in {listed:?}")).clone();
        assert!(found.next().is_none(), "two groups of {pid}");
        assert_eq!((&group["device"], &group["alive"]), (&device.as_str().into(), &true.into()));
        assert_eq!(group["owner"], "wirelane");
        group
    };
    assert_eq!(listed.len(), 3);
    let group = of(all.pid());
    assert_eq!(
        (&group["workers"], &group["steering"], &group["adaptive"]),
        (&3.into(), &"flow".into(), &true.into())
    );
    assert_eq!(group["queues"], serde_json::json!([0, 1]));
    let seen_by_all = column(&group["counters"], "seen");
    let group = of(one.pid());
    assert_eq!((&group["queues"], &group["steering"]), (&serde_json::json!([1]), &"queue".into()));
    let seen_by_one = column(&group["counters"], "seen");
    let group = of(out.pid());
    assert_eq!((&group["hook"], &group["exclusive"]), (&"tc_egress".into(), &true.into()));

    // The listed counts equal the final ones of the captures.
    assert_eq!(seen_by_all, 2000);
    assert_eq!(column(&finish(all).unwrap(), "seen"), seen_by_all);
    assert_eq!(column(&finish(one).unwrap(), "seen"), seen_by_one);
    assert_eq!(groups(&lab, &namespace).len(), 1);
    finish(out).unwrap();
    assert!(groups(&lab, &namespace).is_empty());
}

#[test]
fn a_killed_owner_is_gone_from_the_list() {
    if !require_root("a_killed_owner_is_gone_from_the_list") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let (namespace, device) = (lab.receiver().namespace.clone(), lab.receiver().device.clone());
    let stays = capture(&lab, &["count", "-i", &device, "--direction", "rx", "--json"]).unwrap();
    let killed = capture(&lab, &["count", "-i", &device, "--direction", "rx", "--json"]).unwrap();
    let pid = killed.pid();
    killed.signal(Signal::Kill).unwrap();
    drop(killed);
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let listed = groups(&lab, &namespace);
        // Until the other process clears its slot, the dead group stays listed.
        let dead: Vec<&Value> = listed.iter().filter(|group| group["pid"] == pid).collect();
        if dead.is_empty() {
            break;
        }
        assert!(Instant::now() < deadline, "{dead:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(groups(&lab, &namespace).len(), 1);
    finish(stays).unwrap();
}
