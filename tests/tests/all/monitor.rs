//! `wirelane monitor`: analyses that share a capture have the results of the single commands, and the mistakes of a
//! configuration are all printed.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use wirelane_tests::mixture::Mixture;
use wirelane_tests::numbers::{LIMIT, capture, column, last_of, wirelane};
use wirelane_tests::{Lab, Signal, require_root, wirelane_binary};

/// Time-outs that no conversation of the mixture reaches.
const PATIENT: [(&str, &str); 2] = [("flows", "inactive-timeout"), ("http", "idle-timeout")];

/// Lines of a file, without the number of each, in the order of their text.
fn lines(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let line = |line: &str| {
        let mut object: Value = serde_json::from_str(line).unwrap();
        let fields = object.as_object_mut().unwrap();
        // A file has an interface index of its own.
        fields
            .retain(|name, _| !["flow", "transaction", "reason", "interface_index"].contains(&name.as_str()));
        object.to_string()
    };
    let mut lines: Vec<String> = text.lines().map(line).collect();
    lines.sort();
    lines
}

/// A configuration with outputs in this folder, and these lines in its sections [capture] and [record].
fn configuration(folder: &Path, capture: &str, record: &str) -> String {
    let at = |name: &str| folder.join(name).display().to_string();
    let timeout = |section: &str| {
        PATIENT
            .iter()
            .filter(|(name, _)| *name == section)
            .map(|(_, key)| format!("{key} = 3600\n"))
            .collect::<String>()
    };
    format!(
        "[capture]\n{capture}\n[record]\n{record}write = \"{}\"\n[flows]\nactive-timeout = 3600\noutput-rate = 0\n{}export = [\"file:{}\"]\n\
         [http]\noutput-rate = 0\n{}log = [\"json:{}\"]\n[voip]\noutput-rate = 0\nlinger = 1\nexport = [\"file:{}\"]\n",
        at("all.pcapng"),
        timeout("flows"),
        at("flows.json"),
        timeout("http"),
        at("http.json"),
        at("calls.json"),
    )
}

fn run(words: &[&str]) -> Output {
    Command::new(wirelane_binary().unwrap()).args(words).output().unwrap()
}

/// A folder that the user to whom the program drops its privileges may write to.
fn open_folder() -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    folder
}

/// A monitor of a device has every packet once, in all its analyses, and their results are those that the single
/// commands find in its own recording. Transactions and calls are as many as were sent.
#[test]
fn analyses_of_one_capture_have_the_results_of_the_single_commands() {
    if require_root("analyses_of_one_capture_have_the_results_of_the_single_commands") {
        analyses_have_the_results_of_the_single_commands("", "");
    }
}

#[test]
fn analyses_of_two_workers_have_the_results_of_the_single_commands() {
    if require_root("analyses_of_two_workers_have_the_results_of_the_single_commands") {
        analyses_have_the_results_of_the_single_commands("\nworkers = 2", "single-file = true\n");
    }
}

fn analyses_have_the_results_of_the_single_commands(capturing: &str, recording: &str) {
    let lab = Lab::new(1).unwrap();
    let folder = open_folder();
    let traffic = folder.path().join("traffic.pcap");
    let mut mixture = Mixture::new();
    mixture.write(&mut fs::File::create(&traffic).unwrap(), 20_000, 50_000).unwrap();
    let sent = mixture.sent();
    let file = folder.path().join("site.toml");
    let device = &lab.receiver().device;
    let source =
        format!("interface = \"{device}\"\ndirection = \"rx\"\nring-size = 32\ninterval = 60{capturing}");
    fs::write(&file, configuration(folder.path(), &source, recording)).unwrap();
    let monitor = capture(&lab, &["monitor", file.to_str().unwrap(), "--json"]).unwrap();
    let groups = groups(&lab);
    let replay =
        ["send", "-i", &lab.sender().device, "--replay", traffic.to_str().unwrap(), "--speed", "recorded"];
    let replayed = wirelane(&lab, &lab.sender().namespace, &[&replay[..], &["--json"]].concat()).unwrap();
    assert_eq!(column(&last_of(&replayed.finish(LIMIT).unwrap()).unwrap(), "sent"), sent.packets);
    let last = last_of(&monitor.terminate(LIMIT).unwrap()).unwrap();
    assert_eq!(groups, 1, "groups of the device");
    let counts = ["seen", "delivered", "analysed"].map(|name| column(&last, name));
    assert_eq!((counts, column(&last, "lost")), ([sent.packets; 3], 0), "{last}");
    let analyses = &last["analyses"];
    assert_eq!(column(&analyses["record"], "written"), sent.packets, "{analyses}");
    assert_eq!(column(&analyses["flows"], "flow_packets"), sent.packets, "{analyses}");

    let recording = folder.path().join("all.pcapng");
    let again = open_folder();
    let target = |name: &str| again.path().join(name).display().to_string();
    let flows = format!("file:{}", target("flows.json"));
    let http = format!("json:{}", target("http.json"));
    let calls = format!("file:{}", target("calls.json"));
    let single: [&[&str]; 3] = [
        &["flows", "--active-timeout", "3600", "--inactive-timeout", "3600", "--export", &flows],
        &["http", "--idle-timeout", "3600", "--log", &http],
        &["voip", "--linger", "1", "--export", &calls],
    ];
    for words in single {
        let output = run(&[words, &["--quiet", "-r", recording.to_str().unwrap()]].concat());
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    for name in ["flows.json", "http.json", "calls.json"] {
        let (shared, alone) = (lines(&folder.path().join(name)), lines(&again.path().join(name)));
        let differ = shared.iter().zip(&alone).find(|(one, other)| one != other);
        assert!(shared == alone, "{name}: {} and {} lines; {differ:#?}", shared.len(), alone.len());
    }
    let transactions = lines(&folder.path().join("http.json")).len() as u64;
    assert_eq!(transactions, sent.transactions + sent.unanswered);
    let calls = lines(&folder.path().join("calls.json"));
    let answered = calls.iter().filter(|line| line.contains("\"state\":\"completed\"")).count() as u64;
    assert_eq!((answered, calls.len() as u64), (sent.calls, sent.calls + sent.unanswered_calls));
}

/// The number of captures' groups in the receiver's namespace.
fn groups(lab: &Lab) -> usize {
    let listing = wirelane(lab, &lab.receiver().namespace, &["groups", "--json"]).unwrap();
    let finished = listing.finish(LIMIT).unwrap();
    assert!(finished.status.success(), "{}", finished.stderr);
    finished.json().unwrap().iter().filter(|group| group["final"] != true).count()
}

/// SIGHUP reopens the files of a monitor and does not end it; SIGTERM ends it with its ledger.
#[test]
fn a_monitor_opens_its_logs_again_at_sighup() {
    if !require_root("a_monitor_opens_its_logs_again_at_sighup") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let folder = open_folder();
    let file = folder.path().join("site.toml");
    let device = &lab.receiver().device;
    let (now, old) = (folder.path().join("flows.json"), folder.path().join("flows.json.1"));
    let text = format!(
        "[capture]\ninterface = \"{device}\"\ninterval = 0.1\n[flows]\nexport = \"file:{}\"\n",
        now.display()
    );
    fs::write(&file, text).unwrap();
    let monitor = capture(&lab, &["monitor", file.to_str().unwrap(), "--json"]).unwrap();
    fs::rename(&now, &old).unwrap();
    monitor.signal(Signal::HangUp).unwrap();
    let begun = std::time::Instant::now();
    while !now.exists() {
        assert!(begun.elapsed() < LIMIT, "the file was not made again");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    wirelane_tests::numbers::send(&lab, 100, &["--flows", "10"]).unwrap();
    let last = last_of(&monitor.terminate(LIMIT).unwrap()).unwrap();
    assert_eq!(column(&last["analyses"]["flows"], "flow_packets"), column(&last, "seen"));
    assert_eq!((lines(&old).len(), lines(&now).is_empty()), (0, false), "flows are in the new file");
}

/// All mistakes of a file are printed, each with its place and what is expected, and nothing is opened.
#[test]
fn all_mistakes_of_a_configuration_are_printed() {
    let folder = tempfile::tempdir().unwrap();
    let (file, log) = (folder.path().join("site.toml"), folder.path().join("access.log"));
    let check = |text: &str, expected: &[&str]| {
        fs::write(&file, text).unwrap();
        for command in ["check", "monitor"] {
            let output = run(&[command, file.to_str().unwrap()]);
            let errors = String::from_utf8(output.stderr).unwrap();
            let name = format!("{}:", file.display());
            let found: Vec<&str> = errors
                .lines()
                .filter_map(|line| line.trim_start_matches("wirelane: ").strip_prefix(&name))
                .collect();
            assert_eq!((output.status.code(), found), (Some(2), expected.to_vec()), "{text}\n{errors}");
        }
    };
    check(
        &format!(
            "[capture]\ninterfac = \"eth1\"\nworkers = 4\ndirection = \"up\"\n[flows]\nexport = [\"ipfix:/oops\"]\n\
             biflow = \"yes\"\n[http]\nlog = \"combined:{}\"\nanalysis = \"kernel\"\n[voip]\nmemory = 0\n\
             [recrd]\nwrite = \"x\"\n[store]\nfolder = 7\nmax-size = \"ten\"\n",
            log.display()
        ),
        &[
            "1:2: expected a device, interface = \"eth1\" ('wirelane devices' lists them), or read = \"FILE\"",
            "2:1: unknown key 'interfac'; did you mean 'interface'?",
            "4:13: direction: expected one of auto, rx, tx, both",
            "6:10: export: ipfix:/oops: write ipfix://HOST:PORT, netflow9://HOST:PORT, netflow5://HOST:PORT, or \
             file:PATH with .ipfix, .json or .csv at its end",
            "7:10: biflow: expected true or false",
            "10:12: analysis: 'kernel' leaves bodies in the kernel, which the other sections would miss: use 'user' beside \
             them, or 'kernel' with [http] alone",
            "12:10: memory: give whole MiB from 1 to 1000000, as in 64, 64MiB or 2GiB",
            "13:2: unknown section 'recrd'; did you mean 'record'?",
            "17:12: max-size: give a size, as in 500MB (of 1000) or 1GiB (of 1024)",
        ],
    );
    assert!(!log.exists(), "a file was opened");
    let device = "[capture]\ninterface = \"eth1\"\n";
    check(device, &["1:2: expected at least one of [record], [flows], [http], [voip] and [probe]"]);
    check(
        &format!("{device}[record]\n"),
        &["3:2: [record]: the following required arguments were not provided: write <FILE>"],
    );
    check(
        "[flows]\n",
        &["1:1: expected a device, interface = \"eth1\" ('wirelane devices' lists them), or read = \"FILE\""],
    );
    check(
        &format!("{device}[flows]\ntop = true\n"),
        &["4:1: unknown key 'top'; 'wirelane monitor --help' says which keys there are"],
    );
    check(&format!("http = 3\n{device}[flows]\n"), &["1:1: expected a section: [http]"]);
    check(&format!("{device}[flows]\n[flows]\n"), &["4:2: duplicate key"]);
    check(&format!("{device}[flows\n"), &["3:7: unclosed table, expected `]`"]);
    check(
        &format!("{device}[flows]\n[metrics]\naddress = \"example\"\n"),
        &["5:11: address: invalid socket address syntax"],
    );
}

/// The example of the help has no mistake.
#[test]
fn the_example_of_the_help_is_accepted() {
    let help = String::from_utf8(run(&["monitor", "--help"]).stdout).unwrap();
    let (_, example) = help.split_once("site.toml:\n").unwrap();
    let (example, _) = example.split_once("\n\n").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("site.toml");
    fs::write(&file, example).unwrap();
    let output = run(&["check", file.to_str().unwrap()]);
    assert!(output.status.success(), "{}\n{example}", String::from_utf8_lossy(&output.stderr));
}

/// A service of an unprivileged user, with the capabilities of the unit that is shipped, captures by engine `ring`, and
/// tells the service manager when it is ready, how it goes, and when it stops.
#[test]
fn a_service_of_an_unprivileged_user_notifies_its_manager() {
    use std::os::unix::fs::PermissionsExt as _;
    if !require_root("a_service_of_an_unprivileged_user_notifies_its_manager") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let folder = open_folder();
    let socket = folder.path().join("notify");
    let manager = std::os::unix::net::UnixDatagram::bind(&socket).unwrap();
    manager.set_read_timeout(Some(LIMIT)).unwrap();
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o777)).unwrap();
    // The user must be able to execute the program.
    let program = folder.path().join("wirelane");
    fs::copy(wirelane_binary().unwrap(), &program).unwrap();
    let file = folder.path().join("site.toml");
    let text = format!("[capture]\ninterface = \"{}\"\ninterval = 0.2\n[flows]\n", lab.receiver().device);
    fs::write(&file, text).unwrap();
    let unit = include_str!("../../../packaging/systemd/wirelane@.service");
    let ambient = unit.lines().find_map(|line| line.strip_prefix("AmbientCapabilities=")).unwrap();
    let capabilities: String = ambient
        .split(' ')
        .map(|name| format!(",+{}", name.trim_start_matches("CAP_").to_lowercase()))
        .collect();
    let monitor = lab
        .spawn(
            &lab.receiver().namespace,
            &[
                "env",
                &format!("NOTIFY_SOCKET={}", socket.display()),
                "WATCHDOG_USEC=60000000",
                "setpriv",
                "--reuid=65534",
                "--regid=65534",
                "--clear-groups",
                &format!("--inh-caps=-all{capabilities}"),
                &format!("--ambient-caps=-all{capabilities}"),
                &format!("--bounding-set=-all{capabilities}"),
                "--no-new-privs",
                program.to_str().unwrap(),
                "monitor",
                file.to_str().unwrap(),
                "--json",
            ],
        )
        .unwrap();
    let next = || {
        let mut bytes = [0; 4096];
        let length = manager.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..length].to_vec()).unwrap()
    };
    assert_eq!(next(), "READY=1\nSTATUS=capturing\n");
    wirelane_tests::numbers::send(&lab, 100, &[]).unwrap();
    let state = next();
    assert!(state.starts_with("STATUS=") && state.ends_with(" lost\nWATCHDOG=1\n"), "{state}");
    let finished = monitor.terminate(LIMIT).unwrap();
    let last = last_of(&finished).unwrap();
    assert_eq!(last["engine"], "ring", "{}", finished.stderr);
    assert!(column(&last, "analysed") >= 100, "{last}");
    let told: Vec<String> =
        std::iter::from_fn(|| Some(next())).take_while(|text| text != "STOPPING=1\n").collect();
    assert!(told.iter().all(|text| text.starts_with("STATUS=")), "{told:?}");
}

/// The unit that is shipped has no mistake, and exposes as little as is promised.
#[test]
fn the_unit_is_valid_and_exposes_little() {
    let analyze = |words: &[&str]| Command::new("systemd-analyze").args(words).output();
    let unit = concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging/systemd/wirelane@.service");
    let Ok(output) = analyze(&["security", "--offline=true", "--threshold=25", unit]) else {
        println!("left out: the_unit_is_valid_and_exposes_little: there is no systemd-analyze");
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if text.contains("unrecognized option")
        || String::from_utf8_lossy(&output.stderr).contains("unrecognized option")
    {
        println!("left out: the_unit_is_valid_and_exposes_little: systemd is older than 250");
        return;
    }
    assert!(output.status.success(), "{text}");
    let verified = analyze(&["verify", "--man=no", unit]).unwrap();
    let said = String::from_utf8(verified.stderr).unwrap();
    // The program is not installed here.
    let wrong: Vec<&str> =
        said.lines().filter(|line| !line.contains("/usr/bin/wirelane is not executable")).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A probe beside flows has the packets, intervals and alarms of the single command. What only the single command can do is
/// refused with its place.
#[test]
fn a_probe_of_a_monitor_has_the_results_of_the_single_command() {
    use wirelane_tests::recordings::{NOON_NS, packet, write_header, write_packet};
    let folder = open_folder();
    let at = |name: &str| folder.path().join(name);
    let mut traffic = std::io::BufWriter::new(fs::File::create(at("in.pcap")).unwrap());
    write_header(&mut traffic).unwrap();
    let mut packets = 0;
    for second in 0..6 {
        for turn in 0..if second % 2 == 0 { 10 } else { 1 } {
            let time = NOON_NS + second * 1_000_000_000 + turn * 1000;
            write_packet(&mut traffic, time, &packet(packets, 100)).unwrap();
            packets += 1;
        }
    }
    drop(traffic);
    let measurement = "[[measurement]]\nname = \"all\"\nvalues = [\"packets\"]\n";
    let config = |name: &str| {
        let text = format!(
            "{measurement}[[alarm]]\nname = \"many\"\nmeasurement = \"all\"\nvalue = \"packets\"\nabove = 5\n\
             actions = [\"out\"]\n[[action]]\nname = \"out\"\nexport = \"file:{}\"\n",
            at(name).display()
        );
        let path = at(&format!("{name}.toml"));
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let (shared, single) = (config("shared.json"), config("single.json"));
    let (site, input) = (at("site.toml"), at("in.pcap").display().to_string());
    let monitor = |probe: &str| {
        let text = format!("[capture]\nread = \"{input}\"\n[flows]\n[probe]\nconfig = \"{probe}\"\n");
        fs::write(&site, text).unwrap();
        run(&["monitor", site.to_str().unwrap(), "--json"])
    };
    let last = |output: Output| -> Value {
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_str(String::from_utf8(output.stdout).unwrap().lines().last().unwrap()).unwrap()
    };
    let together = last(monitor(&shared));
    let alone = last(run(&["probe", &single, "-r", &input, "--json", "--quiet"]));
    let probe = &together["analyses"]["probe"];
    for name in ["intervals", "alarms_raised", "alarms_cleared", "alarms_exported"] {
        assert_eq!(column(probe, name), column(&alone, name), "{name}: {probe}");
    }
    assert_eq!((column(probe, "alarms_raised"), column(&together, "analysed")), (3, packets), "{together}");
    assert_eq!(column(&together["analyses"]["flows"], "flow_packets"), packets, "{together}");
    let alarms = |name: &str| fs::read_to_string(at(name)).unwrap();
    assert!(alarms("single.json").lines().count() == 6, "{}", alarms("single.json"));
    assert_eq!(alarms("shared.json"), alarms("single.json"));

    fs::write(at("other.toml"), format!("{measurement}[capture]\nfilter = \"udp\"\n")).unwrap();
    let refused = monitor(at("other.toml").to_str().unwrap());
    let errors = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(2), "{errors}");
    let expected = "site.toml:5:10: config: ";
    assert!(
        errors.contains(expected) && errors.contains("the monitor's file says what is captured"),
        "{errors}"
    );
}
