//! `wirelane testbed`: small suites against real sensors, in namespaces of its own.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use wirelane_tests::duckdb::duckdb;
use wirelane_tests::pages::elements;
use wirelane_tests::{Child, require_root, wirelane_binary};

const LIMIT: Duration = Duration::from_secs(120);

/// An adapter of a program that is not installed, and one that fails at the start.
const ADAPTERS: [(&str, &str); 2] = [("absent", "no-such-program"), ("failing", "false")];

fn adapters(folder: &Path) {
    fs::create_dir(folder).unwrap();
    for (name, program) in ADAPTERS {
        let text = format!(
            "title = \"<b>{name}</b>\"\nprogram = \"{program}\"\ncommand = [\"{program}\", \"{{device}}\"]\nready = {{ regex = \"go\" }}\n\
             quiet = \"50ms\"\n[counts]\ncaptured = {{ regex = '(\\d+)' }}\n"
        );
        fs::write(folder.join(format!("{name}.toml")), text).unwrap();
    }
}

fn testbed(words: &[&str], folder: &Path) -> Output {
    let output = Command::new(wirelane_binary().unwrap())
        .arg("testbed")
        .args(words)
        .current_dir(folder)
        .output()
        .unwrap();
    println!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    output
}

/// The rows of a CSV file by column name; quotes are not parsed, as the columns used here do not have any.
fn rows(path: &Path) -> Vec<std::collections::BTreeMap<String, String>> {
    let text = fs::read_to_string(path).unwrap();
    let mut lines = text.lines().map(|line| line.split(',').map(str::to_owned).collect::<Vec<_>>());
    let head = lines.next().unwrap();
    lines.map(|line| head.iter().cloned().zip(line).collect()).collect()
}

/// Network namespaces of all processes.
fn namespaces() -> BTreeSet<String> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let of = |entry: fs::DirEntry| fs::read_link(entry.path().join("ns/net")).ok();
    entries.filter_map(of).map(|link| link.display().to_string()).collect()
}

/// Waits until no process has this word in its command line: a folder of the test, or a device.
fn wait_until_gone(word: &str) {
    let end = Instant::now() + LIMIT;
    loop {
        let of = |entry: fs::DirEntry| fs::read(entry.path().join("cmdline")).ok();
        let words = fs::read_dir("/proc").unwrap().flatten().filter_map(of);
        let found =
            words.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).find(|line| line.contains(word));
        let Some(found) = found else { return };
        assert!(Instant::now() < end, "still there: {found}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Battery: L1
#[test]
fn every_packet_of_a_battery_has_a_place_and_absent_sensors_are_named() {
    if !require_root("every_packet_of_a_battery_has_a_place_and_absent_sensors_are_named") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    adapters(&at.join("adapters"));
    let battery = "name = \"small\"\nsensors = [\"wirelane-count-take\", \"tcpdump\", \"absent\"]\nrates = [5000]\nduration = \"200ms\"\n\
                   engines = [\"ring\"]\n[traffic]\nmethod = \"socket\"\n";
    fs::write(at.join("small.toml"), battery).unwrap();

    let checked = testbed(&["run", "small.toml", "--sensors", "adapters", "--check"], at);
    let text = String::from_utf8(checked.stdout).unwrap();
    assert!(
        checked.status.success() && text.contains("2 trials, about") && text.contains("absent is skipped"),
        "{text}"
    );
    assert!(!at.join("testbed-small").exists());

    let run = testbed(&["run", "small.toml", "--sensors", "adapters", "--out", "results"], at);
    assert!(run.status.success());
    let told = String::from_utf8(run.stderr).unwrap();
    assert!(
        told.contains("absent is skipped: no-such-program is not installed") && told.contains("2 of 2"),
        "{told}"
    );
    let trials = rows(&at.join("results/trials.csv"));
    assert_eq!(trials.len(), 2);
    for (row, sensor) in trials.iter().zip(["wirelane-count-take", "tcpdump"]) {
        let number = |name: &str| row[name].parse::<i64>().unwrap_or_else(|_| panic!("{name} in {row:?}"));
        assert!(row["case"].starts_with(sensor) && row["fault"].is_empty(), "{row:?}");
        assert!(number("offered") > 0 && number("sent") > 0, "{row:?}");
        assert_eq!(number("sent"), number("captured") + number("lost"), "{row:?}");
        assert_eq!((number("unaccounted"), number("captured")), (0, number("analysed")), "{row:?}");
    }
    let html = fs::read_to_string(at.join("results/report.html")).unwrap();
    assert!(html.contains("Skipped: absent") && html.contains("<svg") && !html.contains("<b>"));
    elements(&html);
    assert!(fs::read_to_string(at.join("results/summary.csv")).unwrap().lines().count() == 3);

    parquet_is_as_csv(&at.join("results"), &trials);

    // Resuming a complete run does not change anything. A lost line is measured once more.
    let again = testbed(&["run", "--resume", "results", "--sensors", "adapters"], at);
    assert!(again.status.success());
    assert_eq!(rows(&at.join("results/trials.csv")), trials);
    let csv = fs::read_to_string(at.join("results/trials.csv")).unwrap();
    fs::write(at.join("results/trials.csv"), &csv[..csv.len() - 5]).unwrap();
    assert!(testbed(&["run", "--resume", "results", "--sensors", "adapters"], at).status.success());
    let resumed = rows(&at.join("results/trials.csv"));
    assert_eq!((resumed.len(), &resumed[0]), (2, &trials[0]));
    assert!(resumed[1]["case"].starts_with("tcpdump"), "{resumed:?}");
    wait_until_gone(&at.display().to_string());
}

/// Compares DuckDB's view of the trials with the CSV: columns of text and of numbers.
fn parquet_is_as_csv(folder: &Path, trials: &[std::collections::BTreeMap<String, String>]) {
    let file = folder.join("trials.parquet");
    assert!(file.is_file());
    let names = ["case", "offered", "sent", "captured", "lost", "unaccounted", "fault"];
    let script = format!(
        "import duckdb\nfor row in duckdb.sql(\"select \\\"case\\\", {} from '{}'\").fetchall(): print(*row, sep=',')",
        names[1..].join(", "),
        file.display()
    );
    let Some(told) = duckdb(&script) else { return };
    let expected = trials.iter().map(|row| names.map(|name| row[name].clone()).join(","));
    assert_eq!(told, expected.collect::<Vec<_>>().join("\n"));
}

#[test]
fn two_devices_are_one_account() {
    if !require_root("two_devices_are_one_account") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let battery = "name = \"d\"\nsensors = [\"wirelane-devices\", \"wirelane-devices-free\"]\ndevices = 2\nqueues = [2]\nworkers = [2]\n\
                   rates = [10000]\nduration = \"300ms\"\nnapi = \"threads\"\n[traffic]\nmethod = \"socket\"\n";
    fs::write(at.join("d.toml"), battery).unwrap();
    assert!(testbed(&["run", "d.toml"], at).status.success());
    let trials = rows(&at.join("testbed-d/trials.csv"));
    assert_eq!(trials.len(), 2);
    for row in &trials {
        let number = |name: &str| row[name].parse::<i64>().unwrap();
        // More than one generator alone would send.
        assert!((1501..=3000).contains(&number("offered")), "{row:?}");
        assert_eq!(
            (number("sent"), number("unaccounted")),
            (number("captured") + number("lost"), 0),
            "{row:?}"
        );
        assert!(number("captured") > 0 && number("seen") <= number("sent"), "{row:?}");
    }
    let one = battery.replace("\"wirelane-devices\"", "\"tcpdump\"");
    fs::write(at.join("one.toml"), one).unwrap();
    let told = String::from_utf8(testbed(&["run", "one.toml"], at).stderr).unwrap();
    assert!(told.contains("one.toml:3:11:") && told.contains("tcpdump is for one device"), "{told}");
}

#[test]
fn rules_of_an_adapter_want_one_packet_of_256() {
    if !require_root("rules_of_an_adapter_want_one_packet_of_256") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let battery = "name = \"r\"\nsensors = [\"wirelane-rules-network\", \"wirelane-rules-set\"]\nrates = [50000]\nduration = \"300ms\"\n\
                   [traffic]\nmethod = \"socket\"\n";
    fs::write(at.join("r.toml"), battery).unwrap();
    assert!(testbed(&["run", "r.toml"], at).status.success());
    let trials = rows(&at.join("testbed-r/trials.csv"));
    assert_eq!(trials.len(), 2);
    let number = |row: usize, name: &str| trials[row][name].parse::<u64>().unwrap();
    for row in [0, 1] {
        let (sent, lost) = (number(row, "sent"), number(row, "lost"));
        assert!(sent > 4096 && number(row, "captured") + lost == sent, "{trials:?}");
        // The first 16 of 4,096 flows; a lost packet may belong to any flow.
        let wanted = sent / 4096 * 16 + (sent % 4096).min(16);
        let analysed = number(row, "analysed");
        let unsure = lost + number(row, "offered") - sent;
        // The set has false positives, one in 1,000 sources: a few among these 4,080.
        let most = wanted + unsure + if row == 1 { sent / 50 } else { 0 };
        assert!((wanted.saturating_sub(unsure)..=most).contains(&analysed), "{wanted} {trials:?}");
    }
}

#[test]
fn rtp_of_calls_is_measured_where_their_rules_say_so() {
    if !require_root("rtp_of_calls_is_measured_where_their_rules_say_so") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let battery = "name = \"v\"\nsensors = [\"wirelane-count-take\", \"wirelane-voip\", \"wirelane-voip-kernel\"]\nrates = [5000]\n\
                   duration = \"400ms\"\n[traffic]\ncalls = [3, 50]\nsizes = [124]\n";
    fs::write(at.join("v.toml"), battery).unwrap();
    assert!(testbed(&["run", "v.toml"], at).status.success());
    let trials = rows(&at.join("testbed-v/trials.csv"));
    assert_eq!(trials.len(), 6);
    for (row, calls) in trials.iter().zip([3, 3, 3, 50, 50, 50]) {
        let number = |name: &str| row[name].parse::<i64>().unwrap();
        assert!(row["case"].ends_with(&format!(" calls={calls}")) && row["fault"].is_empty(), "{row:?}");
        // RTP only: the SIP messages before it do not count in the trial.
        assert_eq!((number("offered"), number("sent")), (2000, 2000), "{row:?}");
        let seen = number("captured") + number("lost");
        assert_eq!((seen, number("aside"), number("unaccounted")), (2000, 0, 0), "{row:?}");
        assert_eq!((number("seen"), number("analysed")), (2000, number("captured")), "{row:?}");
    }
    let table = fs::read_to_string(at.join("testbed-v/report.txt")).unwrap();
    assert!(table.contains("calls") && !table.contains("went wrong"), "{table}");
}

#[test]
fn a_receiver_gets_what_a_sensor_leaves_to_its_host() {
    if !require_root("a_receiver_gets_what_a_sensor_leaves_to_its_host") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let sensors = "\"nobody\", \"tcpdump\", \"wirelane-count\", \"wirelane-count-take\"";
    let battery = format!(
        "name = \"p\"\nsensors = [{sensors}]\nreceiver = true\nengines = [\"ring\"]\nrates = [5000]\nduration = \"300ms\"\n\
         [traffic]\nmethod = \"socket\"\n"
    );
    fs::write(at.join("p.toml"), battery).unwrap();
    assert!(testbed(&["run", "p.toml"], at).status.success());
    let trials = rows(&at.join("testbed-p/trials.csv"));
    assert_eq!(trials.len(), 4);
    for (row, sensor) in trials.iter().zip(["nobody ", "tcpdump ", "wirelane-count ", "wirelane-count-take "])
    {
        let number = |name: &str| row[name].parse::<i64>().unwrap();
        assert!(row["case"].starts_with(sensor) && row["fault"].is_empty(), "{row:?}");
        assert!(number("sent") >= 1000, "{row:?}");
        let passed_on = if sensor == "wirelane-count-take " { 0 } else { number("sent") };
        assert_eq!(number("passed_on"), passed_on, "{row:?}");
        let captured = if sensor == "nobody " { 0 } else { number("sent") };
        assert_eq!(number("captured") + number("lost"), captured, "{row:?}");
    }
    let page = fs::read_to_string(at.join("testbed-p/report.html")).unwrap();
    assert!(page.contains("<th>passed on kpps</th>") && page.contains("packets passed on to the receiver"));
    assert!(fs::read_to_string(at.join("testbed-p/summary.csv")).unwrap().contains(",passed-on,"));
    // Without a receiver this number is empty.
    fs::write(
        at.join("q.toml"),
        "name = \"q\"\nsensors = [\"nobody\"]\nrates = [1000]\nduration = \"100ms\"\n",
    )
    .unwrap();
    assert!(testbed(&["run", "q.toml"], at).status.success());
    assert_eq!(rows(&at.join("testbed-q/trials.csv"))[0]["passed_on"], "");
    assert!(!fs::read_to_string(at.join("testbed-q/report.txt")).unwrap().contains("passed on"));
}

#[test]
fn what_a_device_has_no_room_for_is_lost_and_not_tried_again() {
    if !require_root("what_a_device_has_no_room_for_is_lost_and_not_tried_again") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    // Several times the load that a core can handle with so many loops, through a packet socket.
    let battery = "name = \"o\"\nsensors = [\"wirelane-kernel-loops\"]\nrates = [200000]\nloops = [25000]\nqueues = [2]\n\
                   napi = \"threads\"\nduration = \"500ms\"\n[traffic]\nmethod = \"socket\"\n";
    fs::write(at.join("o.toml"), battery).unwrap();
    assert!(testbed(&["run", "o.toml"], at).status.success());
    let row = &rows(&at.join("testbed-o/trials.csv"))[0];
    let number = |name: &str| row[name].parse::<i64>().unwrap();
    // With retries, all offered packets would be sent, and few offered.
    assert!(number("sent") > 0 && number("offered") > 2 * number("sent"), "{row:?}");
    assert_eq!((number("captured") + number("lost"), number("unaccounted")), (number("sent"), 0), "{row:?}");
}

#[test]
fn a_battery_among_papers_is_drawn_in_their_form() {
    if !require_root("a_battery_among_papers_is_drawn_in_their_form") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    assert!(
        testbed(&["papers", "--quick", "--only", "pam12-figure-7", "--out", "papers"], at).status.success()
    );
    let place = at.join("papers/pam12-figure-7");
    let page = || fs::read_to_string(place.join("report.html")).unwrap();
    let before = page();
    assert!(!before.contains("are not there yet"));
    assert!(testbed(&["report", "papers/pam12-figure-7"], at).status.success());
    assert_eq!(page(), before);
    // Without its collection, the suite is compared with the published one, of which this is a part.
    fs::remove_file(at.join("papers/collection.json")).unwrap();
    assert!(testbed(&["report", "papers/pam12-figure-7"], at).status.success());
    assert!(page().contains("are not there yet"));
}

#[test]
fn a_sensor_that_fails_is_a_fault_and_the_battery_goes_on() {
    if !require_root("a_sensor_that_fails_is_a_fault_and_the_battery_goes_on") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    adapters(&at.join("adapters"));
    let battery = "name = \"b\"\nsensors = [\"failing\", \"libpcap-loops\"]\nrates = [2000]\nloops = [10]\nduration = \"100ms\"\n\
                   [traffic]\nmethod = \"socket\"\n";
    fs::write(at.join("b.toml"), battery).unwrap();
    let run = testbed(&["run", "b.toml", "--sensors", "adapters"], at);
    assert_eq!(run.status.code(), Some(1));
    let told = String::from_utf8(run.stderr).unwrap();
    assert!(
        told.contains("failing ended before it was ready") && told.contains("1 of 2 trials went wrong"),
        "{told}"
    );
    let trials = rows(&at.join("testbed-b/trials.csv"));
    assert_eq!((trials.len(), trials[0]["captured"].as_str()), (2, "0"));
    let number = |name: &str| trials[1][name].parse::<i64>().unwrap();
    assert_eq!(number("sent"), number("captured") + number("lost"), "{trials:?}");
    assert!(number("sent") > 0);
}

/// Battery: F2
#[test]
fn nothing_is_left_of_a_test_bed_that_is_killed() {
    if !require_root("nothing_is_left_of_a_test_bed_that_is_killed") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let battery = "name = \"long\"\nsensors = [\"wirelane-count-take\"]\nrates = [1000]\nduration = \"60s\"\n[traffic]\nmethod = \"socket\"\n";
    fs::write(at.join("long.toml"), battery).unwrap();
    let mut command = Command::new(wirelane_binary().unwrap());
    let child = Child::spawn(command.args(["testbed", "run", "long.toml"]).current_dir(at)).unwrap();
    let device = format!("w{}x", child.pid());
    let generates = || {
        let of = |entry: fs::DirEntry| fs::read(entry.path().join("cmdline")).ok();
        fs::read_dir("/proc").unwrap().flatten().filter_map(of).any(|line| {
            let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
            words.contains(&&b"send"[..]) && words.contains(&&b"60"[..])
        })
    };
    let end = Instant::now() + LIMIT;
    while !generates() {
        assert!(Instant::now() < end, "it did not begin");
        std::thread::sleep(Duration::from_millis(20));
    }
    let during = namespaces();
    child.signal(wirelane_tests::Signal::Kill).unwrap();
    let _ = child.finish(LIMIT).unwrap();
    wait_until_gone(&device);
    // Other tests come and go: two of the earlier namespaces no longer exist.
    while during.difference(&namespaces()).count() < 2 {
        assert!(Instant::now() < end, "the namespaces are still there");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn batteries_that_cannot_be_run_are_refused_in_words() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    fs::write(at.join("a.toml"), "name = \"a\"\nsensors = [\"tcpdmp\"]\nrates = [1000]\n").unwrap();
    let told = String::from_utf8(testbed(&["run", "a.toml"], at).stderr).unwrap();
    assert!(told.contains("a.toml:2:12:") && told.contains("tcpdump"), "{told}");
    let told = String::from_utf8(testbed(&["run", "none.toml"], at).stderr).unwrap();
    assert!(told.contains("none.toml"), "{told}");
    let told = String::from_utf8(testbed(&["run", "--resume", "."], at).stderr).unwrap();
    assert!(told.contains("is this the folder of a suite's results?"), "{told}");
    let papers = testbed(&["papers", "--list"], at);
    let told = String::from_utf8(papers.stdout).unwrap();
    assert!(told.contains("tutorial-rtp\n") && told.contains("zabala13-figures-6-to-9\n"), "{told}");
    assert_eq!(testbed(&["run"], at).status.code(), Some(2));
}
