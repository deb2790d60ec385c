//! `wirelane probe` with measurements in the kernel: the same results as in the workers, from offloaded packets.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use wirelane_tests::flow_traffic::make_capture;
use wirelane_tests::numbers::{LIMIT, capture, column, last_of, send, wirelane};
use wirelane_tests::{Child, Lab, LabOptions, Signal, require_root, wirelane_binary};

/// Without estimates, whose seeds are random: each process has its own (`crates/wirelane-probe/tests` compares them).
const MEASURED: &str = "[[rule]]\nname = \"dns\"\nport = 53\n\
    [[measurement]]\nname = \"pairs\"\nanalysis = \"PLACE\"\nkey = [\"pair\", \"protocol\", \"vlan\"]\nshow = 100000\n\
    values = [\"packets\", \"bytes\", \"one-way\", \"keys\", \"entropy\"]\n\
    [[measurement]]\nname = \"all\"\nanalysis = \"PLACE\"\nvalues = [\"packets\", \"bytes\"]\n\
    [[measurement]]\nname = \"dns\"\nanalysis = \"PLACE\"\nrule = \"dns\"\nkey = [\"src\", \"port\"]\nshow = 100000\n\
    values = [\"packets\", \"bytes\"]\n";

/// Measurements of single packets, with two rules that exclude each other.
const BESIDE: &str = "[[rule]]\nname = \"syn\"\ntcp-flags = \"S/SA\"\nnot.port = 53\n\
    [[measurement]]\nname = \"lengths\"\nrule = \"dns\"\nkey = [\"src\"]\nshow = 100000\nvalues = [\"packets\", \"lengths\"]\n\
    [[measurement]]\nname = \"syns\"\nrule = \"syn\"\nkey = [\"queue\"]\nshow = 100000\nvalues = [\"packets\", \"bytes\"]\n";

fn write(folder: &Path, name: &str, interval: &str, text: &str) -> String {
    let path = folder.join(format!("{name}-{interval}.toml"));
    fs::write(&path, format!("interval = \"{interval}\"\n{text}")).unwrap();
    path.to_str().unwrap().to_owned()
}

fn configuration(folder: &Path, place: &str, interval: &str) -> String {
    write(folder, place, interval, &MEASURED.replace("PLACE", place))
}

fn start(lab: &Lab, config: &str, options: &[&str]) -> Child {
    let device = &lab.receiver().device;
    capture(lab, &[&["probe", config, "-i", device, "--json"], options].concat()).unwrap()
}

/// The totals of measurements without their times, and the ledger.
fn totals(lines: &[Value]) -> (Vec<Value>, Value) {
    let mut of: Vec<Value> = lines
        .iter()
        .filter(|line| line.get("measurement").is_some() && line["total"] == true)
        .cloned()
        .collect();
    for one in &mut of {
        let one = one.as_object_mut().unwrap();
        one.retain(|name, _| name != "start" && name != "end");
    }
    (of, lines.last().unwrap().clone())
}

/// Sends packets of every kind that flows distinguish.
fn replay_all(lab: &Lab, folder: &Path) {
    let file = folder.join("in.pcap");
    make_capture(&file, 2400).unwrap();
    let end = lab.sender();
    let words = ["send", "-i", &end.device, "--replay", file.to_str().unwrap(), "--json"];
    let sent = last_of(&wirelane(lab, &end.namespace, &words).unwrap().finish(LIMIT).unwrap()).unwrap();
    assert!(column(&sent, "sent") >= 2400);
}

/// Asserts that the measurements and some columns of the ledgers are equal.
fn agree(options: &[&str], (kernel, of_kernel): &(Vec<Value>, Value), (user, of_user): &(Vec<Value>, Value)) {
    assert_eq!(kernel.len(), user.len(), "{options:?}");
    for (kernel, user) in kernel.iter().zip(user) {
        assert!(kernel == user, "{options:?}: {}", kernel["measurement"]);
    }
    for name in ["seen", "filtered", "probed", "probed_bytes"] {
        assert_eq!(column(of_kernel, name), column(of_user, name), "{options:?}: {name}");
    }
}

/// Both analyses at once on one device, with packets of every kind that flows distinguish.
/// Battery: I10
#[test]
fn the_kernel_measures_what_workers_measure() {
    if !require_root("the_kernel_measures_what_workers_measure") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let lab = Lab::new(1).unwrap();
    let sets: &[&[&str]] =
        &[&["--cache-entries", "128"], &["--workers", "3"], &["--inner"], &["udp"], &["--clock", "batch"]];
    let begin = |place: &str, options: &[&str]| {
        let options = match (place, options) {
            ("user", ["--cache-entries", ..]) => &[],
            _ => options,
        };
        start(&lab, &configuration(folder.path(), place, "100ms"), options)
    };
    let pairs: Vec<(Child, Child)> =
        sets.iter().map(|options| (begin("kernel", options), begin("user", options))).collect();
    replay_all(&lab, folder.path());
    for (options, (kernel, user)) in sets.iter().zip(pairs) {
        let [kernel, user] =
            [kernel, user].map(|child| totals(&child.terminate(LIMIT).unwrap().json().unwrap()));
        agree(options, &kernel, &user);
        let ((kernel, of_kernel), (_, of_user)) = (kernel, user);
        assert_eq!(kernel.len(), 3);
        assert_eq!((column(&of_kernel, "delivered"), column(&of_kernel, "late")), (0, 0), "{options:?}");
        assert_eq!(column(&of_kernel, "absorbed"), column(&of_user, "analysed"), "{options:?}");
        assert!(column(&of_kernel, "probed") > 100, "{options:?}");
    }
}

/// Measurements of single packets of a rule, beside measurements in the kernel of all other packets.
#[test]
fn what_workers_measure_comes_up_beside_what_the_kernel_adds_up() {
    if !require_root("what_workers_measure_comes_up_beside_what_the_kernel_adds_up") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let lab = Lab::with(&LabOptions { queues: 2, ..LabOptions::default() }).unwrap();
    let path =
        |place: &str| write(folder.path(), place, "100ms", &(MEASURED.replace("PLACE", place) + BESIDE));
    let (of_kernel, of_user) = (path("kernel"), path("user"));
    let sets: &[&[&str]] = &[
        &[],
        &["--workers", "3"],
        &["--hook", "tc", "--clock", "batch"],
        &["--steering", "queue", "--workers", "2"],
        &["tcp"],
    ];
    let pairs: Vec<(Child, Child)> = sets
        .iter()
        .map(|options| (start(&lab, &of_kernel, options), start(&lab, &of_user, options)))
        .collect();
    replay_all(&lab, folder.path());
    for (options, (kernel, user)) in sets.iter().zip(pairs) {
        let [kernel, user] =
            [kernel, user].map(|child| totals(&child.terminate(LIMIT).unwrap().json().unwrap()));
        agree(options, &kernel, &user);
        let ((kernel, of_kernel), (_, of_user)) = (kernel, user);
        assert_eq!(kernel.len(), 5);
        let whole = column(&kernel[3], "packets") + column(&kernel[4], "packets");
        assert!(whole > 30 && column(&kernel[4], "packets") > 0, "{options:?}: {whole} came up");
        assert_eq!(
            (column(&of_kernel, "delivered"), column(&of_kernel, "analysed")),
            (whole, whole),
            "{options:?}"
        );
        assert_eq!(column(&of_kernel, "absorbed"), column(&of_user, "analysed") - whole, "{options:?}");
        assert_eq!((column(&of_kernel, "lost"), column(&of_kernel, "late")), (0, 0), "{options:?}");
    }
}

/// A new configuration becomes active if it needs the same packets in user space, and is refused if it needs others.
#[test]
fn only_what_comes_up_can_be_measured_by_another_configuration() {
    if !require_root("only_what_comes_up_can_be_measured_by_another_configuration") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let lab = Lab::new(1).unwrap();
    let text = MEASURED.replace("PLACE", "kernel") + BESIDE;
    // A rule that matches all packets sent here.
    let text = text.replacen("port = 53", "protocol = \"udp\"", 1);
    let config = write(folder.path(), "changing", "200ms", &text);
    let child = start(&lab, &config, &[]);
    let change = |text: &str| {
        write(folder.path(), "changing", "200ms", text);
        child.signal(Signal::HangUp).unwrap();
        std::thread::sleep(std::time::Duration::from_secs(1));
    };
    // Other packets; other measurements of the same packets; and measurements of all packets.
    change(&text.replace("not.port = 53", "not.port = 54"));
    change(&text.replace("name = \"lengths\"", "name = \"sizes\""));
    change(&(text.clone() + "[[measurement]]\nname = \"each\"\nvalues = [\"lengths\"]\n"));
    send(&lab, 300, &["--flows", "100"]).unwrap();
    let output = child.terminate(LIMIT).unwrap();
    let (of, last) = totals(&output.json().unwrap());
    let sizes = of.iter().find(|one| one["measurement"] == "sizes").expect("the second is in force");
    assert_eq!(column(sizes, "packets"), 300);
    assert_eq!(
        (column(&last, "delivered"), column(&last, "absorbed"), column(&last, "probed")),
        (300, 0, 300)
    );
    assert_eq!((column(&last, "reloads"), column(&last, "reloads_refused")), (1, 2));
    assert!(
        output.stderr.contains("a measurement of the workers has the rule syn, whose packets the running capture does not deliver"),
        "{}",
        output.stderr
    );
}

/// Results of intervals are printed while the capture goes on, without further packets; a new configuration becomes
/// active; one with another analysis is refused.
#[test]
fn results_come_up_and_configurations_are_replaced() {
    if !require_root("results_come_up_and_configurations_are_replaced") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let lab = Lab::with(&LabOptions { queues: 2, ..LabOptions::default() }).unwrap();
    let config = configuration(folder.path(), "kernel", "200ms");
    let child = start(&lab, &config, &[]);
    let measured = |child: &Child, name: &str, wanted: u64| {
        let mut packets = 0;
        while packets < wanted {
            let line = child.next_json(LIMIT).unwrap().expect("it goes on");
            if line["measurement"] == name && line["total"] == false {
                packets += column(&line, "packets");
            }
        }
        assert_eq!(packets, wanted);
    };
    send(&lab, 700, &["--flows", "100"]).unwrap();
    measured(&child, "all", 700);
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, text.replace("analysis = \"kernel\"", "analysis = \"user\"")).unwrap();
    child.signal(Signal::HangUp).unwrap();
    std::thread::sleep(std::time::Duration::from_secs(1));
    fs::write(&config, text.replace("name = \"all\"", "name = \"other\"")).unwrap();
    child.signal(Signal::HangUp).unwrap();
    std::thread::sleep(std::time::Duration::from_secs(1));
    send(&lab, 300, &["--flows", "100"]).unwrap();
    measured(&child, "other", 300);
    let last = last_of(&child.terminate(LIMIT).unwrap()).unwrap();
    assert_eq!((column(&last, "absorbed"), column(&last, "probed")), (1000, 1000));
    assert_eq!((column(&last, "reloads"), column(&last, "reloads_refused")), (1, 1));
}

/// Incompatible options are refused; with a file, the analysis in the kernel is replaced by that in user space.
#[test]
fn what_cannot_be_in_the_kernel_is_refused() {
    if !require_root("what_cannot_be_in_the_kernel_is_refused") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let lab = Lab::new(1).unwrap();
    let run = |words: &[&str]| {
        let mut command = lab.command(&lab.receiver().namespace, wirelane_binary().unwrap());
        let command: &mut Command = command.arg("probe").args(words);
        command.output().unwrap()
    };
    let device = &lab.receiver().device;
    let kernel = configuration(folder.path(), "kernel", "1s");
    let user = configuration(folder.path(), "user", "1s");
    let mixed = write(folder.path(), "mixed", "1s", &(MEASURED.replace("PLACE", "kernel") + BESIDE));
    let rules = folder.path().join("rules.toml").to_str().unwrap().to_owned();
    fs::write(&rules, "default = \"pass\"\n").unwrap();
    for (words, message) in [
        (vec![&*kernel, "-i", device, "--engine", "packet"], "by engine 'ring' only"),
        (vec![&*kernel, "-i", device, "--packets", "5"], "use --duration"),
        (vec![&*user, "-i", device, "--cache-entries", "5"], "no measurement is made in the kernel"),
        (vec![&*mixed, "-i", device, "--rules", &*rules], "use the rules of the capture"),
    ] {
        let output = run(&words);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{words:?}: {errors}");
        assert!(errors.contains(message), "{words:?}: {errors}");
    }
    let file = folder.path().join("in.pcap");
    make_capture(&file, 100).unwrap();
    let of = |config: &str| run(&[config, "-r", file.to_str().unwrap(), "--json"]);
    let (kernel, user) = (of(&kernel), of(&user));
    assert!(kernel.status.success(), "{kernel:?}");
    let results = |output: &[u8]| -> Vec<String> {
        let text = String::from_utf8_lossy(output).into_owned();
        text.lines().filter(|line| line.contains("\"measurement\"")).map(str::to_owned).collect()
    };
    assert!(!results(&kernel.stdout).is_empty());
    assert_eq!(results(&kernel.stdout), results(&user.stdout));
}
