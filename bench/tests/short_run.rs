//! Short runs of the whole bench, so that it works on the day that it is needed.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use wirelane_tests::{require_root, wirelane_binary};

/// What a run printed and left.
struct Run {
    page: String,
    folder: PathBuf,
}

impl Run {
    /// A file of the results.
    fn file(&self, name: &str) -> String {
        fs::read_to_string(self.folder.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// The lines of a CSV file, and a function that finds a column by its name.
    fn csv(&self, name: &str) -> (Vec<Vec<String>>, impl Fn(&str) -> usize + use<>) {
        let text = self.file(name);
        let split = |line: &str| line.split(',').map(str::to_owned).collect::<Vec<_>>();
        let mut lines = text.lines().map(split);
        let heads = lines.next().unwrap();
        let lines: Vec<Vec<String>> = lines.collect();
        assert!(lines.iter().all(|line| line.len() == heads.len()), "{text}");
        (lines, move |head: &str| {
            heads.iter().position(|one| one == head).unwrap_or_else(|| panic!("no {head}"))
        })
    }
}

/// Runs in turn: all of them want the same two cores.
static CORES: Mutex<()> = Mutex::new(());

fn run(name: &str, options: &str) -> Run {
    let _alone = CORES.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = std::env::temp_dir().join(format!("wirelane-bench-{}-{name}", std::process::id()));
    let output = Command::new(env!("CARGO_BIN_EXE_wirelane-bench"))
        .args(options.split_whitespace())
        .arg("--out")
        .arg(&folder)
        .env("WIRELANE_BIN", wirelane_binary().unwrap())
        .output()
        .unwrap();
    let page = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(!page.contains("failed:") && !page.contains("not exact"), "{page}");
    Run { page, folder }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn a_short_run_accounts_for_every_packet_and_writes_its_results() {
    if !require_root("a_short_run_accounts_for_every_packet_and_writes_its_results") {
        return;
    }
    let run = run(
        "receivers",
        "--receivers drop,ring-native,packet,xsk-poll --sizes 60 --methods clone --rounds 1 --seconds 0.2 \
         --parts throughput,cost",
    );
    let trials = run.file("trials.csv");
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
    if run.file("summary.csv").contains(",packet,") {
        assert!(run.file("throughput-60-clone.svg").contains("TPACKET_V3"));
    }
    for file in ["README.md", "machine.json", "summary.csv", "loss-free.csv"] {
        assert!(run.folder.join(file).exists(), "{file}");
    }
    assert!(!run.folder.join("studies.csv").exists(), "nothing was studied");
}

/// Runs one study shortly.
fn study(name: &str, cells: &[(&str, &str)], options: &str) -> Option<Run> {
    studies(name, &[(name, cells)], options)
}

/// Runs the studies of a part shortly. Every trial's account must be exact, every cell of each study must be there, and
/// its files.
fn studies(part: &str, cells: &[(&str, &[(&str, &str)])], options: &str) -> Option<Run> {
    let test = format!("the_study_of_{part}_accounts_for_every_packet");
    if !require_root(&test) {
        return None;
    }
    let run = run(
        part,
        &format!("--parts {part} --setups a --rounds 1 --seconds 0.1 --quick --disturbed {options}"),
    );
    let (lines, column) = run.csv("studies.csv");
    let mut found = BTreeSet::new();
    for line in &lines {
        let field = |head: &str| line[column(head)].as_str();
        let number = |head: &str| field(head).parse::<u64>().unwrap_or_else(|_| panic!("{head}: {line:?}"));
        let came = (number("offered") - number("device_dropped")) * number("copies");
        let judged = number("filtered") + number("absorbed");
        assert_eq!(came, number("received") + number("lost") + number("shed") + judged, "{line:?}");
        assert_eq!(number("unaccounted"), 0, "{line:?}");
        assert!(number("offered") > 0 && number("received") + judged > 0, "{line:?}");
        assert!(part == "rules" || judged == 0, "{line:?}");
        if field("receiver") != "controlled" {
            assert_eq!(number("shed"), 0, "{line:?}");
        }
        let x = if part == "congestion" {
            format!("{}/{}", field("load"), field("x"))
        } else {
            field("x").to_owned()
        };
        found.insert(format!("{} {} {x}", field("study"), field("receiver")));
    }
    let names: Vec<&str> = cells.iter().map(|(study, _)| *study).collect();
    let cells: BTreeSet<String> = cells
        .iter()
        .flat_map(|(study, cells)| cells.iter().map(move |(receiver, x)| format!("{study} {receiver} {x}")))
        .collect();
    assert_eq!(found, cells);

    // A line for each cell, since disturbed trials count here; the table and the chart say who is in them.
    let (medians, _) = run.csv("studies-summary.csv");
    assert_eq!(medians.len(), cells.len());
    for name in names {
        let chart = run.file(&format!("study-{name}.svg"));
        assert!(chart.contains("</svg>") && chart.contains(" cores, Linux "), "{chart}");
        assert!(run.page.contains(&format!("(`{name}`)")), "{}", run.page);
    }
    assert!(run.page.contains("Processor: ") && run.page.contains("--disturbed"), "{}", run.page);
    assert_eq!(run.page.matches("|   exact |").count(), cells.len(), "{}", run.page);
    Some(run)
}

#[test]
fn the_study_of_queues_accounts_for_every_packet() {
    let all = ["drop", "ring", "ring-per-queue", "xsk", "fanout"];
    let mut cells: Vec<(&str, &str)> = all.iter().flat_map(|one| [(*one, "1"), (*one, "2")]).collect();
    cells.extend([("one-reader", "1"), ("locked", "1"), ("unplaced", "2"), ("tuned", "2")]);
    let Some(run) = study("queues", &cells, "") else { return };
    // Bursts take the queues in turn, so with two queues each of two workers has half but for one burst.
    let (lines, column) = run.csv("studies.csv");
    let mut looked = 0;
    for line in lines.iter().filter(|line| line[column("receiver")] == "tuned") {
        // NAPI has threads there, and they have worked; elsewhere in setup A it has none.
        assert!(line[column("napi_cpu_s")].parse::<f64>().unwrap() > 0.0, "{line:?}");
        looked += 1;
    }
    assert_eq!(looked, 1);
    for line in lines.iter().filter(|line| line[column("receiver")] != "tuned") {
        assert_eq!(line[column("napi_cpu_s")].parse::<f64>().unwrap(), 0.0, "{line:?}");
    }
    let chart = run.file("study-queues.svg");
    for setup in ["(a) one queue", "(b) one queue", "(c) two queues", "(d) queue threads"] {
        assert!(chart.contains(setup), "{setup}: {chart}");
    }
    looked = 0;
    for line in lines.iter().filter(|line| line[column("receiver")] == "ring" && line[column("x")] == "2") {
        let steered: Vec<u64> =
            line[column("steered")].split(';').map(|packets| packets.parse().unwrap()).collect();
        assert_eq!(steered.len(), 2, "{line:?}");
        if line[column("device_dropped")] == "0" {
            assert!(steered[0].abs_diff(steered[1]) <= 64, "{line:?}");
        }
        looked += 1;
    }
    assert!(looked > 0);
}

#[test]
fn the_study_of_workers_accounts_for_every_packet() {
    study("workers", &[("ring", "1"), ("ring", "2"), ("fanout", "1"), ("fanout", "2")], "");
}

#[test]
fn the_study_of_congestion_accounts_for_every_packet() {
    let all = ["1000/50", "1000/100", "1000/150", "1000/200", "1000/400", "1000/full"];
    let further = ["500/100", "500/200", "500/full"];
    let rates = [&all[..], &further[..]].concat();
    let cells: Vec<(&str, &str)> =
        rates.iter().flat_map(|rate| [("uncontrolled", *rate), ("controlled", *rate)]).collect();
    let Some(run) = study("congestion", &cells, "--load 1000,500") else { return };
    let (lines, column) = run.csv("studies.csv");
    for line in &lines {
        let number = |head: &str| line[column(head)].parse::<u64>().unwrap();
        // Flows end, and none is cut by the end of a trial.
        assert_eq!(number("offered") % 4096, 0, "{line:?}");
        assert!(number("late_flows_whole") <= number("late_flows"), "{line:?}");
        let all_taken = number("received") == number("offered");
        if all_taken {
            assert_eq!(number("late_flows_whole"), number("late_flows"), "{line:?}");
        }
    }
}

#[test]
fn the_study_of_skew_accounts_for_every_packet() {
    let Some(run) = study("skew", &[("static", "2"), ("adaptive", "2")], "") else { return };
    let (lines, column) = run.csv("studies.csv");
    for line in lines.iter().filter(|line| line[column("receiver")] == "static") {
        assert_eq!(line[column("moves")], "0", "{line:?}");
    }
    for line in &lines {
        let sum = |head: &str| {
            line[column(head)].split(';').map(|packets| packets.parse::<u64>().unwrap()).sum::<u64>()
        };
        let number = |head: &str| line[column(head)].parse::<u64>().unwrap();
        assert_eq!(sum("steered"), number("received") + number("lost"), "{line:?}");
        assert!(sum("steered_late") <= sum("steered"), "{line:?}");
        assert_eq!(number("reordered"), 0, "{line:?}");
        // Static or not, all of the elephant's packets are with some worker.
        assert!(number("elephant_worker") < 2, "{line:?}");
        let offered = number("offered") as f64;
        assert!(line[column("duration_s")].parse::<f64>().unwrap() > 0.9 && offered > 0.0, "{line:?}");
    }
}

#[test]
fn the_study_of_sharing_accounts_for_every_packet() {
    let mut cells = vec![("ring-groups", "1"), ("ring-groups", "2"), ("packet", "1"), ("packet", "2")];
    if has_tcpdump() {
        cells.extend([("tcpdump", "1"), ("tcpdump", "2")]);
    }
    study("sharing", &cells, "");
}

/// As the bench does: what is not installed is left out.
fn has_tcpdump() -> bool {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders).any(|folder| folder.join("tcpdump").exists())
}

#[test]
fn the_study_of_rules_accounts_for_every_packet() {
    let numbers = |receivers: &[&'static str]| -> Vec<(&str, &str)> {
        receivers.iter().flat_map(|receiver| [(*receiver, "1"), (*receiver, "1000")]).collect()
    };
    let precise = numbers(&["drop", "rule-hit", "rule-spread"]);
    let wildcard = numbers(&["drop", "rules-apart", "rules-near"]);
    let named = numbers(&["drop", "set-miss", "set-hit", "set-sure"]);
    let forwarding: Vec<(&str, &str)> = ["drop", "forward-taken", "forward-left"]
        .iter()
        .flat_map(|receiver| [(*receiver, "60"), (*receiver, "512")])
        .collect();
    let mut filters = vec!["filter-kernel", "filter-worker"];
    if has_tcpdump() {
        filters.push("tcpdump");
    }
    let filters: Vec<(&str, &str)> =
        filters.iter().flat_map(|filter| [(*filter, "2"), (*filter, "256")]).collect();
    let cells = [
        ("precise-rules", &precise[..]),
        ("wildcard-rules", &wildcard[..]),
        ("named-sets", &named[..]),
        ("forwarding", &forwarding[..]),
        ("filters", &filters[..]),
    ];
    let Some(run) = studies("rules", &cells, "") else { return };
    let (lines, column) = run.csv("studies.csv");
    for line in &lines {
        let number = |head: &str| line[column(head)].parse::<u64>().unwrap();
        let came = number("offered") - number("device_dropped");
        let (filtered, absorbed) = (number("filtered"), number("absorbed"));
        // Whether a filter or rule kept packets off, and where these are then, is known; how many, up to what was dropped.
        let kept = match line[column("receiver")].as_str() {
            "drop" => (0, 0),
            "rule-hit" | "rule-spread" | "rules-apart" | "rules-near" | "set-miss" | "set-hit"
            | "set-sure" => (0, came),
            "forward-taken" => (0, came - number("received") - number("lost")),
            _ => (came - number("received") - number("lost"), 0),
        };
        assert_eq!((filtered, absorbed), kept, "{line:?}");
        if line[column("study")] == "forwarding" && kept != (0, 0) && number("device_dropped") == 0 {
            assert_eq!(number("received") + number("lost"), came.div_ceil(256), "{line:?}");
        }
    }
}

/// Of those that are installed; the others are named.
#[test]
fn other_flow_probes_count_every_packet() {
    if !require_root("other_flow_probes_count_every_packet") {
        return;
    }
    let run = run(
        "probes",
        "--receivers flows-kernel,softflowd,nfpcapd,pmacctd --sizes 60 --methods kernel --setups a --rounds 1 \
         --seconds 0.2 --parts throughput",
    );
    let (lines, column) = run.csv("trials.csv");
    for (name, label) in [("softflowd", "softflowd"), ("nfpcapd", "nfpcapd"), ("pmacctd", "pmacctd, nfprobe")]
    {
        let its: Vec<_> = lines.iter().filter(|line| line[column("receiver")] == name).collect();
        assert!(!its.is_empty() || run.page.contains(&format!("left out: {label} (")), "{}", run.page);
        for line in its {
            let number = |head: &str| line[column(head)].parse::<u64>().unwrap();
            let (received, lost) = (number("received"), number("lost"));
            assert_eq!(number("offered"), number("device_dropped") + received + lost, "{line:?}");
            assert!(received > 0, "{line:?}");
        }
    }
}

#[test]
fn a_small_store_is_written_and_asked_and_removed() {
    if !require_root("a_small_store_is_written_and_asked_and_removed") {
        return;
    }
    let place = std::env::temp_dir().join(format!("wirelane-bench-{}-place", std::process::id()));
    fs::create_dir_all(&place).unwrap();
    let run = run("store", &format!("--parts store --quick --flows 5001 --store-folder {}", place.display()));
    assert_eq!(fs::read_dir(&place).unwrap().count(), 0);
    fs::remove_dir(&place).unwrap();
    let (lines, column) = run.csv("store.csv");
    let written: u64 = lines.iter().take(2).map(|line| line[column("flows")].parse::<u64>().unwrap()).sum();
    assert_eq!(written, 5001);
    let rows = |question: &str| {
        let line = lines.iter().find(|line| line[0] == question).unwrap_or_else(|| panic!("no {question}"));
        line[column("rows")].parse::<u64>().unwrap()
    };
    assert_eq!(["top talkers", "top ports", "by network", "over time"].map(rows), [10, 10, 10, 24]);
    assert!(rows("who talked to 10.0.0.5") > 0);
}

#[test]
fn an_unknown_part_is_refused_with_those_that_there_are() {
    let output = Command::new(env!("CARGO_BIN_EXE_wirelane-bench"))
        .args(["--parts", "queues,qeues"])
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    let known =
        ["throughput", "loss-free", "cost", "queues", "workers", "congestion", "skew", "sharing", "rules"];
    assert!(errors.contains("qeues") && known.iter().all(|part| errors.contains(part)), "{errors}");
}
