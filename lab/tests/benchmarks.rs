//! Short runs of our benchmark suites and of single parts, as a test that they work. Accounts are as exact as in long
//! runs; rates have little meaning.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};

use tempfile::TempDir;
use wirelane_tests::{require_root, wirelane_binary};

/// Serialises the tests: all of them use the same two cores.
static CORES: Mutex<()> = Mutex::new(());

/// A row of a CSV file, by column.
type Row = BTreeMap<String, String>;

fn testbed(words: &[&str], at: &Path) -> Output {
    let _alone = CORES.lock().unwrap_or_else(PoisonError::into_inner);
    let mut command = Command::new(env!("CARGO_BIN_EXE_wirelane-testbed"));
    let output =
        command.args(words).current_dir(at).env("WIRELANE_BIN", wirelane_binary().unwrap()).output().unwrap();
    println!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    output
}

/// Lines that replace those of a suite with the same key.
const SHORT: &[&str] = &["duration = \"100ms\"", "repetitions = 1", "tries = 1", "napi = \"inline\""];

/// Runs a benchmark suite for a short time, with these additional replacements (a key alone removes its line); returns
/// its folder and its trials, none of which has a fault.
fn run(name: &str, lines: &[&str]) -> (TempDir, Vec<Row>) {
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("benchmarks").join(format!("{name}.toml"));
    let mut text = format!("{}\n", fs::read_to_string(shipped).unwrap());
    for line in SHORT.iter().chain(lines) {
        let key = format!("\n{} ", line.split(' ').next().unwrap());
        let Some(start) = text.find(&key).map(|at| at + 1) else { continue };
        // A value continues until its brackets are closed.
        let mut end = start;
        let mut depth = 0;
        for one in text[start..].split_inclusive('\n') {
            depth += one.matches('[').count() as i32 - one.matches(']').count() as i32;
            end += one.len();
            if depth == 0 {
                break;
            }
        }
        let line = if line.contains('=') { format!("{line}\n") } else { String::new() };
        text.replace_range(start..end, &line);
    }
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("suite.toml"), text).unwrap();
    let output = testbed(&["run", "suite.toml", "--out", "results"], folder.path());
    assert!(output.status.success(), "{name}");
    let trials = rows(&folder.path().join("results/trials.csv"));
    // The generator of a debug build on a busy machine may be too slow; its packets are still counted.
    let is_well = |row: &Row| ["", "generator fell short"].contains(&row["fault"].as_str());
    assert!(!trials.is_empty() && trials.iter().all(is_well), "{trials:?}");
    (folder, trials)
}

fn rows(path: &Path) -> Vec<Row> {
    let mut reader = csv::Reader::from_path(path).unwrap();
    reader.deserialize().map(Result::unwrap).collect()
}

fn count(row: &Row, column: &str) -> u64 {
    row[column].parse().unwrap_or_else(|_| panic!("{column}: {row:?}"))
}

fn sensor(row: &Row) -> &str {
    row["case"].split(' ').next().unwrap()
}

/// Every sent packet is in one of the counts, by each sensor's own counters.
fn all_accounted(trials: &[Row]) {
    for row in trials {
        assert_eq!(row["unaccounted"], "0", "{row:?}");
        assert!(count(row, "captured") > 0 && count(row, "sent") > 0, "{row:?}");
    }
}

/// A figure of a trial, from text like `a=1; b=2`.
fn figure(row: &Row, name: &str) -> Option<f64> {
    row["figures"].split("; ").find_map(|one| one.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
}

#[test]
fn receivers_side_by_side_account_for_every_packet() {
    if !require_root("receivers_side_by_side_account_for_every_packet") {
        return;
    }
    let sensors =
        "sensors = [\"xdp-drop\", \"wirelane-native\", \"wirelane-tc\", \"af-xdp-poll\", \"tpacket-v3\"]";
    let (folder, trials) = run("throughput-live-frames", &[sensors, "napi = [\"inline\", \"threads\"]"]);
    assert_eq!(trials.len(), 10);
    all_accounted(&trials);
    let threaded = |row: &&Row| row["case"].contains("napi=threads");
    assert!(
        trials.iter().filter(threaded).all(|row| row["napi_cpu_s"].parse::<f64>().unwrap() > 0.0),
        "{trials:?}"
    );
    let report = fs::read_to_string(folder.path().join("results/report.txt")).unwrap();
    // On a busy machine there may be fewer than two trials that count.
    assert!(report.contains("tpacket-v3") && report.contains("napi"), "{report}");
    let (_folder, trials) = run("throughput-cloned-sk-buffs", &[sensors, "sizes = [300]"]);
    all_accounted(&trials);
}

#[test]
fn the_highest_rate_is_followed_by_an_overload() {
    if !require_root("the_highest_rate_is_followed_by_an_overload") {
        return;
    }
    let (folder, _) = run("loss-free", &["sensors = [\"wirelane-native\"]", "search = [0.5]"]);
    let searches = rows(&folder.path().join("results/searches.csv"));
    assert_eq!(searches.len(), 1);
    if searches[0]["bound"] == "loss" {
        let captured: f64 = searches[0]["overload"].parse().unwrap();
        let lost: f64 = searches[0]["lost_after"].parse().unwrap();
        assert!(captured > 0.0 && (0.0..=1.0).contains(&lost), "{searches:?}");
    }
}

#[test]
fn queues_workers_and_applications_account_for_every_packet() {
    if !require_root("queues_workers_and_applications_account_for_every_packet") {
        return;
    }
    let (_folder, trials) = run("queues", &["queues = [1, 2]"]);
    assert_eq!(trials.len(), 10);
    all_accounted(&trials);
    let (_folder, trials) = run("workers", &["workers = [1, 2]"]);
    assert_eq!(trials.len(), 4);
    all_accounted(&trials);
    let (_folder, trials) = run("sharing", &["workers = [1, 2]"]);
    let copies: Vec<&Row> = trials.iter().filter(|row| row["case"].contains("workers=2")).collect();
    assert_eq!((trials.len(), copies.len()), (6, 3));
    for row in copies.into_iter().filter(|row| sensor(row) == "ring-groups") {
        let taken = count(row, "captured") + count(row, "lost");
        assert_eq!(taken, 2 * count(row, "sent"), "{row:?}");
    }
    for name in ["table-2-one-queue", "table-2-two-queues"] {
        let (_folder, trials) = run(name, &[]);
        assert_eq!(trials.len(), 2);
        for row in &trials {
            let napi: f64 = row["napi_cpu_s"].parse().unwrap();
            assert_eq!(napi > 0.0, sensor(row) == "ring-tuned", "{row:?}");
        }
    }
}

#[test]
fn overload_and_skew_account_for_every_packet() {
    if !require_root("overload_and_skew_account_for_every_packet") {
        return;
    }
    let (_folder, trials) = run("congestion", &["loops = [1000]", "of-capacity = [0.5, 2]"]);
    assert_eq!(trials.len(), 6);
    for row in &trials {
        // Flows are complete at the end of a trial.
        assert_eq!(count(row, "offered") % 4096, 0, "{row:?}");
        let whole = figure(row, "flows whole").unwrap_or(1.0);
        assert!((0.0..=1.0).contains(&whole), "{row:?}");
        if row["captured"] == row["offered"] {
            assert_eq!(whole, 1.0, "{row:?}");
        }
    }
    let (_folder, trials) = run("skew", &["workers = [2]"]);
    assert_eq!(trials.len(), 2);
    for row in &trials {
        assert_eq!(figure(row, "reordered"), Some(0.0), "{row:?}");
        assert!(figure(row, "busiest over mean, second half").is_none_or(|even| even >= 1.0), "{row:?}");
        if sensor(row) == "ring-static" {
            assert_eq!(figure(row, "moves"), Some(0.0), "{row:?}");
        }
    }
}

#[test]
fn rules_and_filters_account_for_every_packet() {
    if !require_root("rules_and_filters_account_for_every_packet") {
        return;
    }
    for name in ["rules-exact-one-hit", "rules-exact-all-hit", "rules-wildcard", "sets-miss", "sets-hit"] {
        let (_folder, trials) = run(name, &["entries = [1, 1000]"]);
        all_accounted(&trials);
        // Packets that rules count are not analysed.
        let ours = trials.iter().filter(|row| sensor(row).starts_with("ring-rules"));
        assert!(ours.clone().count() > 0 && ours.into_iter().all(|row| row["analysed"] == "0"), "{trials:?}");
    }
    let (_folder, trials) = run("forwarding", &["sizes = [60]"]);
    all_accounted(&trials);
    for row in
        trials.iter().filter(|row| sensor(row).starts_with("ring-rules") && row["sent"] == row["offered"])
    {
        assert_eq!(
            count(row, "analysed") + count(row, "lost"),
            count(row, "offered").div_ceil(256),
            "{row:?}"
        );
    }
    let (_folder, trials) = run("filters", &[]);
    assert_eq!(trials.len(), 7);
}

/// Installed probes only; the others are named.
#[test]
fn other_flow_probes_count_every_packet() {
    if !require_root("other_flow_probes_count_every_packet") {
        return;
    }
    let (_folder, trials) = run("flow-probes-cpu", &["rates = [20000]", "duration = \"300ms\""]);
    all_accounted(&trials);
}

#[test]
fn programs_of_libpcaps_run_on_both_libraries() {
    if !require_root("programs_of_libpcaps_run_on_both_libraries") {
        return;
    }
    if !wirelane_binary().unwrap().with_file_name("libwirelane_libpcap_preload.so").exists() {
        println!(
            "left out: programs_of_libpcaps_run_on_both_libraries (no libwirelane_libpcap_preload.so beside wirelane)"
        );
        return;
    }
    let lines = ["rates = [20000]", "full-speed = false", "search", "sizes = [60]"];
    let (_folder, trials) = run("libpcap", &[&lines[..], &["duration = \"300ms\""]].concat());
    for row in trials.iter().filter(|row| row["search"].is_empty() && row["sent"] == row["offered"]) {
        // One packet represents 256 where the filter selects one of 256.
        assert!(count(row, "captured").abs_diff(count(row, "sent") - count(row, "lost")) < 512, "{row:?}");
    }
}

/// Real web traffic, according to the server's log, at a rate that all can process.
/// Battery: I10
#[test]
fn every_request_that_the_server_has_logged_is_in_each_log() {
    if !require_root("every_request_that_the_server_has_logged_is_in_each_log") {
        return;
    }
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let is_there =
        |program: &&str| std::env::split_paths(&folders).any(|folder| folder.join(program).exists());
    if let Some(program) = ["nginx", "wrk", "tcpdump"].iter().find(|program| !is_there(program)) {
        println!("left out: every_request_that_the_server_has_logged_is_in_each_log (no {program})");
        return;
    }
    let (_folder, trials) = run("http-logs", &["rates = [500]", "full-speed = false", "search"]);
    let paced: Vec<&Row> = trials.iter().filter(|row| row["search"].is_empty()).collect();
    assert!(!paced.is_empty());
    for row in paced.into_iter().filter(|row| row["sent"] == row["offered"]) {
        assert_eq!((count(row, "offered"), count(row, "captured")), (1000, 1000), "{row:?}");
    }
}

#[test]
fn single_parts_are_measured_and_a_small_store_is_removed() {
    if !require_root("single_parts_are_measured_and_a_small_store_is_removed") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    fs::create_dir(at.join("place")).unwrap();
    let own = wirelane_tests::repository().join("target/python/bin/python3");
    let python = wirelane_tests::python::with_module(&[own.to_str().unwrap(), "python3"], "duckdb");
    let mut words = vec![
        "measure",
        "cost",
        "store",
        "--quick",
        "--flows",
        "5001",
        "--store-folder",
        "place",
        "--out",
        "parts",
    ];
    match python {
        Some(python) => words.extend(["--duckdb", python]),
        None => println!(
            "left out: whether DuckDB gives the same answers (it is not installed: scripts/setup kernels)"
        ),
    }
    assert!(testbed(&words, at).status.success());
    assert_eq!(fs::read_dir(at.join("place")).unwrap().count(), 0);
    assert_eq!(rows(&at.join("parts/cost-1.csv")).len(), 7);
    let written: u64 = rows(&at.join("parts/store-1.csv")).iter().map(|row| count(row, "flows")).sum();
    assert_eq!(written, 5001);
    let asked = rows(&at.join("parts/store-2.csv"));
    let answer =
        |question: &str| count(asked.iter().find(|row| row["question"] == question).unwrap(), "rows");
    assert_eq!(["top talkers", "top ports", "by network", "over time"].map(answer), [10, 10, 10, 24]);
    assert!(answer("who talked to 10.0.0.5") > 0);
    // With DuckDB, the command ends with an error unless all answers are equal.
    assert!(asked.iter().all(|row| (row["ratio"] == "-") == python.is_none()), "{asked:?}");
}

#[test]
fn an_unknown_part_is_refused_with_those_that_there_are() {
    let output = testbed(&["measure", "cots"], Path::new("."));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(
        ["cots", "cost", "patterns", "flow-cache", "voip"].iter().all(|word| errors.contains(word)),
        "{errors}"
    );
}
