//! `wirelane testbed` between two machines, which are network namespaces here: one pair of devices for the traffic,
//! another for the connection of manager and agents.

mod arranged;
mod receiver;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use wirelane_tests::slow_clients::{allow_descriptors, crowd, settled};
use wirelane_tests::{Child, Finished, Lab, LabOptions, Signal, require_root, wirelane_binary};

const LIMIT: Duration = Duration::from_secs(120);
const PORT: u16 = 4433;
/// Slow clients, and connections that an agent keeps.
const CLIENTS: usize = 10_000;
const CONNECTIONS: usize = 32;

/// An adapter for the given program.
fn adapter(program: &str) -> String {
    format!(
        "program = \"{program}\"\ncommand = [\"{program}\", \"{{device}}\"]\nready = {{ regex = \"go\" }}\nquiet = \"50ms\"\n\
         [counts]\ncaptured = {{ regex = '(\\d+)' }}\n"
    )
}

/// Two machines, and certificates.
struct Field {
    // Declared first, so that processes end before the folder is removed.
    lab: Lab,
    folder: tempfile::TempDir,
}

impl Field {
    fn new() -> Field {
        Field::with(1)
    }

    /// With so many RX queues of each device.
    fn with(queues: u32) -> Field {
        let lab = Lab::with(&LabOptions { links: 2, queues, ..LabOptions::default() }).unwrap();
        let field = Field { lab, folder: tempfile::tempdir().unwrap() };
        field.authority("ca");
        field.authority("other-ca");
        let (injector, sensor) = (field.address("injector"), field.address("sensor"));
        field.certificate("ca", "injector", &format!("serverAuth -addext subjectAltName=IP:{injector}"));
        field.certificate("ca", "sensor", &format!("serverAuth -addext subjectAltName=IP:{sensor}"));
        field.certificate("ca", "elsewhere", "serverAuth -addext subjectAltName=IP:192.0.2.1");
        field.certificate("ca", "manager", "clientAuth");
        field.certificate("other-ca", "stranger", "clientAuth");
        field
    }

    fn at(&self) -> &Path {
        self.folder.path()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.at().join(name)
    }

    /// Listening address of an agent: on the devices without traffic.
    fn address(&self, role: &str) -> String {
        let link = &self.lab.links[1];
        if role == "injector" { link.sender.address.to_string() } else { link.receiver.address.to_string() }
    }

    fn openssl(&self, words: &str) {
        let output = Command::new("openssl").args(words.split(' ')).current_dir(self.at()).output().unwrap();
        assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
    }

    // The commands of the README, here and below.
    fn authority(&self, name: &str) {
        self.openssl(&format!(
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 365 -subj /CN={name} -keyout {name}.key -out \
             {name}.pem -addext keyUsage=critical,keyCertSign"
        ));
    }

    fn certificate(&self, authority: &str, name: &str, usage: &str) {
        self.openssl(&format!(
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 365 -CA {authority}.pem -CAkey {authority}.key \
             -subj /CN={name} -keyout {name}.key -out {name}.pem -addext basicConstraints=critical,CA:FALSE -addext \
             extendedKeyUsage={usage}"
        ));
    }

    fn command(&self, role: &str, words: &[&str]) -> Command {
        let link = &self.lab.links[0];
        let end = if role == "sensor" { &link.receiver } else { &link.sender };
        let mut command = self.lab.command(&end.namespace, wirelane_binary().unwrap());
        command.arg("testbed").args(words).current_dir(self.at());
        command
    }

    /// Starts an agent and waits until it listens.
    fn agent(&self, role: &str, more: &[&str]) -> Child {
        let (listen, cert, key) =
            (format!("{}:{PORT}", self.address(role)), format!("{role}.pem"), format!("{role}.key"));
        let words = ["agent", "--listen", &listen, "--cert", &cert, "--key", &key, "--ca", "ca.pem"];
        let child = Child::spawn(&mut self.command(role, &[&words[..], more].concat())).unwrap();
        let line = child.next_line(LIMIT).unwrap();
        assert_eq!(line, Some(format!("listening on {listen}")));
        child
    }

    fn agents(&self) -> (Child, Child) {
        (self.agent("injector", &["--device", "tx0"]), self.agent("sensor", &[]))
    }

    /// Writes a suite for the two agents.
    fn suite(&self, name: &str, rest: &str) {
        let (injector, sensor) = (self.address("injector"), self.address("sensor"));
        let text = format!(
            "name = \"{name}\"\n{rest}\n[traffic]\nmethod = \"socket\"\n[injector]\nagent = \"{injector}:{PORT}\"\ndevice = \"tx0\"\n\
             [sensor]\nagent = \"{sensor}:{PORT}\"\ndevice = \"rx0\"\n"
        );
        fs::write(self.path(&format!("{name}.toml")), text).unwrap();
    }

    /// Starts a manager on the injector's machine.
    fn start(&self, words: &[&str]) -> Child {
        let identity = ["--cert", "manager.pem", "--key", "manager.key", "--ca", "ca.pem"];
        Child::spawn(&mut self.command("manager", &[&["run"][..], words, &identity].concat())).unwrap()
    }

    fn run(&self, words: &[&str]) -> Finished {
        let finished = self.start(words).finish(LIMIT).unwrap();
        println!("{}\n{}", finished.lines.join("\n"), finished.stderr);
        finished
    }

    /// Runs a manager again until the agents are free.
    fn run_when_free(&self, words: &[&str]) -> Finished {
        let end = Instant::now() + LIMIT;
        loop {
            let finished = self.run(words);
            if !finished.stderr.contains("works for another manager") {
                return finished;
            }
            assert!(Instant::now() < end, "the agents stay busy");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The rows of a CSV file by column name; quotes are not parsed, as the columns used here do not have any.
    fn rows(&self, folder: &str) -> Vec<BTreeMap<String, String>> {
        let text = fs::read_to_string(self.path(folder).join("trials.csv")).unwrap();
        let mut lines = text.lines().map(|line| line.split(',').map(str::to_owned).collect::<Vec<_>>());
        let head = lines.next().unwrap();
        lines.map(|line| head.iter().cloned().zip(line).collect()).collect()
    }

    /// Command lines of the processes in a network namespace of the lab.
    fn processes(&self, namespace: &str) -> Vec<String> {
        let pids = Command::new("ip").args(["netns", "pids", namespace]).output().unwrap().stdout;
        let pids = String::from_utf8(pids).unwrap();
        let line = |pid: &str| {
            let words = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            Some(String::from_utf8_lossy(&words).replace('\0', " ").trim().to_owned())
        };
        pids.lines().filter_map(line).filter(|line| !line.is_empty()).collect()
    }

    /// Waits until processes with these words exist on the injector's and the sensor's machine, or until none does.
    fn wait_for(&self, injector: &str, sensor: &str, there: bool) {
        let end = Instant::now() + LIMIT;
        let link = &self.lab.links[0];
        for (namespace, word) in [(&link.sender.namespace, injector), (&link.receiver.namespace, sensor)] {
            while self.processes(namespace).iter().any(|line| line.contains(word)) != there {
                assert!(Instant::now() < end, "{word} there: {}; {:?}", !there, self.processes(namespace));
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

fn number(row: &BTreeMap<String, String>, name: &str) -> i64 {
    row[name].parse().unwrap_or_else(|_| panic!("{name} in {row:?}"))
}

#[test]
fn every_packet_between_two_machines_has_a_place() {
    if !require_root("every_packet_between_two_machines_has_a_place") {
        return;
    }
    let field = Field::new();
    let (_injector, sensor) = field.agents();
    for name in ["adapters", "others"] {
        fs::create_dir(field.path(name)).unwrap();
    }
    // An adapter that only the manager has, one that the agent has with other contents, and one without an installed
    // program.
    fs::write(field.path("adapters/mine.toml"), adapter("true")).unwrap();
    fs::write(field.path("adapters/changed.toml"), adapter("true")).unwrap();
    fs::write(field.path("others/changed.toml"), adapter("false")).unwrap();
    fs::write(field.path("adapters/absent.toml"), adapter("no-such-program")).unwrap();
    fs::write(field.path("others/absent.toml"), adapter("no-such-program")).unwrap();
    sensor.terminate(LIMIT).unwrap();
    let _sensor = field.agent("sensor", &["--sensors", "others"]);

    let sensors = "[\"wirelane-count\", \"tcpdump\", \"mine\", \"changed\", \"absent\"]";
    field.suite(
        "two",
        &format!(
            "sensors = {sensors}\nrates = [5000]\nduration = \"200ms\"\nengines = [\"ring\"]\ncores = [[1]]"
        ),
    );
    let run = field.run(&["two.toml", "--sensors", "adapters"]);
    assert!(run.status.success());
    for told in [
        "mine is skipped: the agent 10.77.1.2:4433: it has no adapter of this name",
        "changed is skipped: the agent 10.77.1.2:4433: its adapter is another one than here",
        "absent is skipped: the agent 10.77.1.2:4433: no-such-program is not installed",
        "2 of 2",
    ] {
        assert!(run.stderr.contains(told), "{told}");
    }
    let trials = field.rows("testbed-two");
    assert_eq!(trials.len(), 2);
    for (row, sensor) in trials.iter().zip(["wirelane-count ", "tcpdump "]) {
        assert!(row["case"].starts_with(sensor) && row["fault"].is_empty(), "{row:?}");
        assert!(number(row, "sent") > 0, "{row:?}");
        assert_eq!(number(row, "sent"), number(row, "captured") + number(row, "lost"), "{row:?}");
        assert_eq!(
            (number(row, "unaccounted"), number(row, "captured")),
            (0, number(row, "analysed")),
            "{row:?}"
        );
        assert!(row["cores"].starts_with("injector/0:") && row["cores"].contains(" sensor/1:"), "{row:?}");
        assert!(row["sensor_cpu_s"].parse::<f64>().unwrap() > 0.0, "{row:?}");
    }
    let page = fs::read_to_string(field.path("testbed-two/report.html")).unwrap();
    assert!(page.contains("Skipped: mine") && page.contains("Injector:") && page.contains("Sensor:"));

    // Resumed when complete, and after an interruption.
    assert!(field.run_when_free(&["--resume", "testbed-two", "--sensors", "adapters"]).status.success());
    assert_eq!(field.rows("testbed-two"), trials);
    let path = field.path("testbed-two/trials.csv");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, &text[..text.len() - 5]).unwrap();
    assert!(field.run_when_free(&["--resume", "testbed-two", "--sensors", "adapters"]).status.success());
    let resumed = field.rows("testbed-two");
    assert_eq!((resumed.len(), &resumed[0]), (2, &trials[0]));
    assert!(number(&resumed[1], "sent") > 0 && resumed[1]["fault"].is_empty(), "{resumed:?}");
    // The report is created again without any agent.
    let report = Command::new(wirelane_binary().unwrap())
        .args(["testbed", "report", "testbed-two", "--sensors", "adapters"])
        .current_dir(field.at())
        .output()
        .unwrap();
    assert!(report.status.success());
    assert!(fs::read_to_string(field.path("testbed-two/report.html")).unwrap().contains("Skipped: mine"));
}

#[test]
fn whoever_has_no_certificate_for_it_is_refused() {
    if !require_root("whoever_has_no_certificate_for_it_is_refused") {
        return;
    }
    let field = Field::new();
    field.suite("b", "sensors = [\"tcpdump\"]\nrates = [1000]\nduration = \"100ms\"\ncores = [[1]]");
    let refused = |field: &Field, cert: &str, ca: &str| {
        let (key, ca) = (format!("{cert}.key"), format!("{ca}.pem"));
        let words = ["run", "b.toml", "--cert", &format!("{cert}.pem"), "--key", &key, "--ca", &ca];
        let finished = Child::spawn(&mut field.command("manager", &words)).unwrap().finish(LIMIT).unwrap();
        assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
        assert!(!field.path("testbed-b").exists());
        finished.stderr
    };
    let told = refused(&field, "manager", "ca");
    assert!(told.contains("injector's agent 10.77.1.1:4433: it is not there"), "{told}");

    let (injector, _sensor) = field.agents();
    // A silent client and one with another protocol do not block the manager.
    let connect = || {
        let address = format!("{}:{PORT}", field.address("injector"));
        let namespace = &field.lab.links[1].sender.namespace;
        field.lab.enter(namespace, || std::net::TcpStream::connect(address).unwrap()).unwrap()
    };
    let (_silent, mut other) = (connect(), connect());
    other.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let told = refused(&field, "stranger", "ca");
    assert!(told.contains("it refuses the certificate of --cert (UnknownCA)"), "{told}");
    let told = refused(&field, "manager", "other-ca");
    assert!(told.contains("signed by the authority of --ca") && told.contains("UnknownIssuer"), "{told}");
    // An agent's certificate is not valid for a manager.
    let told = refused(&field, "sensor", "ca");
    assert!(told.contains("it refuses the certificate of --cert"), "{told}");
    let told = field.command("manager", &["run", "b.toml"]).output().unwrap();
    assert!(String::from_utf8(told.stderr).unwrap().contains("give --cert, --key and --ca"));

    // A client without a certificate, and one with another protocol version, by openssl.
    let says = |more: &[&str], frame: &[u8]| {
        let address = format!("{}:{PORT}", field.address("injector"));
        let words = [&["s_client", "-quiet", "-connect", &address, "-CAfile", "ca.pem"][..], more].concat();
        let mut client = field.lab.command(&field.lab.links[1].sender.namespace, "openssl");
        client
            .args(words)
            .current_dir(field.at())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut client = client.spawn().unwrap();
        let mut input = client.stdin.take().unwrap();
        input.write_all(&u32::try_from(frame.len()).unwrap().to_be_bytes()).unwrap();
        input.write_all(frame).unwrap();
        let output = client.wait_with_output().unwrap();
        drop(input);
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    let hello = br#"{"hello": {"protocol": 99, "version": "9.9.9", "role": "dancer"}}"#;
    let told = says(&[], hello);
    assert!(told.contains("certificate required"), "{told}");
    let told = says(&["-cert", "manager.pem", "-key", "manager.key"], hello);
    assert!(
        told.contains("refused") && told.contains("the manager is wirelane 9.9.9 (protocol 99)"),
        "{told}"
    );
    fs::write(field.path("here.toml"), "name = \"here\"\nsensors = [\"tcpdump\"]\nrates = [1]\n").unwrap();
    assert!(field.run(&["here.toml"]).stderr.contains("names no agents"));
    // The agents still serve an authorised manager.
    assert!(field.run(&["b.toml"]).status.success());
    let told = injector.terminate(LIMIT).unwrap().stderr;
    assert!(told.contains("peer sent no certificates") && told.contains("works for 10.77.1.1"), "{told}");

    // An agent with a certificate for another address, and one for another device.
    let link = &field.lab.links[1].sender;
    let words = [
        "testbed",
        "agent",
        "--listen",
        "10.77.1.1:4433",
        "--cert",
        "elsewhere.pem",
        "--key",
        "elsewhere.key",
        "--ca",
        "ca.pem",
    ];
    let mut elsewhere = field.lab.command(&link.namespace, wirelane_binary().unwrap());
    let elsewhere = Child::spawn(elsewhere.args(words).current_dir(field.at())).unwrap();
    assert!(elsewhere.next_line(LIMIT).unwrap().unwrap().starts_with("listening on"));
    let told = field.run_when_free(&["b.toml", "--out", "x"]).stderr;
    assert!(told.contains("and for 10.77.1.1") && told.contains("not valid for name"), "{told}");
    elsewhere.terminate(LIMIT).unwrap();
    let _injector = field.agent("injector", &["--device", "tx1"]);
    let told = field.run_when_free(&["b.toml", "--out", "x"]).stderr;
    assert!(told.contains("it is for device tx1, and not for tx0"), "{told}");
}

#[test]
fn an_agent_that_is_killed_is_a_fault_and_nothing_of_it_is_left() {
    if !require_root("an_agent_that_is_killed_is_a_fault_and_nothing_of_it_is_left") {
        return;
    }
    let field = Field::new();
    let (_injector, sensor) = field.agents();
    field.suite(
        "k",
        "sensors = [\"wirelane-count\"]\nrates = [1000]\nduration = \"4s\"\nrepetitions = 2\ncores = [[1]]",
    );
    let manager = field.start(&["k.toml"]);
    field.wait_for("wirelane send", "wirelane count", true);
    sensor.signal(Signal::Kill).unwrap();
    let _ = sensor.finish(LIMIT).unwrap();
    // Both sides end their processes: the manager stops the injector, and the sensor's machine has lost its agent.
    field.wait_for("wirelane send", "wirelane", false);
    let sensor = field.agent("sensor", &[]);
    let told = manager.finish(LIMIT).unwrap();
    assert_eq!(told.status.code(), Some(1), "{}", told.stderr);
    assert!(told.stderr.contains("the sensor's agent 10.77.1.2:4433 went away"), "{}", told.stderr);
    assert!(told.stderr.contains("1 of 2 trials went wrong"), "{}", told.stderr);
    let trials = field.rows("testbed-k");
    assert_eq!(trials.len(), 2);
    assert!(trials[0]["fault"].contains("went away") && trials[1]["fault"].is_empty(), "{trials:?}");
    assert!(number(&trials[1], "sent") > 0 && number(&trials[1], "unaccounted") == 0, "{trials:?}");

    // If the agent stays away, the run ends and can be resumed later.
    field.suite(
        "s",
        "sensors = [\"wirelane-count\"]\nrates = [1000]\nduration = \"2s\"\nrepetitions = 3\ncores = [[1]]",
    );
    let manager = field.start(&["s.toml"]);
    field.wait_for("wirelane send", "wirelane count", true);
    sensor.signal(Signal::Kill).unwrap();
    let _ = sensor.finish(LIMIT).unwrap();
    let told = manager.finish(LIMIT).unwrap();
    assert!(told.stderr.contains("did not come back") && told.stderr.contains("--resume"), "{}", told.stderr);
    assert_eq!(field.rows("testbed-s").len(), 1);
    let _sensor = field.agent("sensor", &[]);
    assert!(field.run_when_free(&["--resume", "testbed-s"]).status.success());
    let trials = field.rows("testbed-s");
    assert_eq!(trials.len(), 3);
    assert!(
        trials[1..].iter().all(|row| row["fault"].is_empty() && number(row, "unaccounted") == 0),
        "{trials:?}"
    );
}

#[test]
fn agents_are_free_for_the_next_manager_when_theirs_is_gone() {
    if !require_root("agents_are_free_for_the_next_manager_when_theirs_is_gone") {
        return;
    }
    let field = Field::new();
    let (mut injector, mut sensor) = field.agents();
    field.suite("long", "sensors = [\"wirelane-count\"]\nrates = [1000]\nduration = \"60s\"\ncores = [[1]]");
    field.suite(
        "short",
        "sensors = [\"wirelane-count\"]\nrates = [1000]\nduration = \"500ms\"\ncores = [[1]]",
    );
    let manager = field.start(&["long.toml"]);
    field.wait_for("wirelane send", "wirelane count", true);
    let told = field.run(&["short.toml", "--out", "busy"]);
    assert_eq!(told.status.code(), Some(1));
    assert!(
        told.stderr.contains("the injector's agent 10.77.1.1:4433: it refuses: it works for another manager")
    );

    manager.signal(Signal::Kill).unwrap();
    let _ = manager.finish(LIMIT).unwrap();
    field.wait_for("wirelane send", "wirelane count", false);
    assert!(field.run_when_free(&["short.toml"]).status.success());
    let row = &field.rows("testbed-short")[0];
    assert!(number(row, "sent") > 0 && number(row, "unaccounted") == 0, "{row:?}");

    // A stopped manager is given up after ten seconds.
    let manager = field.start(&["long.toml", "--out", "still"]);
    field.wait_for("wirelane send", "wirelane count", true);
    manager.signal(Signal::Stop).unwrap();
    field.wait_for("wirelane send", "wirelane count", false);
    assert!(field.run_when_free(&["short.toml", "--out", "again"]).status.success());
    manager.signal(Signal::Kill).unwrap();
    let _ = manager.finish(LIMIT).unwrap();
    assert!(injector.is_running().unwrap() && sensor.is_running().unwrap());
}

/// Battery: S1, S2, S8
#[test]
fn an_agent_meets_the_network_without_rights_and_half_open_handshakes_keep_no_manager_out() {
    if !require_root("an_agent_meets_the_network_without_rights_and_half_open_handshakes_keep_no_manager_out")
    {
        return;
    }
    let field = Field::new();
    let (mut injector, mut sensor) = field.agents();
    for agent in [&injector, &sensor] {
        let children = format!("/proc/{0}/task/{0}/children", agent.pid());
        let end = Instant::now() + LIMIT;
        let front: u32 = loop {
            let all = fs::read_to_string(&children).unwrap();
            if let Some(front) = all.split_whitespace().next() {
                break front.parse().unwrap();
            }
            assert!(Instant::now() < end, "no front");
            std::thread::sleep(Duration::from_millis(10));
        };
        let status = || fs::read_to_string(format!("/proc/{front}/status")).unwrap();
        let has = |name: &str, value: &str| {
            status().lines().any(|line| line.strip_prefix(name).is_some_and(|rest| rest.trim() == value))
        };
        while !has("Seccomp:", "2") {
            assert!(Instant::now() < end, "{}", status());
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(has("CapEff:", "0000000000000000") && has("CapPrm:", "0000000000000000"), "{}", status());
        assert!(has("NoNewPrivs:", "1") && !status().contains("Uid:\t0\t"), "{}", status());
    }
    // More connections than slots: silent ones, and ones with an incomplete handshake.
    allow_descriptors(2 * CLIENTS as u64);
    let link = &field.lab.links[0];
    let address = format!("{}:{PORT}", field.address("injector"));
    let silent = field.lab.enter(&link.sender.namespace, || {
        let client = |number: usize| {
            let mut socket = std::net::TcpStream::connect(&address).unwrap();
            let _ = socket.write_all(&[0x16, 3, 1, 2, 0][..number % 6]);
            socket
        };
        crowd(CLIENTS, client)
    });
    let silent = silent.unwrap();
    println!("{} of {CLIENTS} connections are open", settled(&silent, CONNECTIONS));
    field.suite(
        "short",
        "sensors = [\"wirelane-count\"]\nrates = [1000]\nduration = \"500ms\"\ncores = [[1]]",
    );
    let begun = Instant::now();
    let told = field.run(&["short.toml"]);
    assert!(told.status.success(), "{}", told.stderr);
    println!("beside {} silent connections: {:?}", silent.len(), begun.elapsed());
    assert!(injector.is_running().unwrap() && sensor.is_running().unwrap());
}
