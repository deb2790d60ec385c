//! `make fleet`: three probes, an engine that is killed, a broker; all answers agree, and nothing is left behind.

use std::process::Command;
use std::time::Duration;

use wirelane_tests::{Child, Lab, repository, require_root, wirelane_binary};

use super::broker::Broker;
use super::door::Door;

/// Two virtual machines' worth of programs on a busy processor.
const LIMIT: Duration = Duration::from_secs(240);

#[test]
fn three_probes_and_the_centre_have_the_same_answers() {
    let test = "three_probes_and_the_centre_have_the_same_answers";
    if !require_root(test) {
        return;
    }
    let folder = super::beside::open_folder();
    // They are there, and the program was built with Kafka.
    let Some(broker) = Broker::start(test, &folder.path().join("kafka")) else { return };
    drop(broker);
    let Some(door) = Door::start(test, &folder.path().join("door"), &[]) else { return };
    drop(door);
    // Keeps its programs away from tests that look at the whole machine.
    let _lab = Lab::new(1).unwrap();
    let mut command = Command::new(repository().join("scripts/fleet"));
    command.arg("--wirelane").arg(wirelane_binary().unwrap()).env("TMPDIR", folder.path());
    let fleet = Child::spawn(&mut command).unwrap();
    let ours = format!("wlfleet-{}-", fleet.pid());
    let finished = fleet.finish(LIMIT).unwrap();
    assert!(finished.status.success(), "{:#?} {}", finished.lines, finished.stderr);
    assert!(finished.lines.iter().any(|line| line == "Everything agrees, and nothing is missing."));
    let agree = finished.lines.iter().filter(|line| line.ends_with("yes")).count();
    assert_eq!(agree, 13 + 3, "{:#?}", finished.lines);
    for probe in ["edge-1", "edge-2", "edge-3"] {
        let is_complete = |line: &&String| line.trim().starts_with(probe) && line.ends_with(": complete");
        assert!(finished.lines.iter().any(|line| is_complete(&line)), "{probe}: {:#?}", finished.lines);
    }
    for place in ["/run/netns".as_ref(), folder.path()] {
        let left = std::fs::read_dir(place).unwrap().map(|entry| entry.unwrap().file_name());
        assert!(left.into_iter().all(|name| !name.to_string_lossy().starts_with(&ours)), "{place:?}");
    }
}
