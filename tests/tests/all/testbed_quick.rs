//! `wirelane testbed quick` and `compare`: statistics of the runs are those of the lines in `trials.csv`.

use std::process::{Command, Output};

use serde_json::Value;
use wirelane_tests::{require_root, wirelane_binary};

use crate::json_schemas::check_all;

fn testbed(words: &[&str], folder: &std::path::Path) -> Output {
    let program = wirelane_binary().unwrap();
    Command::new(program).arg("testbed").args(words).current_dir(folder).output().unwrap()
}

/// Packets captured per second of each line of a sensor, by a program that does not know the test-bed's structures.
fn captured(file: &std::path::Path, sensor: &str) -> Vec<f64> {
    let text = std::fs::read_to_string(file).unwrap();
    let mut lines = text.lines();
    let names: Vec<&str> = lines.next().unwrap().split(',').collect();
    let column = |line: &[&str], name: &str| -> f64 {
        let at = names.iter().position(|one| *one == name).unwrap();
        line[at].parse().unwrap()
    };
    let lines =
        lines.map(|line| line.split(',').collect::<Vec<_>>()).filter(|line| line[0].starts_with(sensor));
    lines
        .map(|line| column(&line, "captured") / (column(&line, "duration_s") + column(&line, "late_s")))
        .collect()
}

#[test]
fn quick_compares_sensors_without_a_file() {
    if !require_root("quick_compares_sensors_without_a_file") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let options = ["--rate", "2k", "--runs", "3", "--duration", "200ms", "--json"];
    let words = [&["quick", "tcpdump", "wirelane-count", "--out", "first"], &options[..]].concat();
    let output = testbed(&words, folder.path());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    check_all("testbed", std::slice::from_ref(&result));
    let cases = result["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 2, "{result}");
    for (case, sensor) in cases.iter().zip(["tcpdump", "wirelane-count"]) {
        assert!(case["case"].as_str().unwrap().starts_with(sensor), "{case}");
        let rates = captured(&folder.path().join("first/trials.csv"), sensor);
        assert_eq!(rates.len(), 3, "{said}");
        // Runs that other programs disturbed count only if all were.
        let value = &case["values"]["captured_pps"];
        if case["left_out"] == 0 {
            let mean = rates.iter().sum::<f64>() / 3.0;
            let deviation = (rates.iter().map(|rate| (rate - mean).powi(2)).sum::<f64>() / 2.0).sqrt();
            assert_eq!(value["runs"], 3);
            assert!((value["mean"].as_f64().unwrap() - mean).abs() < 1e-6 * mean, "{value} {mean}");
            let shown = value["standard_deviation"].as_f64().unwrap();
            assert!((shown - deviation).abs() < 1e-6 * mean, "{value} {deviation}");
        }
    }

    let same = testbed(&["compare", "first", "first", "--json"], folder.path());
    let same: Value = serde_json::from_slice(&same.stdout).unwrap();
    check_all("testbed", std::slice::from_ref(&same));
    let changes = same["changes"].as_array().unwrap();
    assert!(!changes.is_empty());
    for change in changes {
        assert!(change["ratio"] == 1.0 || change["before"]["mean"] == 0.0, "{change}");
        assert_ne!(change["differs"], true, "{change}");
    }
    let text = testbed(&["compare", "first", "first"], folder.path());
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("1.000x"), "{text}");
}

#[test]
fn wrong_words_are_answered_with_what_is_expected() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(folder.path().join("used/results")).unwrap();
    for (words, expected) in [
        (
            &["quick", "no-such-sensor"][..],
            "there is no sensor 'no-such-sensor'; 'wirelane testbed sensors' lists them",
        ),
        (&["quick", "tcpdmp"], "there is no sensor 'tcpdmp': did you mean 'tcpdump'?"),
        (&["quick", "tcpdump", "--out", "used"], "used is not empty: name another folder with --out"),
        (&["quick", "tcpdump", "--rate", "fast"], "expected packets per second, e.g. 500k"),
        (&["compare", "nothing", "nothing"], "is this the folder of a suite's results?"),
    ] {
        let output = testbed(words, folder.path());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(expected), "{words:?}: {said}");
    }
}
