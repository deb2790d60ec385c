//! Tuning and polling threads on a veth pair, where threaded NAPI and GRO are real.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use serde_json::Value;
use wirelane_tests::{Child, Finished, Lab, LabOptions, Signal, brokers, require_root, wirelane_binary};

const LIMIT: Duration = Duration::from_secs(240);
const PACKETS: u64 = 20_000;

fn start(lab: &Lab, namespace: &str, words: &[&str]) -> Child {
    Child::spawn(lab.command(namespace, wirelane_binary().unwrap()).args(words)).unwrap()
}

fn wirelane(lab: &Lab, words: &[&str]) -> Finished {
    start(lab, &lab.receiver().namespace, words).finish(LIMIT).unwrap()
}

fn capture(lab: &Lab, words: &[&str]) -> Child {
    let all = [&["count", "-i", "rx0", "--hook", "native", "--json"], words].concat();
    let mut child = start(lab, &lab.receiver().namespace, &all);
    child.wait_ready(LIMIT).unwrap();
    child
}

/// Content of a sysfs file of the device.
fn sysfs(lab: &Lab, file: &str) -> String {
    let path = format!("/sys/class/net/rx0/{file}");
    lab.exec(&lab.receiver().namespace, &["cat", &path]).unwrap().trim().to_owned()
}

/// Queue and process id of every polling thread, as reported by `wirelane devices`.
fn threads(lab: &Lab) -> Vec<(u64, u64)> {
    let seen = wirelane(lab, &["devices", "rx0", "--json"]).json().unwrap();
    let queues = seen[0]["rx_queues"].as_array().unwrap().clone();
    queues
        .iter()
        .filter_map(|queue| Some((queue["queue"].as_u64()?, queue["napi_thread"].as_u64()?)))
        .collect()
}

/// The CPUs that a thread may run on.
fn allowed(pid: u64) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
    line.trim().to_owned()
}

fn cpus() -> usize {
    std::thread::available_parallelism().unwrap().get()
}

/// The journal of a device, as `tune status` reports it.
fn journal(lab: &Lab) -> Option<String> {
    let status = wirelane(lab, &["tune", "status", "-i", "rx0", "--json"]).json().unwrap();
    status[0]["journal"].as_str().map(str::to_owned)
}

fn send(lab: &Lab) {
    let number = PACKETS.to_string();
    let words = ["send", "-i", "tx0", "--packets", &number, "--rate", "50k", "--method", "socket", "--json"];
    let sent = start(lab, &lab.sender().namespace, &words).finish(LIMIT).unwrap();
    assert!(sent.status.success(), "{}", sent.stderr);
}

fn field(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or_else(|| panic!("no {name} in {value}"))
}

/// True if this kernel reports the thread of each queue (Linux 6.8); otherwise the test leaves that part out.
fn tells_threads() -> bool {
    wirelane_tests::kernel_version().unwrap() >= (6, 8)
}

#[test]
fn polling_threads_feed_a_capture_and_go_with_it() {
    if !require_root("polling_threads_feed_a_capture_and_go_with_it") {
        return;
    }
    let lab = Lab::new(2).unwrap();
    assert_eq!(sysfs(&lab, "threaded"), "0");
    let running = capture(&lab, &["--polling", "threaded", "--workers", "2"]);
    assert_eq!(sysfs(&lab, "threaded"), "1");
    if tells_threads() {
        let threads = threads(&lab);
        assert_eq!(threads.iter().map(|(queue, _)| *queue).collect::<Vec<_>>(), [0, 1]);
        for (_, pid) in &threads {
            let allowed = allowed(*pid);
            assert!(cpus() == 1 || allowed.parse::<usize>().is_ok(), "bound to one CPU: {allowed}");
        }
    }
    let path = journal(&lab).expect("a journal while the capture runs");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    send(&lab);
    let last = running.terminate(LIMIT).unwrap().last_json().unwrap();
    for column in ["seen", "delivered", "analysed"] {
        assert_eq!(field(&last, column), PACKETS, "{column} of {last}");
    }
    for worker in last["workers"].as_array().unwrap() {
        assert!(worker["core"].is_u64(), "workers are placed too: {worker}");
    }
    assert_eq!(sysfs(&lab, "threaded"), "0");
    assert!(!fs::exists(&path).unwrap(), "the journal goes with the last change");
}

#[test]
fn the_last_capture_puts_back_what_the_first_changed() {
    if !require_root("the_last_capture_puts_back_what_the_first_changed") {
        return;
    }
    let lab = Lab::new(2).unwrap();
    let first = capture(&lab, &["--polling", "threaded"]);
    let second = capture(&lab, &["--polling", "threaded"]);
    // A capture with another mode is refused with the process id of the first.
    let other = ["count", "-i", "rx0", "--hook", "native", "--polling", "interrupt"];
    let refused = wirelane(&lab, &other);
    assert_eq!(refused.status.code(), Some(1));
    assert!(refused.stderr.contains(&format!("process {} holds it", first.pid())), "{}", refused.stderr);
    assert_eq!(sysfs(&lab, "threaded"), "1");

    // Restoring does not affect running captures.
    let held = wirelane(&lab, &["tune", "restore", "-i", "rx0"]);
    assert_eq!(held.status.code(), Some(3), "{}", held.stderr);
    assert!(held.stderr.contains("holds it"), "{}", held.stderr);
    assert_eq!(sysfs(&lab, "threaded"), "1");

    assert!(first.terminate(LIMIT).unwrap().status.success());
    assert_eq!(sysfs(&lab, "threaded"), "1", "the second capture still runs");
    send(&lab);
    let last = second.terminate(LIMIT).unwrap().last_json().unwrap();
    assert_eq!(field(&last, "analysed"), PACKETS, "{last}");
    assert_eq!(sysfs(&lab, "threaded"), "0");
    assert_eq!(journal(&lab), None);
}

/// Kills a capture together with its broker, which would restore the settings.
fn kill_with_broker(lab: &Lab, killed: Child) {
    for broker in brokers(lab) {
        lab.exec(&lab.receiver().namespace, &["kill", "-KILL", &broker.to_string()]).unwrap();
    }
    killed.signal(Signal::Kill).unwrap();
    assert!(!killed.finish(LIMIT).unwrap().status.success());
    assert!(brokers(lab).is_empty());
    assert_eq!(sysfs(lab, "threaded"), "1", "nobody could put it back");
}

#[test]
fn what_a_killed_capture_and_its_broker_leave_is_put_back_by_the_next() {
    if !require_root("what_a_killed_capture_and_its_broker_leave_is_put_back_by_the_next") {
        return;
    }
    let lab = Lab::new(2).unwrap();
    let killed = capture(&lab, &["--polling", "threaded"]);
    kill_with_broker(&lab, killed);

    // A capture without settings of its own.
    let next = capture(&lab, &[]);
    assert_eq!(sysfs(&lab, "threaded"), "0");
    assert_eq!(journal(&lab), None);
    assert!(next.terminate(LIMIT).unwrap().status.success());
}

#[test]
fn what_a_killed_capture_and_its_broker_leave_is_put_back_by_restore() {
    if !require_root("what_a_killed_capture_and_its_broker_leave_is_put_back_by_restore") {
        return;
    }
    let lab = Lab::new(2).unwrap();
    let killed = capture(&lab, &["--polling", "threaded"]);
    kill_with_broker(&lab, killed);
    // The program is removed a moment after its process, and the NAPI instances with it.
    let end = Instant::now() + LIMIT;
    while lab.exec(&lab.receiver().namespace, &["ip", "link", "show", "rx0"]).unwrap().contains("xdp") {
        assert!(Instant::now() < end, "the program stays");
        std::thread::sleep(Duration::from_millis(10));
    }
    let status = wirelane(&lab, &["tune", "status", "-i", "rx0"]);
    assert!(status.lines.iter().any(|line| line.contains("has ended")), "{:#?}", status.lines);
    let restored = wirelane(&lab, &["tune", "restore", "-i", "rx0"]);
    assert!(restored.status.success(), "{}", restored.stderr);
    assert_eq!(sysfs(&lab, "threaded"), "0", "{:#?}", restored.lines);
    assert!(offload(&lab, "generic-receive-offload").starts_with("off"), "as it was");
    assert_eq!(journal(&lab), None);
    let again = wirelane(&lab, &["tune", "restore", "-i", "rx0"]);
    assert!(again.status.success() && again.lines[0].contains("nothing to restore"), "{:?}", again.lines);
}

/// A feature, as ethtool prints it: `on`, `off [fixed]`.
fn offload(lab: &Lab, name: &str) -> String {
    let all = lab.exec(&lab.receiver().namespace, &["ethtool", "-k", "rx0"]).unwrap();
    let line = all.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(": "));
    line.unwrap_or_else(|| panic!("no {name} in {all}")).to_owned()
}

#[test]
fn a_plan_changes_nothing_and_applying_it_can_be_undone() {
    if !require_root("a_plan_changes_nothing_and_applying_it_can_be_undone") {
        return;
    }
    let lab = Lab::with(&LabOptions { queues: 2, offloads: true, ..LabOptions::default() }).unwrap();
    lab.exec(&lab.receiver().namespace, &["ethtool", "-K", "rx0", "gro", "on"]).unwrap();
    let before = lab.exec(&lab.receiver().namespace, &["ethtool", "-k", "rx0"]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("journal").display().to_string();

    let plan = wirelane(&lab, &["tune", "-i", "rx0", "--workers", "2", "--json"]).json().unwrap();
    let changes = plan[0]["changes"].as_array().unwrap();
    let gro = changes.iter().find(|change| change["what"]["name"] == "rx-gro").unwrap();
    assert_eq!((&gro["now"], &gro["new"]), (&Value::from("on"), &Value::from("off")));
    assert!(changes.iter().all(|change| !change["reason"].as_str().unwrap().is_empty()));
    assert_eq!(plan[1]["workers"].as_array().unwrap().len(), 2);
    assert_eq!(lab.exec(&lab.receiver().namespace, &["ethtool", "-k", "rx0"]).unwrap(), before);
    assert_eq!(sysfs(&lab, "threaded"), "0");

    let words =
        ["tune", "apply", "-i", "rx0", "--workers", "2", "--polling", "interrupt", "--journal", &file];
    let applied = wirelane(&lab, &words);
    assert!(applied.status.success(), "{} {:#?}", applied.stderr, applied.lines);
    assert!(offload(&lab, "generic-receive-offload").starts_with("off"));
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let status = wirelane(&lab, &["tune", "status", "-i", "rx0", "--journal", &file]);
    assert!(status.lines.iter().any(|line| line.contains("rx-gro: on -> off")), "{:#?}", status.lines);

    // A file that is not a journal is refused.
    fs::write(folder.path().join("diary"), "dear diary\n").unwrap();
    let diary = folder.path().join("diary").display().to_string();
    let refused = wirelane(&lab, &["tune", "restore", "-i", "rx0", "--journal", &diary]);
    assert!(refused.stderr.contains("not a journal of wirelane tune"), "{}", refused.stderr);

    let restored = wirelane(&lab, &["tune", "restore", "-i", "rx0", "--journal", &file]);
    assert!(restored.status.success(), "{}", restored.stderr);
    assert_eq!(lab.exec(&lab.receiver().namespace, &["ethtool", "-k", "rx0"]).unwrap(), before);
    assert!(!fs::exists(&file).unwrap());
}

/// Settings that are active when a plan is applied belong to the plan.
#[test]
fn applied_threads_outlive_a_capture() {
    if !require_root("applied_threads_outlive_a_capture") {
        return;
    }
    let lab = Lab::new(2).unwrap();
    let running = capture(&lab, &["--polling", "threaded"]);
    let applied = wirelane(&lab, &["tune", "apply", "-i", "rx0", "--workers", "2"]);
    assert!(applied.status.success(), "{} {:#?}", applied.stderr, applied.lines);
    assert!(running.terminate(LIMIT).unwrap().status.success());
    assert_eq!(sysfs(&lab, "threaded"), "1", "it was applied");
    let restored = wirelane(&lab, &["tune", "restore", "-i", "rx0"]);
    assert!(restored.status.success(), "{}", restored.stderr);
    assert_eq!(sysfs(&lab, "threaded"), "0");
    assert_eq!(journal(&lab), None);
}

#[test]
fn what_cannot_be_changed_is_named_and_the_rest_is_changed() {
    if !require_root("what_cannot_be_changed_is_named_and_the_rest_is_changed") {
        return;
    }
    let lab = Lab::with(&LabOptions { queues: 2, offloads: true, ..LabOptions::default() }).unwrap();
    let namespace = &lab.receiver().namespace;
    lab.exec(namespace, &["ethtool", "-K", "rx0", "gro", "on"]).unwrap();
    lab.exec(namespace, &["sh", "-c", "echo 1 > /sys/class/net/rx0/queues/rx-1/rps_cpus"]).unwrap();
    let rps = sysfs(&lab, "queues/rx-1/rps_cpus");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("journal").display().to_string();
    let binary = wirelane_binary().unwrap().display().to_string();
    // A read-only sysfs as in containers: RPS cannot be switched off, offloads (by ioctl) can.
    let script =
        format!("mount -o remount,ro /sys && exec {binary} tune apply -i rx0 --workers 2 --journal {file}");
    let partial =
        Child::spawn(lab.command(namespace, "sh").args(["-c", &script])).unwrap().finish(LIMIT).unwrap();
    assert_eq!(partial.status.code(), Some(3), "{} {:#?}", partial.stderr, partial.lines);
    assert!(
        partial.stderr.contains("rx0: RPS of queue 1: its file system is mounted read-only"),
        "{}",
        partial.stderr
    );
    assert!(offload(&lab, "generic-receive-offload").starts_with("off"));
    assert_eq!(sysfs(&lab, "queues/rx-1/rps_cpus"), rps);

    // Without rights nothing is changed, and each step names the missing capability.
    lab.exec(namespace, &["ethtool", "-K", "rx0", "gro", "on"]).unwrap();
    fs::remove_file(&file).unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let words = [
        "--reuid",
        "65534",
        "--regid",
        "65534",
        "--clear-groups",
        &binary,
        "tune",
        "apply",
        "-i",
        "rx0",
        "--journal",
        &file,
    ];
    let without = Child::spawn(lab.command(namespace, "setpriv").args(words)).unwrap().finish(LIMIT).unwrap();
    assert_eq!(without.status.code(), Some(3), "{} {:#?}", without.stderr, without.lines);
    assert!(
        without.stderr.contains("offload rx-gro: not permitted: it needs CAP_NET_ADMIN"),
        "{}",
        without.stderr
    );
    assert!(offload(&lab, "generic-receive-offload").starts_with("on"));
    assert!(!fs::exists(&file).unwrap(), "nothing is changed, so nothing is noted");
}

#[test]
fn cores_are_chosen_where_that_is_asked_for() {
    if !require_root("cores_are_chosen_where_that_is_asked_for") {
        return;
    }
    let lab = Lab::new(2).unwrap();
    let running = capture(&lab, &["--cores", "auto", "--workers", "2"]);
    send(&lab);
    let last = running.terminate(LIMIT).unwrap().last_json().unwrap();
    assert_eq!(field(&last, "analysed"), PACKETS, "{last}");
    let cores: Vec<u64> = last["workers"].as_array().unwrap().iter().map(|one| field(one, "core")).collect();
    assert!(cpus() < 2 || cores[0] != cores[1], "each worker has a core of its own: {cores:?}");
    assert_eq!(sysfs(&lab, "threaded"), "0", "only cores were asked for");
    assert_eq!(journal(&lab), None);

    let refused = wirelane(&lab, &["count", "-i", "rx0", "--cores", "some"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(refused.stderr.contains("or 'auto'"), "{}", refused.stderr);
}

#[test]
fn busy_threads_are_had_or_refused_by_name() {
    if !require_root("busy_threads_are_had_or_refused_by_name") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let words = ["count", "-i", "rx0", "--hook", "native", "--json", "--polling", "busy", "--duration", "1"];
    let ended = wirelane(&lab, &words);
    if wirelane_tests::kernel_version().unwrap() >= (6, 19) {
        assert!(ended.status.success(), "{}", ended.stderr);
    } else {
        assert_eq!(ended.status.code(), Some(1));
        assert!(
            ended.stderr.contains("6.19") && ended.stderr.contains("--polling threaded"),
            "{}",
            ended.stderr
        );
    }
    assert_eq!(sysfs(&lab, "threaded"), "0");
    assert_eq!(journal(&lab), None);
}

/// After `nsenter --net` /sys shows another namespace; settings that need sysfs are refused by name.
#[test]
fn a_sysfs_of_another_namespace_is_not_written_to() {
    if !require_root("a_sysfs_of_another_namespace_is_not_written_to") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let namespace = format!("--net=/run/netns/{}", lab.receiver().namespace);
    let binary = wirelane_binary().unwrap();
    let words = ["count", "-i", "rx0", "--hook", "native", "--polling", "threaded", "--duration", "1"];
    let mut command = std::process::Command::new("nsenter");
    let refused =
        Child::spawn(command.arg(namespace).arg(binary).args(words)).unwrap().finish(LIMIT).unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(refused.stderr.contains("ip netns exec"), "{}", refused.stderr);
    assert_eq!(sysfs(&lab, "threaded"), "0");
    assert_eq!(journal(&lab), None);
}
