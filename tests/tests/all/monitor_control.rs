//! `wirelane status` and `wirelane reload`: a running monitor says whether its outputs work, and takes a changed file
//! over without losing a packet, completely or not at all.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;
use wirelane_tests::numbers::{LIMIT, capture, column, in_file, last_of, send, wirelane};
use wirelane_tests::recordings::Disk;
use wirelane_tests::{Child, Finished, Lab, Signal, require_root};

/// A folder that the user to whom the program drops its privileges may write to.
fn open_folder() -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    folder
}

/// Writes a configuration that every user can read.
fn write(folder: &Path, text: &str) -> PathBuf {
    let file = folder.join("site.toml");
    fs::write(&file, text).unwrap();
    file
}

/// Runs a command on the receiver's side of the lab.
fn run(lab: &Lab, words: &[&str]) -> Finished {
    wirelane(lab, &lab.receiver().namespace, words).unwrap().finish(LIMIT).unwrap()
}

/// The status of the monitor on the lab's device.
fn status(lab: &Lab) -> Value {
    let finished = run(lab, &["status", &lab.receiver().device, "--json"]);
    assert!(finished.status.success(), "{}", finished.stderr);
    finished.last_json().unwrap()
}

/// The status once it is as expected.
fn status_when(lab: &Lab, expected: impl Fn(&Value) -> bool) -> Value {
    let begun = Instant::now();
    loop {
        let status = status(lab);
        if expected(&status) {
            return status;
        }
        assert!(begun.elapsed() < LIMIT, "{status}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// An output of an analysis.
fn output<'a>(status: &'a Value, analysis: &str, at: usize) -> &'a Value {
    let all = status["analyses"].as_array().unwrap();
    let found = all.iter().find(|one| one["name"] == analysis);
    &found.unwrap_or_else(|| panic!("no {analysis} in {status}"))["outputs"][at]
}

/// A monitor's status has its ledger, its analyses and its outputs. A recording and a log on a full disk are shown as
/// failing, with their losses, until there is room again.
/// Battery: F3
#[test]
fn the_status_shows_which_outputs_work_and_what_they_have_lost() {
    if !require_root("the_status_shows_which_outputs_work_and_what_they_have_lost") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let folder = open_folder();
    let disk = Disk::new("tmpfs", "size=1m,mode=777").unwrap();
    let device = &lab.receiver().device;
    let (recording, flows) = (disk.path().join("all.pcapng"), folder.path().join("flows.json"));
    let text = format!(
        "[capture]\ninterface = \"{device}\"\ndirection = \"rx\"\ninterval = 0.1\n[record]\nwrite = \"{}\"\n\
         [flows]\ninactive-timeout = 1\noutput-rate = 0\nexport = [\"file:{}\", \"ipfix://127.0.0.1:9?transport=tcp\"]\n\
         [store]\nfolder = \"{}\"\n",
        recording.display(),
        flows.display(),
        folder.path().join("store").display(),
    );
    let file = write(folder.path(), &text);
    let monitor = capture(&lab, &["monitor", file.to_str().unwrap(), "--json"]).unwrap();
    send(&lab, 1000, &["--flows", "10", "--size", "100"]).unwrap();
    let written = |status: &Value| column(output(status, "record", 0), "written");
    let first = status_when(&lab, |status| {
        written(status) == column(&status["ledger"], "seen")
            && column(output(status, "flows", 0), "written") >= 10
    });
    assert!(column(&first["ledger"], "seen") >= 1000, "{first}");
    assert!(
        first["uptime_s"].as_f64().unwrap() > 0.0 && column(&first, "pid") == u64::from(monitor.pid()),
        "{first}"
    );
    let busy = first["workers"][0]["busy"].as_f64().unwrap();
    assert!((0.0..=1.0).contains(&busy) && first["workers"][0]["progress"] == true, "{first}");
    let works = |status: &Value, analysis: &str, at: usize| output(status, analysis, at)["works"] == true;
    assert!(works(&first, "record", 0) && works(&first, "flows", 0) && works(&first, "flows", 2), "{first}");
    // Nobody listens at the collector's port.
    let away = output(&first, "flows", 1);
    assert!(away["works"] == false && away["failing_since_s"].as_u64().is_some(), "{away}");

    let ballast = disk.path().join("ballast");
    // The disk is filled as far as it goes.
    let _ = fs::write(&ballast, vec![0; 1 << 20]);
    let began = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    send(&lab, 2000, &["--size", "1000"]).unwrap();
    let full = status_when(&lab, |status| {
        !works(status, "record", 0) && column(output(status, "record", 0), "lost") > 0
    });
    let of_disk = output(&full, "record", 0);
    let since = column(of_disk, "failing_since_s");
    assert!(since >= began && since <= began + LIMIT.as_secs(), "{of_disk} since {began}");
    assert!(of_disk["error"].as_str().unwrap().contains("No space left"), "{of_disk}");
    assert!(works(&full, "flows", 0), "{full}");
    let shown = run(&lab, &["status", device]);
    let text = shown.lines.join("\n");
    assert!(text.contains("FAILS since 20") && text.contains("No space left"), "{text}");

    fs::remove_file(&ballast).unwrap();
    let begun = Instant::now();
    while !works(&status(&lab), "record", 0) {
        assert!(begun.elapsed() < LIMIT, "{}", status(&lab));
        send(&lab, 10, &["--size", "100"]).unwrap();
        std::thread::sleep(Duration::from_millis(200));
    }
    let again = status(&lab);
    assert_eq!(output(&again, "record", 0).get("failing_since_s"), None, "{again}");
    let finished = monitor.terminate(LIMIT).unwrap();
    assert_eq!(finished.status.code(), Some(1), "packets are unwritten: {}", finished.stderr);
    let last = finished.last_json().unwrap();
    let record = &last["analyses"]["record"];
    assert_eq!(column(record, "written") + column(record, "unwritten"), column(&last, "seen"), "{last}");
    let none = run(&lab, &["status", device]);
    assert_eq!(none.status.code(), Some(1));
    assert!(none.stderr.contains(&format!("no monitor on {device} is running")), "{}", none.stderr);
}

/// Configuration of the reloads, with this filter, these rules and these lines in [flows].
fn site(lab: &Lab, folder: &Path, capture: &str, flows: &str) -> String {
    format!(
        "[capture]\ninterface = \"{}\"\ndirection = \"rx\"\nring-size = 32\n{capture}\n[record]\nwrite = \"{}\"\n[flows]\n{flows}\n",
        lab.receiver().device,
        folder.join("all.pcapng").display()
    )
}

fn reload(lab: &Lab, monitor: &Child) -> Finished {
    run(lab, &["reload", "--pid", &monitor.pid().to_string(), "--json"])
}

/// Filter, rules and interval change under numbered traffic: every packet that all of them accept is in the recording once, in
/// order, and the ledger balances. A file with mistakes, or with a change that needs a restart, changes nothing and is answered
/// with the places of all of them.
#[test]
fn a_changed_file_takes_over_without_losing_a_packet_or_not_at_all() {
    if !require_root("a_changed_file_takes_over_without_losing_a_packet_or_not_at_all") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let folder = open_folder();
    let rules = folder.path().join("rules.toml");
    let rule =
        |port: u16| format!("[[rule]]\nid = 1\nprotocol = \"udp\"\nsrc-port = {port}\naction = \"drop\"\n");
    fs::write(&rules, rule(9)).unwrap();
    let capture_of = |filter: &str, interval: &str| {
        format!("filter = \"{filter}\"\nrules = \"{}\"\ninterval = {interval}", rules.display())
    };
    // No packet of the generator comes from the ports that filters and rules exclude.
    let text = |filter, interval| site(&lab, folder.path(), &capture_of(filter, interval), "memory = 64");
    let file = write(folder.path(), &text("not port 7", "0.2"));
    let monitor = capture(&lab, &["monitor", file.to_str().unwrap(), "--json"]).unwrap();
    const PACKETS: u64 = 60_000;
    let number = PACKETS.to_string();
    let sending = [
        "send",
        "-i",
        &lab.sender().device,
        "--packets",
        &number,
        "--rate",
        "20000",
        "--method",
        "socket",
        "--json",
    ];
    let sender = wirelane(&lab, &lab.sender().namespace, &sending).unwrap();
    status_when(&lab, |status| column(&status["ledger"], "seen") > 0);

    let changed = |expected: &[&str]| {
        let finished = reload(&lab, &monitor);
        assert!(finished.status.success(), "{}", finished.stderr);
        let changed = &finished.last_json().unwrap()["changed"];
        assert_eq!(*changed, serde_json::json!(expected));
    };
    changed(&[]);
    write(folder.path(), &text("not port 8", "0.2"));
    changed(&["filter"]);
    fs::write(&rules, rule(10)).unwrap();
    changed(&["rules"]);
    fs::write(&rules, rule(11)).unwrap();
    write(folder.path(), &text("not port 7", "0.3"));
    changed(&["filter", "rules", "interval"]);

    let refused = |text: &str, expected: &[&str]| {
        write(folder.path(), text);
        let finished = reload(&lab, &monitor);
        assert_eq!(finished.status.code(), Some(1), "{text}");
        for part in expected {
            assert!(finished.stderr.contains(part), "{part} in {}", finished.stderr);
        }
    };
    let other = capture_of("not port 6", "0.3");
    refused(
        &site(&lab, folder.path(), &format!("{other}\nworkers = 2"), "memory = 32\nbiflow = true\n[http]"),
        &[
            "site.toml:8:1: workers of [capture] is new, which needs a restart of the monitor",
            "site.toml:12:1: memory of [flows] has changed",
            "site.toml:13:1: biflow of [flows] is new",
            "site.toml:14:2: [http] is new",
        ],
    );
    refused(&site(&lab, folder.path(), &other, ""), &["site.toml:10:2: memory of [flows] is missing"]);
    refused(
        &site(&lab, folder.path(), &other, "memory = 0\nbiflow = 3"),
        &["site.toml:11:10: memory: give whole MiB", "site.toml:12:10: biflow: expected true or false"],
    );
    refused(&text("not prot 6", "0.3"), &["filter"]);
    fs::write(&rules, "[[rule]]\nid = 1\naction = \"fly\"\n").unwrap();
    refused(&text("not port 6", "0.3"), &["rules.toml:3:"]);
    // SIGHUP does the same, and the reason is in the log.
    monitor.signal(Signal::HangUp).unwrap();
    status_when(&lab, |status| column(status, "reloads_refused") == 6 && column(status, "reloads") == 4);

    assert_eq!(column(&last_of(&sender.finish(LIMIT).unwrap()).unwrap(), "sent"), PACKETS);
    let finished = monitor.terminate(LIMIT).unwrap();
    let last = last_of(&finished).unwrap();
    assert!(finished.stderr.contains("WARN the configuration stays as it was"), "{}", finished.stderr);
    // A success is no warning, and is in the log without further settings.
    let reloaded = "INFO the configuration was read again; changed: filter, rules, interval";
    assert!(finished.stderr.contains(reloaded), "{}", finished.stderr);
    let counts =
        ["seen", "filtered", "lost", "shed", "delivered", "analysed"].map(|name| column(&last, name));
    assert_eq!(counts, [PACKETS, 0, 0, 0, PACKETS, PACKETS], "{last}");
    let numbers = in_file(&folder.path().join("all.pcapng")).unwrap();
    assert!(
        numbers.iter().copied().eq(0..PACKETS) || numbers.iter().copied().eq(1..=PACKETS),
        "{} numbers",
        numbers.len()
    );
}

/// The filter of the file that was read again decides from then on, also where the monitor began without one.
#[test]
fn a_filter_that_is_new_decides_from_then_on() {
    if !require_root("a_filter_that_is_new_decides_from_then_on") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let folder = open_folder();
    let file = write(folder.path(), &site(&lab, folder.path(), "interval = 0.1", ""));
    let monitor = capture(&lab, &["monitor", file.to_str().unwrap(), "--json"]).unwrap();
    send(&lab, 100, &[]).unwrap();
    write(folder.path(), &site(&lab, folder.path(), "interval = 0.1\nfilter = \"tcp\"", ""));
    monitor.signal(Signal::HangUp).unwrap();
    status_when(&lab, |status| column(status, "reloads") == 1);
    send(&lab, 100, &[]).unwrap();
    let last = last_of(&monitor.terminate(LIMIT).unwrap()).unwrap();
    assert_eq!(["seen", "analysed", "filtered"].map(|name| column(&last, name)), [200, 100, 100], "{last}");
}

/// A service of a user other than root is found and asked by root, in the folder that the unit gives it, and reads its file
/// again as that user. Another user is refused.
#[test]
fn root_asks_a_service_of_another_user() {
    use std::os::unix::fs::{PermissionsExt as _, chown};
    if !require_root("root_asks_a_service_of_another_user") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let folder = open_folder();
    let unit = include_str!("../../../packaging/systemd/wirelane@.service");
    let of_unit = |name: &str| unit.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    let runtime = of_unit("Environment=XDG_RUNTIME_DIR=").replace("%t", "/run");
    let runtime = PathBuf::from(runtime.replace("%i", &format!("test-{}", std::process::id())));
    fs::create_dir_all(&runtime).unwrap();
    chown(&runtime, Some(65534), Some(65534)).unwrap();
    // The user must be able to execute the program.
    let program = folder.path().join("wirelane");
    fs::copy(wirelane_tests::wirelane_binary().unwrap(), &program).unwrap();
    let program = program.to_str().unwrap();
    let device = &lab.receiver().device;
    let text = |interval| format!("[capture]\ninterface = \"{device}\"\ninterval = {interval}\n[flows]\n");
    let file = write(folder.path(), &text("0.2"));
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    chown(&file, Some(65534), Some(65534)).unwrap();
    let capabilities: String = of_unit("AmbientCapabilities=")
        .split(' ')
        .map(|name| format!(",+{}", name.trim_start_matches("CAP_").to_lowercase()))
        .collect();
    let (environment, capabilities) =
        (format!("XDG_RUNTIME_DIR={}", runtime.display()), format!("-all{capabilities}"));
    let user = |uid: &str, capabilities: &str, words: &[&str]| {
        let (reuid, regid) = (format!("--reuid={uid}"), format!("--regid={uid}"));
        let sets =
            ["--inh-caps", "--ambient-caps", "--bounding-set"].map(|set| format!("{set}={capabilities}"));
        let [inherited, ambient, bounding] = &sets;
        let setpriv = [
            "env",
            &environment,
            "setpriv",
            &reuid,
            &regid,
            "--clear-groups",
            inherited,
            ambient,
            bounding,
            "--no-new-privs",
            program,
        ];
        lab.spawn(&lab.receiver().namespace, &[&setpriv[..], words].concat()).unwrap()
    };
    let mut monitor = user("65534", &capabilities, &["monitor", file.to_str().unwrap(), "--json"]);
    monitor.wait_ready(LIMIT).unwrap();
    let pid = status(&lab)["pid"].as_u64().unwrap().to_string();
    // As the unit's ExecReload.
    fs::write(&file, text("0.3")).unwrap();
    let reloaded = user("65534", "-all", &["reload", "--pid", &pid]).finish(LIMIT).unwrap();
    assert_eq!(reloaded.lines, ["changed: interval"], "{}", reloaded.stderr);
    let socket = fs::read_dir(runtime.join("wirelane")).unwrap().map(|entry| entry.unwrap().path());
    let socket = socket.map(|path| path.to_str().unwrap().to_owned()).find(|path| path.ends_with(".monitor"));
    let socket = socket.unwrap();
    let by_path = run(&lab, &["status", &socket, "--json"]);
    assert_eq!(by_path.last_json().unwrap()["reloads"], 1, "{}", by_path.stderr);
    let other = user("65533", "-all", &["status", &socket]).finish(LIMIT).unwrap();
    assert!(other.stderr.contains("access denied"), "{}", other.stderr);
    last_of(&monitor.terminate(LIMIT).unwrap()).unwrap();
    fs::remove_dir_all(&runtime).unwrap();
}
