//! A short run of the whole bench, so that it works on the day that it is needed.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use wirelane_tests::{require_root, wirelane_binary};

#[test]
fn a_short_run_accounts_for_every_packet_and_writes_its_results() {
    if !require_root("a_short_run_accounts_for_every_packet_and_writes_its_results") {
        return;
    }
    let folder = std::env::temp_dir().join(format!("wirelane-bench-{}", std::process::id()));
    let output = Command::new(env!("CARGO_BIN_EXE_wirelane-bench"))
        .args("--receivers drop,ring-native,packet,xsk-poll --sizes 60 --methods clone --rounds 1".split(' '))
        .args("--seconds 0.2 --parts throughput,cost --out".split(' '))
        .arg(&folder)
        .env("WIRELANE_BIN", wirelane_binary().unwrap())
        .output()
        .unwrap();
    let (page, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{errors}");
    assert!(!page.contains("failed:"), "{page}");

    let trials = fs::read_to_string(folder.join("trials.csv")).unwrap();
    let lines: Vec<Vec<&str>> = trials.lines().skip(1).map(|line| line.split(',').collect()).collect();
    // Two setups, four receivers; more trials where something disturbed them.
    let cells: BTreeSet<(&str, &str)> = lines.iter().map(|fields| (fields[2], fields[5])).collect();
    assert_eq!(cells.len(), 8, "{trials}");
    for fields in &lines {
        let number = |column: usize| fields[column].parse::<u64>().unwrap();
        let (offered, dropped, received, lost) = (number(7), number(8), number(10), number(11));
        assert_eq!(offered, dropped + received + lost, "{fields:?}");
        assert!(received > 0, "{fields:?}");
    }
    // On a busy machine there may be no trial that counts, and then nothing to draw.
    let summary = fs::read_to_string(folder.join("summary.csv")).unwrap();
    if summary.contains(",packet,") {
        assert!(fs::read_to_string(folder.join("throughput-60-clone.svg")).unwrap().contains("TPACKET_V3"));
    }
    for file in ["README.md", "machine.json", "summary.csv", "loss-free.csv"] {
        assert!(folder.join(file).exists(), "{file}");
    }
    fs::remove_dir_all(folder).unwrap();
}
