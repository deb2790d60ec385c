//! `wirelane monitor` with analyses in the kernel beside others, which get the same packets: one group and one copy of
//! each packet, and the results of the single commands.

use std::fs;
use std::path::Path;

use serde_json::Value;
use wirelane_tests::flows::{difference, timeless};
use wirelane_tests::mixture::Mixture;
use wirelane_tests::numbers::{LIMIT, capture, column, in_file, last_of, send, wirelane};
use wirelane_tests::{Child, Lab, Signal, require_root, wirelane_binary};

/// A folder that the user to whom the program drops its privileges may write to.
fn open_folder() -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    folder
}

/// Objects of a file, without their numbers and interface indices, sorted.
fn objects(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let line = |line: &str| {
        let mut object: Value = serde_json::from_str(line).unwrap();
        let fields = object.as_object_mut().unwrap();
        fields.retain(|name, _| !["transaction", "interface_index"].contains(&name.as_str()));
        object.to_string()
    };
    let mut lines: Vec<String> = text.lines().map(line).collect();
    lines.sort();
    lines
}

/// Flows of a file, with durations instead of times of day.
fn flows(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut flows: Vec<String> =
        text.lines().map(|line| timeless(serde_json::from_str(line).unwrap()).unwrap()).collect();
    flows.sort();
    flows
}

/// The number of captures' groups in the receiver's namespace.
fn groups(lab: &Lab) -> usize {
    let listing = wirelane(lab, &lab.receiver().namespace, &["groups", "--json"]).unwrap();
    let finished = listing.finish(LIMIT).unwrap();
    assert!(finished.status.success(), "{}", finished.stderr);
    finished.json().unwrap().iter().filter(|group| group["final"] != true).count()
}

/// The status of the monitor on the lab's device, once it is as expected.
fn status_when(lab: &Lab, expected: impl Fn(&Value) -> bool) -> Value {
    let begun = std::time::Instant::now();
    loop {
        let words = ["status", &lab.receiver().device, "--json"];
        let finished = wirelane(lab, &lab.receiver().namespace, &words).unwrap().finish(LIMIT).unwrap();
        let status = finished.last_json().unwrap_or_else(|error| panic!("{error}: {}", finished.stderr));
        if expected(&status) {
            return status;
        }
        assert!(begun.elapsed() < LIMIT, "{status}");
    }
}

/// An analysis in a status.
fn of_analysis<'a>(status: &'a Value, name: &str) -> &'a Value {
    let all = status["analyses"].as_array().unwrap();
    all.iter().find(|one| one["name"] == name).unwrap_or_else(|| panic!("no {name} in {status}"))
}

/// Starts a command on the receiver, at a hook with one lane: a flow whose packets arrive on several CPUs has parts in
/// several caches.
fn single(lab: &Lab, words: &[&str]) -> Child {
    let source = ["-i", &lab.receiver().device, "--hook", "native", "--direction", "rx", "--json", "--quiet"];
    capture(lab, &[words, &source].concat()).unwrap()
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// Flows from the kernel's caches beside a recording, HTTP and calls, of the mixture of traffic: flows are those of both
/// caches of the single command at the same time, transactions and calls are those that the single commands find in the
/// recording. `flow_lines` are keys of [flows], and `options` the same as options.
fn beside(workers: &str, flow_lines: &str, options: &[&str]) {
    let lab = Lab::new(1).unwrap();
    let (folder, again) = (open_folder(), open_folder());
    let at = |name: &str| text(&folder.path().join(name));
    let mut mixture = Mixture::new();
    let traffic = folder.path().join("traffic.pcap");
    mixture.write(&mut fs::File::create(&traffic).unwrap(), 20_000, 50_000).unwrap();
    let sent = mixture.sent();
    let file = folder.path().join("site.toml");
    let device = &lab.receiver().device;
    let site = format!(
        "[capture]\ninterface = \"{device}\"\ndirection = \"rx\"\nhook = \"native\"\nring-size = 32\ninterval = 60\n\
         workers = {workers}\n[record]\nsingle-file = true\nwrite = \"{}\"\n[flows]\ncache = \"kernel\"\n\
         active-timeout = 2\ninactive-timeout = 1\noutput-rate = 0\nexport = [\"file:{}\"]\n{flow_lines}\n\
         [http]\nidle-timeout = 3600\noutput-rate = 0\nlog = [\"json:{}\"]\n\
         [voip]\noutput-rate = 0\nlinger = 1\nexport = [\"file:{}\"]\n[store]\nfolder = \"{}\"\n",
        at("all.pcapng"),
        at("flows.json"),
        at("http.json"),
        at("calls.json"),
        at("store"),
    );
    fs::write(&file, site).unwrap();
    let monitor = capture(&lab, &["monitor", file.to_str().unwrap(), "--json"]).unwrap();
    assert_eq!(groups(&lab), 1, "groups of the monitor");
    let alone = |cache: &str| {
        let export = format!("file:{}", text(&again.path().join(format!("{cache}.json"))));
        let timeouts = ["--active-timeout", "2", "--inactive-timeout", "1", "--output-rate", "0"];
        let shown =
            ["flows", "--cache", cache, "--export", &export, "--ring-size", "32", "--workers", workers];
        let options = options.iter().filter(|_| cache == "kernel" || !options.contains(&"--cache-entries"));
        single(&lab, &[&shown[..], &timeouts, &options.copied().collect::<Vec<_>>()].concat())
    };
    let (kernel, user) = (alone("kernel"), alone("user"));
    let replay =
        ["send", "-i", &lab.sender().device, "--replay", traffic.to_str().unwrap(), "--speed", "recorded"];
    let replayed = wirelane(&lab, &lab.sender().namespace, &[&replay[..], &["--json"]].concat()).unwrap();
    assert_eq!(column(&last_of(&replayed.finish(LIMIT).unwrap()).unwrap(), "sent"), sent.packets);
    // Until all flows that time out have ended, so that the result does not depend on the order in which the captures
    // are stopped.
    std::thread::sleep(std::time::Duration::from_millis(2600));
    let status = status_when(&lab, |status| {
        let flows = &of_analysis(status, "flows")["counts"]["flows"];
        column(&status["ledger"]["flow_cache"], "packets") == sent.packets
            && flows.as_u64().unwrap_or(0) > 1000
    });
    let written = &of_analysis(&status, "record")["outputs"][0];
    assert_eq!(
        [column(&status["ledger"], "delivered"), column(written, "written")],
        [sent.packets; 2],
        "{status}"
    );
    let [last, kernel, user] =
        [monitor, kernel, user].map(|child| last_of(&child.terminate(LIMIT).unwrap()).unwrap());

    // Each packet is counted once, as delivered, although it is also part of a flow in the kernel.
    let counts = ["seen", "delivered", "analysed"].map(|name| column(&last, name));
    assert_eq!(counts, [sent.packets; 3], "{last}");
    for name in ["filtered", "absorbed", "shed", "lost", "in_flight"] {
        assert_eq!(column(&last, name), 0, "{name}: {last}");
    }
    let lines = last["workers"].as_array().unwrap();
    for name in ["seen", "analysed"] {
        assert_eq!(lines.iter().map(|line| column(line, name)).sum::<u64>(), sent.packets, "{name}: {last}");
    }
    assert!(lines.iter().all(|line| column(line, "absorbed") == 0), "{last}");
    let (cache, analyses) = (&last["flow_cache"], &last["analyses"]);
    for name in ["packets", "bytes", "unsampled"] {
        assert_eq!(column(cache, name), column(&kernel["flow_cache"], name), "{name}: {last}");
    }
    assert_eq!((column(cache, "packets"), column(&kernel, "absorbed")), (sent.packets, sent.packets));
    assert_eq!(column(&analyses["record"], "written"), sent.packets, "{analyses}");
    for name in ["flows", "flow_packets", "flow_bytes", "flow_wire_bytes", "unsampled"] {
        let (one, other) = (column(&kernel, name), column(&user, name));
        assert_eq!([column(&analyses["flows"], name), one], [other; 2], "{name}: {analyses}");
    }
    let ends = "end_reasons";
    assert_eq!([&analyses["flows"][ends], &kernel[ends]], [&user[ends]; 2], "{analyses}");
    let shared = flows(&folder.path().join("flows.json"));
    assert!(shared.len() > 1000, "{} flows", shared.len());
    for cache in ["kernel", "user"] {
        let one = flows(&again.path().join(format!("{cache}.json")));
        assert_eq!(difference(&shared, &one), None, "as by --cache {cache}");
    }
    let words = ["query", "SELECT sum(packets) AS packets FROM flows", "--json", "--store", &at("store")];
    let stored = wirelane(&lab, &lab.receiver().namespace, &words).unwrap().finish(LIMIT).unwrap();
    let stored = column(&stored.json().unwrap()[0], "packets");
    assert_eq!(stored, column(&analyses["flows"], "flow_packets"));

    assert_eq!((sent.transactions > 0, sent.calls > 0), (true, true), "{sent:?}");
    let recording = at("all.pcapng");
    let target = |name: &str| text(&again.path().join(name));
    let (log, export) = (format!("json:{}", target("http.json")), format!("file:{}", target("calls.json")));
    let single: [&[&str]; 2] =
        [&["http", "--idle-timeout", "3600", "--log", &log], &["voip", "--linger", "1", "--export", &export]];
    for words in single {
        let words = [words, &["--quiet", "-r", &recording]].concat();
        let finished = wirelane(&lab, &lab.receiver().namespace, &words).unwrap().finish(LIMIT).unwrap();
        assert!(finished.status.success(), "{words:?}: {}", finished.stderr);
    }
    for name in ["http.json", "calls.json"] {
        let (shared, alone) = (objects(&folder.path().join(name)), objects(&again.path().join(name)));
        let differ = shared.iter().zip(&alone).find(|(one, other)| one != other);
        assert!(shared == alone, "{name}: {} and {} lines; {differ:#?}", shared.len(), alone.len());
    }
    let transactions = objects(&folder.path().join("http.json")).len() as u64;
    assert_eq!(transactions, sent.transactions + sent.unanswered);
}

#[test]
fn flows_in_the_kernel_beside_other_analyses_are_those_of_the_single_command() {
    if require_root("flows_in_the_kernel_beside_other_analyses_are_those_of_the_single_command") {
        beside("1", "", &[]);
    }
}

/// Parts come through the rings, between the packets.
#[test]
fn small_caches_beside_other_analyses_have_the_flows_of_the_single_command() {
    if require_root("small_caches_beside_other_analyses_have_the_flows_of_the_single_command") {
        beside("1", "cache-entries = 1", &["--cache-entries", "1"]);
    }
}

#[test]
fn flows_of_two_workers_in_the_kernel_beside_other_analyses_are_those_of_the_single_command() {
    if require_root(
        "flows_of_two_workers_in_the_kernel_beside_other_analyses_are_those_of_the_single_command",
    ) {
        beside("2", "", &[]);
    }
}

/// Sampling leaves packets out of the flows, and of no other analysis.
#[test]
fn sampled_flows_in_the_kernel_leave_other_analyses_all_packets() {
    if require_root("sampled_flows_in_the_kernel_leave_other_analyses_all_packets") {
        beside("1", "sampling = 3", &["--sampling", "3"]);
    }
}

/// Packets that find no room in the ring, or whose flow needs an entry whose part finds none, are lost once in the ledger.
/// The recording has those that were delivered, and the flows have those that the caches have counted.
#[test]
fn a_full_ring_beside_flows_in_the_kernel_loses_packets_once() {
    if !require_root("a_full_ring_beside_flows_in_the_kernel_loses_packets_once") {
        return;
    }
    const FIRST: u64 = 20_000;
    const PACKETS: u64 = FIRST + 3000;
    let lab = Lab::new(1).unwrap();
    let folder = open_folder();
    let (file, recording) = (folder.path().join("site.toml"), folder.path().join("all.pcapng"));
    let site = format!(
        "[capture]\ninterface = \"{}\"\ndirection = \"rx\"\nhook = \"native\"\nring-size = 1\n[record]\nwrite = \"{}\"\n\
         [flows]\ncache = \"kernel\"\ncache-entries = 1\noutput-rate = 0\n",
        lab.receiver().device,
        recording.display(),
    );
    fs::write(&file, site).unwrap();
    let monitor = capture(&lab, &["monitor", file.to_str().unwrap(), "--json"]).unwrap();
    monitor.signal(Signal::Stop).unwrap();
    send(&lab, FIRST, &["--flows", "500", "--rate", "40k"]).unwrap();
    monitor.signal(Signal::Continue).unwrap();
    // There is room again.
    send(&lab, 3000, &["--flows", "500", "--rate", "10k"]).unwrap();
    let last = last_of(&monitor.terminate(LIMIT).unwrap()).unwrap();
    let [seen, lost, analysed] = ["seen", "lost", "analysed"].map(|name| column(&last, name));
    assert_eq!((seen, analysed + lost, column(&last, "absorbed")), (PACKETS, PACKETS, 0), "{last}");
    assert!(lost > FIRST / 2, "{last}");
    assert_eq!(column(&last["workers"][0], "seen"), PACKETS, "{last}");
    let (analyses, cache) = (&last["analyses"], &last["flow_cache"]);
    assert_eq!(column(&analyses["record"], "written"), analysed, "{analyses}");
    assert_eq!(in_file(&recording).unwrap().len() as u64, analysed);
    let measured = column(cache, "packets");
    assert_eq!(column(&analyses["flows"], "flow_packets"), measured, "{analyses}");
    assert_eq!(column(&analyses["flows"], "flow_wire_bytes"), 60 * measured, "{analyses}");
    assert!((analysed..PACKETS).contains(&measured), "{measured} of {PACKETS}, {analysed} delivered");
}

/// `check` and the monitor refuse analyses in the kernel that exclude other sections, with line and column, also where a key
/// of [capture] excludes it. What it can do beside others is accepted.
#[test]
fn what_the_kernel_cannot_do_beside_others_is_refused_with_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("site.toml");
    let run = |command: &str, text: &str| {
        fs::write(&file, text).unwrap();
        let words = [command, file.to_str().unwrap()];
        std::process::Command::new(wirelane_binary().unwrap()).args(words).output().unwrap()
    };
    let kernel = "cache = \"kernel\"";
    let device = "[capture]\ninterface = \"eth1\"\n";
    for (text, expected) in [
        (
            format!("{device}[record]\nwrite = \"x\"\n[http]\nanalysis = \"kernel\"\n"),
            "6:12: analysis: 'kernel' leaves bodies",
        ),
        (
            format!("[capture]\nread = \"x.pcap\"\n[http]\n[flows]\n{kernel}\n"),
            "5:9: cache: a file is not analysed in",
        ),
        (
            format!("{device}packets = 5\n[http]\n[flows]\n{kernel}\n"),
            "3:11: packets: with --cache kernel packets are not",
        ),
        (
            format!("{device}steering = \"copy\"\n[http]\n[flows]\n{kernel}\n"),
            "3:12: steering: this would spread a flow's",
        ),
        (
            format!("{device}[http]\n[flows]\ncache-entries = 5\n"),
            "5:17: cache-entries: this is for --cache kernel",
        ),
        (
            format!("{device}workers = 2\n[flows]\n[voip]\nanalysis = \"kernel\"\n"),
            "3:11: workers: with --analysis kernel",
        ),
        (format!("{device}[flows]\n[voip]\nstreams = 5\n"), "5:11: streams: this is for --analysis kernel"),
    ] {
        for command in ["check", "monitor"] {
            let output = run(command, &text);
            let errors = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(2), "{text}\n{errors}");
            assert!(errors.contains(&format!("site.toml:{expected}")), "{text}\n{errors}");
            assert_eq!(errors.lines().count(), 1, "{text}\n{errors}");
        }
    }
    let sections = "[record]\nwrite = \"x\"\n[http]\n[voip]\nanalysis = \"kernel\"\n";
    let output = run("check", &format!("{device}{sections}[flows]\n{kernel}\ncache-entries = 5\n"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
