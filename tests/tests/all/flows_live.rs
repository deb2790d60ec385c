//! Flow caches of the kernel and timeouts of flows that change while a monitor runs.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::Value;
use wirelane_tests::numbers::{LIMIT, capture, column, last_of, wirelane};
use wirelane_tests::{Child, Lab, LabOptions, maps_named, require_root};

const FLOWS: u64 = 500;

/// Writes the file of a monitor of flows in the kernel, with these lines in [flows], and in sections behind it.
fn write(lab: &Lab, folder: &Path, flows: &str) -> PathBuf {
    let file = folder.join("site.toml");
    let text = format!(
        "[capture]\ninterface = \"{}\"\ndirection = \"rx\"\nworkers = 2\ninterval = 0.1\nrules = \"{}\"\n\
         rules-capacity = \"rules=10\"\n[flows]\ncache = \"kernel\"\noutput-rate = 0\nexport = \"file:{}\"\n{flows}\n",
        lab.receiver().device,
        rules(folder, 1).display(),
        folder.join("flows.json").display()
    );
    fs::write(&file, text).unwrap();
    file
}

/// Writes so many rules that count what does not come.
fn rules(folder: &Path, number: u16) -> PathBuf {
    let file = folder.join("rules.toml");
    let rule = |id| format!("[[rule]]\nid = {id}\nprotocol = \"tcp\"\ndst-port = {id}\naction = \"count\"\n");
    fs::write(&file, (1..=number).map(rule).collect::<String>()).unwrap();
    file
}

/// Reads the file again, and returns what has changed, or why nothing has.
fn reload(lab: &Lab, monitor: &Child) -> Result<Value, String> {
    let pid = monitor.pid().to_string();
    let words = ["reload", "--pid", &pid, "--json"];
    let finished = wirelane(lab, &lab.receiver().namespace, &words).unwrap().finish(LIMIT).unwrap();
    match finished.status.success() {
        true => Ok(finished.last_json().unwrap()["changed"].clone()),
        false => Err(finished.stderr),
    }
}

/// The next report that is as expected.
fn report_when(monitor: &Child, expected: impl Fn(&Value) -> bool) -> Value {
    let begun = Instant::now();
    loop {
        let report = monitor.next_json(LIMIT).unwrap().expect("the monitor has ended");
        if report.get("seen").is_some() && expected(&report) {
            return report;
        }
        assert!(begun.elapsed() < LIMIT, "{report}");
    }
}

/// Caches grow and shrink ten times under traffic: each flow has all of its packets, none is lost, and the caches before are
/// freed. A size beyond what a running capture may get is refused, and changes nothing.
#[test]
fn caches_change_their_size_without_losing_a_packet() {
    if require_root("caches_change_their_size_without_losing_a_packet") {
        caches_change_their_size("", false);
    }
}

/// The same beside HTTP and calls, which get all packets.
#[test]
fn caches_beside_other_analyses_change_their_size_without_losing_a_packet() {
    if require_root("caches_beside_other_analyses_change_their_size_without_losing_a_packet") {
        caches_change_their_size("\n[http]\n[voip]\n", true);
    }
}

fn caches_change_their_size(sections: &str, delivers: bool) {
    const PACKETS: u64 = 400 * FLOWS;
    // The maps of the whole machine are counted.
    let lab = Lab::with(&LabOptions { queues: 2, alone: true, ..LabOptions::default() }).unwrap();
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(folder.path(), Some(65_534), None).unwrap();
    let lines = |entries: u32| format!("inactive-timeout = 1\ncache-entries = {entries}{sections}");
    let before = maps_named("wl_flow").len();
    let file = write(&lab, folder.path(), &lines(256));
    let monitor = capture(&lab, &["monitor", file.to_str().unwrap(), "--json"]).unwrap();
    let entries = |report: &Value| column(&report["flow_cache"], "entries");
    let first = entries(&report_when(&monitor, |_| true));
    assert_eq!(maps_named("wl_flow").len(), before + 1);

    let (packets, flows) = (PACKETS.to_string(), FLOWS.to_string());
    let device = &lab.sender().device;
    let words = ["send", "-i", device, "--packets", &packets, "--flows", &flows, "--rate", "10k", "--json"];
    let sender = wirelane(&lab, &lab.sender().namespace, &words).unwrap();
    report_when(&monitor, |report| column(report, "seen") > 0);
    for size in [8192, 512, 16_384, 256, 4096, 1024, 2048, 8192, 512, 16_384] {
        write(&lab, folder.path(), &lines(size));
        assert_eq!(reload(&lab, &monitor).unwrap(), serde_json::json!(["flows"]));
        let expected = first / 256 * u64::from(size);
        report_when(&monitor, |report| entries(report) == expected);
    }
    assert_eq!(reload(&lab, &monitor).unwrap(), serde_json::json!([]));
    write(&lab, folder.path(), &lines(1 << 20));
    let refused = reload(&lab, &monitor).unwrap_err();
    assert!(refused.contains("flows: --cache-entries: the caches would take "), "{refused}");
    // More rules than the capacity allows: the capture changes nothing.
    write(&lab, folder.path(), &lines(1024));
    rules(folder.path(), 1000);
    let refused = reload(&lab, &monitor).unwrap_err();
    assert!(refused.contains("rules: ") && !refused.contains("changed back"), "{refused}");
    assert_eq!(column(&last_of(&sender.finish(LIMIT).unwrap()).unwrap(), "sent"), PACKETS);
    // The former caches are freed once they have been read.
    report_when(&monitor, |report| {
        maps_named("wl_flow").len() == before + 1 && entries(report) == first * 64
    });

    let last = last_of(&monitor.terminate(LIMIT).unwrap()).unwrap();
    let counts = ["seen", "lost", "shed", "delivered"].map(|name| column(&last, name));
    let (delivered, absorbed) = if delivers { (PACKETS, 0) } else { (0, PACKETS) };
    assert_eq!(counts, [PACKETS, 0, 0, delivered], "{last}");
    assert_eq!(column(&last, "absorbed"), absorbed, "{last}");
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    for line in fs::read_to_string(folder.path().join("flows.json")).unwrap().lines() {
        let flow: Value = serde_json::from_str(line).unwrap();
        let key = ["src", "dst", "src_port", "dst_port"].map(|name| flow[name].to_string()).join(" ");
        *sums.entry(key).or_default() += column(&flow, "packets");
    }
    assert_eq!(sums.len() as u64, FLOWS);
    assert!(sums.values().all(|packets| *packets == PACKETS / FLOWS), "{sums:?}");
    assert_eq!(maps_named("wl_flow").len(), before);
}

/// Flows whose timeout was long end when a shorter one comes, without packets.
#[test]
fn timeouts_change_for_flows_that_are_there() {
    if !require_root("timeouts_change_for_flows_that_are_there") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(folder.path(), Some(65_534), None).unwrap();
    let file = write(&lab, folder.path(), "inactive-timeout = \"1h\"\nactive-timeout = \"2h\"");
    let monitor = capture(&lab, &["monitor", file.to_str().unwrap(), "--json"]).unwrap();
    wirelane_tests::numbers::send(&lab, 4 * FLOWS, &["--flows", &FLOWS.to_string(), "--rate", "10k"])
        .unwrap();
    let ended = |status: &Value| status["analyses"][0]["counts"]["flows"].as_u64().unwrap_or(0);
    let status = || {
        let words = ["status", "--pid", &monitor.pid().to_string(), "--json"];
        wirelane(&lab, &lab.receiver().namespace, &words).unwrap().finish(LIMIT).unwrap().last_json().unwrap()
    };
    // Longer than the parts stay in the kernel.
    std::thread::sleep(std::time::Duration::from_secs(4));
    assert_eq!(ended(&status()), 0, "{}", status());
    write(&lab, folder.path(), "inactive-timeout = 1\nactive-timeout = \"2h\"");
    assert_eq!(reload(&lab, &monitor).unwrap(), serde_json::json!(["flows"]));
    let begun = Instant::now();
    while ended(&status()) < FLOWS {
        assert!(begun.elapsed() < LIMIT, "{}", status());
    }
    let last = last_of(&monitor.terminate(LIMIT).unwrap()).unwrap();
    assert_eq!(["seen", "lost"].map(|name| column(&last, name)), [4 * FLOWS, 0], "{last}");
}
