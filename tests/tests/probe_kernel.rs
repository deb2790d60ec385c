//! `wirelane probe` with measurements in the kernel: the same results as in the workers, of packets that stay below.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use wirelane_tests::flow_traffic::make_capture;
use wirelane_tests::numbers::{LIMIT, capture, column, last_of, send, wirelane};
use wirelane_tests::{Child, Lab, LabOptions, Signal, require_root, wirelane_binary};

/// Without estimates, whose seeds nobody can guess: each process has its own (`crates/probe/tests` compares them).
const MEASURED: &str = "[[rule]]\nname = \"dns\"\nport = 53\n\
    [[measurement]]\nname = \"pairs\"\nanalysis = \"PLACE\"\nkey = [\"pair\", \"protocol\", \"vlan\"]\nshow = 100000\n\
    values = [\"packets\", \"bytes\", \"one-way\", \"keys\", \"entropy\"]\n\
    [[measurement]]\nname = \"all\"\nanalysis = \"PLACE\"\nvalues = [\"packets\", \"bytes\"]\n\
    [[measurement]]\nname = \"dns\"\nanalysis = \"PLACE\"\nrule = \"dns\"\nkey = [\"src\", \"port\"]\nshow = 100000\n\
    values = [\"packets\", \"bytes\"]\n";

fn configuration(folder: &Path, place: &str, interval: &str) -> String {
    let path = folder.join(format!("{place}-{interval}.toml"));
    let text = MEASURED.replace("PLACE", place);
    fs::write(&path, format!("interval = \"{interval}\"\n{text}")).unwrap();
    path.to_str().unwrap().to_owned()
}

fn start(lab: &Lab, config: &str, options: &[&str]) -> Child {
    let device = &lab.receiver().device;
    capture(lab, &[&["probe", config, "-i", device, "--json"], options].concat()).unwrap()
}

/// The totals of measurements, without when they are of, and the ledger.
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

/// Both at once on one device, and on the wire everything that flows are made of.
#[test]
fn the_kernel_measures_what_workers_measure() {
    if !require_root("the_kernel_measures_what_workers_measure") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("in.pcap");
    make_capture(&file, 2400).unwrap();
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
    let end = lab.sender();
    let words = ["send", "-i", &end.device, "--replay", file.to_str().unwrap(), "--json"];
    let sent = last_of(&wirelane(&lab, &end.namespace, &words).unwrap().finish(LIMIT).unwrap()).unwrap();
    assert!(column(&sent, "sent") >= 2400);
    for (options, (kernel, user)) in sets.iter().zip(pairs) {
        let (kernel, of_kernel) = totals(&kernel.terminate(LIMIT).unwrap().json().unwrap());
        let (user, of_user) = totals(&user.terminate(LIMIT).unwrap().json().unwrap());
        assert_eq!(kernel.len(), 3);
        for (kernel, user) in kernel.iter().zip(&user) {
            assert!(kernel == user, "{options:?}: {}", kernel["measurement"]);
        }
        for name in ["seen", "filtered", "probed", "probed_bytes"] {
            assert_eq!(column(&of_kernel, name), column(&of_user, name), "{options:?}: {name}");
        }
        assert_eq!((column(&of_kernel, "delivered"), column(&of_kernel, "late")), (0, 0), "{options:?}");
        assert_eq!(column(&of_kernel, "absorbed"), column(&of_user, "analysed"), "{options:?}");
        assert!(column(&of_kernel, "probed") > 100, "{options:?}");
    }
}

/// Results of intervals come while the capture goes on, without another packet; a new configuration takes over; one that
/// measures elsewhere is refused.
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
    std::thread::sleep(std::time::Duration::from_millis(300));
    fs::write(&config, text.replace("name = \"all\"", "name = \"other\"")).unwrap();
    child.signal(Signal::HangUp).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(300));
    send(&lab, 300, &["--flows", "100"]).unwrap();
    measured(&child, "other", 300);
    let last = last_of(&child.terminate(LIMIT).unwrap()).unwrap();
    assert_eq!((column(&last, "absorbed"), column(&last, "probed")), (1000, 1000));
    assert_eq!((column(&last, "reloads"), column(&last, "reloads_refused")), (1, 1));
}

/// What does not go together is said, and a file is measured all the same.
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
    for (words, message) in [
        (vec![&*kernel, "-i", device, "--engine", "packet"], "by engine 'ring' only"),
        (vec![&*kernel, "-i", device, "--packets", "5"], "use --duration"),
        (vec![&*user, "-i", device, "--cache-entries", "5"], "no measurement is made in the kernel"),
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
