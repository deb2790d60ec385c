//! A service for an hour: a Debian with the packages and with systemd in a network namespace monitors mixed real traffic. Its
//! file is read again three times, a log is rotated, a disk is full for a while, its process is killed, and its device
//! goes and comes. Every packet is accounted for, and the store has what the peers have counted.
//!
//! ```text
//! sender's namespace                receiver's namespace
//!   send --replay (corpus)   tx0 --- rx0   nginx, sipp, iperf3 (of this machine)
//!   curl, sipp, iperf3                     systemd of Debian 13: wirelane@rx0 from the package
//! ```
//! `WIRELANE_MONITOR_SECONDS` is the length, an hour without it.

mod traffic;

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use traffic::{Peers, Traffic};

use wirelane_tests::numbers::{LIMIT, column};
use wirelane_tests::{Debian, Lab, Machine, corpus, require_root, wirelane_binary};

use super::monitor_faults::{Frozen, worker};

const UNIT: &str = "wirelane@rx0";
/// Events between rounds of traffic or beside them, in this order.
const EVENTS: [Event; 7] = [
    Event::Reload(1),
    Event::Rotate,
    Event::FullDisk,
    Event::Kill,
    Event::Reload(2),
    Event::Device,
    Event::Reload(3),
];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Event {
    /// The file changes and is read again, in the way with this number.
    Reload(u32),
    /// The log of transactions gets another name, and is opened again.
    Rotate,
    /// The disk of the recording is full for a while.
    FullDisk,
    /// The process is killed between two rounds.
    Kill,
    /// The device is deleted between two rounds, and made again.
    Device,
}

/// The file of the service after so many changes.
fn site(changes: u32) -> String {
    // No packet of the test has these Ethernet types.
    let (filter, interval) = match changes {
        0 => ("not ether proto 0x88b5", "1"),
        1 | 2 => ("not ether proto 0x88b6", "1"),
        _ => ("not ether proto 0x88b5", "2"),
    };
    format!(
        "[capture]\ninterface = \"rx0\"\ndirection = \"both\"\nring-size = 64\ninterval = {interval}\nfilter = \"{filter}\"\n\
         rules = \"/etc/wirelane/rules.toml\"\n\
         [record]\nwrite = \"/var/lib/wirelane/disk/all.pcapng\"\nrotate-size = \"1MiB\"\nkeep-size = \"4MiB\"\n\
         [flows]\noutput-rate = 0\nactive-timeout = 30\ninactive-timeout = 3\n\
         [http]\noutput-rate = 0\nlog = [\"nginx:/var/log/wirelane/access.log\"]\n\
         [voip]\noutput-rate = 0\nlinger = 1\n\
         [store]\nfolder = \"/var/lib/wirelane/store\"\nrotate = \"5s\"\n"
    )
}

/// No packet of the test is from these addresses.
fn rules(changes: u32) -> String {
    let host = if changes < 2 { 7 } else { 8 };
    format!("[[rule]]\nid = 1\nsrc = \"198.18.77.{host}\"\naction = \"drop\"\n")
}

/// The service under test, and what it has to account for.
struct Service<'a> {
    lab: &'a Lab,
    machine: &'a Machine<'a>,
    root: PathBuf,
    /// Packets of devices that are gone, by the kernel's counters.
    before: u64,
}

impl Service<'_> {
    fn write(&self, changes: u32) {
        fs::write(self.root.join("etc/wirelane/rx0.toml"), site(changes)).unwrap();
        fs::write(self.root.join("etc/wirelane/rules.toml"), rules(changes)).unwrap();
    }

    /// Packets of the device in both directions, by the kernel's counters. The other end has counted the same.
    fn counted(&self) -> u64 {
        let packets = |namespace: &str, device: &str| {
            let words = ["-json", "-s", "link", "show", "dev", device];
            let output = self.lab.command(namespace, "ip").args(words).output().unwrap();
            let links: Value = serde_json::from_slice(&output.stdout).unwrap();
            ["rx", "tx"].map(|side| links[0]["stats64"][side]["packets"].as_u64().unwrap())
        };
        let (here, there) = (self.lab.receiver(), self.lab.sender());
        let [received, sent] = packets(&here.namespace, &here.device);
        let [answers, asked] = packets(&there.namespace, &there.device);
        assert_eq!((received, sent), (asked, answers), "counters of the two ends");
        received + sent
    }

    /// Rows of a question to the store.
    fn ask(&self, sql: &str) -> Vec<Value> {
        let store = self.root.join("var/lib/wirelane/store");
        let output = Command::new(wirelane_binary().unwrap())
            .args(["query", "--json", "--store", store.to_str().unwrap(), sql])
            .output()
            .unwrap();
        assert!(output.status.success(), "{sql}: {}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The sums of all ledgers in the store, of all lives of the process.
    fn ledger(&self) -> [u64; 6] {
        const COLUMNS: [&str; 6] = ["seen", "filtered", "absorbed", "shed", "lost", "delivered"];
        let sums = COLUMNS.map(|name| format!("coalesce(sum({name}), 0) AS {name}")).join(", ");
        let row = &self.ask(&format!("SELECT {sums} FROM ledgers"))[0];
        COLUMNS.map(|name| column(row, name))
    }

    fn sum(&self, sql: &str) -> u64 {
        column(&self.ask(&format!("SELECT coalesce({sql}"))[0], "n")
    }

    /// Waits until everything is stored, and checks that every packet that the device has counted is in one column of the
    /// ledger and in one flow. Returns its number.
    fn settle(&self) -> u64 {
        let packets = self.before + self.counted();
        let flows = || self.sum("sum(packets), 0) AS n FROM flows");
        let begun = Instant::now();
        loop {
            let ledger = self.ledger();
            let now = (ledger[0], flows());
            if now == (packets, packets) {
                assert_eq!(ledger, [packets, 0, 0, 0, 0, packets], "columns of the ledger");
                assert_eq!(self.before + self.counted(), packets, "the namespaces are not quiet");
                return packets;
            }
            assert!(
                begun.elapsed() < LIMIT && now.0 <= packets && now.1 <= packets,
                "the device has counted {packets}, the ledger {ledger:?}, flows have {}",
                now.1
            );
            std::thread::sleep(Duration::from_secs(1));
        }
    }

    /// Kernel functions in which the threads of the process wait, and the state of the disk.
    fn threads(&self) -> String {
        let pid = self.machine.outside(self.main_pid()).unwrap();
        let script = format!(
            "for t in /proc/{pid}/task/*; do echo; cat $t/comm; cat $t/syscall; cat $t/stack; grep ctxt $t/status; done; cat /proc/{pid}/status"
        );
        let output = Command::new("sh").args(["-c", &script]).output().unwrap();
        let disk =
            self.machine.run(&["sh", "-c", "ls -la /var/lib/wirelane/disk; df /var/lib/wirelane/disk"]);
        format!(
            "{}\n{}\n{}\n{}",
            String::from_utf8_lossy(&output.stdout),
            disk.unwrap(),
            self.status(),
            self.journal()
        )
    }

    fn main_pid(&self) -> u32 {
        self.machine.property(UNIT, "MainPID").unwrap().parse().unwrap()
    }

    fn status(&self) -> Value {
        serde_json::from_str(&self.machine.run(&["wirelane", "status", "rx0", "--json"]).unwrap()).unwrap()
    }

    /// The first output of the recording, in the status.
    fn recording(&self) -> Value {
        let status = self.status();
        let all = status["analyses"].as_array().unwrap();
        all.iter().find(|one| one["name"] == "record").unwrap()["outputs"][0].clone()
    }

    /// Every packet of this life of the process is in a file, or is counted as lost of the recording.
    fn recorded(&self) -> (u64, u64) {
        let begun = Instant::now();
        loop {
            let (output, seen) = (self.recording(), column(&self.status()["ledger"], "seen"));
            let (written, lost) = (column(&output, "written"), column(&output, "lost"));
            if written + lost == seen {
                return (written, lost);
            }
            assert!(begun.elapsed() < LIMIT, "{output}: seen {seen}{}", self.threads());
            std::thread::sleep(Duration::from_millis(500));
        }
    }

    fn until(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !holds() {
            assert!(begun.elapsed() < LIMIT, "{what}: {}", self.journal());
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Waits until a process other than this one captures.
    fn until_restarted(&self, former: u32) {
        self.until("no new process captures", || {
            self.machine.property(UNIT, "ActiveState").unwrap() == "active"
                && ![0, former].contains(&self.main_pid())
        });
    }

    fn journal(&self) -> String {
        self.machine.run(&["journalctl", "--no-pager", "-o", "cat", "-n", "60", "-u", UNIT]).unwrap()
    }

    /// Makes what happens beside a round of traffic. Returns what is to be done at its end.
    fn beside(&self, event: Event) {
        std::thread::sleep(Duration::from_secs(3));
        let reloads = || column(&self.status(), "reloads");
        match event {
            Event::Reload(number) => {
                self.write(number);
                let before = reloads();
                match number {
                    1 => drop(self.machine.run(&["systemctl", "reload", UNIT]).unwrap()),
                    2 => assert_eq!(
                        self.machine.run(&["wirelane", "reload", "rx0"]).unwrap(),
                        "changed: rules\n"
                    ),
                    _ => drop(self.machine.run(&["systemctl", "kill", "-s", "HUP", UNIT]).unwrap()),
                }
                self.until("the file was not read again", || reloads() == before + 1);
            }
            Event::Rotate => {
                let log = self.root.join("var/log/wirelane/access.log");
                fs::rename(&log, log.with_extension("log.1")).unwrap();
                self.machine.run(&["systemctl", "reload", UNIT]).unwrap();
                self.until("the log was not made again", || log.exists());
            }
            Event::FullDisk => {
                let fill = "dd if=/dev/zero of=/var/lib/wirelane/disk/ballast bs=64k 2>/dev/null || true";
                self.machine.run(&["sh", "-c", fill]).unwrap();
                self.until("the full disk is not reported", || {
                    let output = self.recording();
                    output["works"] == false && column(&output, "lost") > 0
                });
                self.machine.run(&["rm", "/var/lib/wirelane/disk/ballast"]).unwrap();
            }
            Event::Kill | Event::Device => {}
        }
    }

    /// Makes what happens between two rounds of traffic, when everything is stored.
    fn between(&mut self, event: Event) {
        match event {
            Event::FullDisk => {
                self.until("the recording does not go on", || self.recording()["works"] == true)
            }
            Event::Kill => {
                self.settle();
                let (written, lost) = self.recorded();
                println!("before the kill: {written} packets recorded, {lost} lost of the recording");
                assert!(lost > 0, "the disk was full");
                let former = self.main_pid();
                self.machine.run(&["kill", "-KILL", &former.to_string()]).unwrap();
                self.until_restarted(former);
            }
            Event::Device => {
                let packets = self.settle();
                let former = self.main_pid();
                let here = self.lab.receiver();
                self.lab.exec(&here.namespace, &["ip", "link", "del", &here.device]).unwrap();
                self.until("the device is not waited for", || {
                    self.machine.property(UNIT, "StatusText").unwrap() == "waiting for rx0"
                });
                self.lab.remake().unwrap();
                traffic::without_aggregates(self.lab);
                self.before = packets;
                self.until_restarted(former);
            }
            Event::Reload(_) | Event::Rotate => {}
        }
    }
}

/// A Debian with the package.
fn installed(test: &str) -> Option<Debian> {
    let debian = Debian::new(test, "trixie").unwrap()?;
    super::packages::package(&debian.root().join("debs"), &["deb"]);
    let install = "apt-get install -qy --no-install-recommends /debs/wirelane_*.deb";
    debian.shell(&format!("apt-get update -q; {install}; rm -r /debs; mkdir -p /etc/wirelane")).unwrap();
    Some(debian)
}

/// The service is not root, has given up its capabilities, and cannot gain any.
fn assert_confined(machine: &Machine<'_>, pid: u32) {
    let status = machine.run(&["cat", &format!("/proc/{pid}/status")]).unwrap();
    let of = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
    let account = machine.run(&["id", "-u", "wirelane"]).unwrap();
    assert!(of("Uid:").split('\t').all(|uid| uid == account.trim() && uid != "0"), "{status}");
    for set in ["CapEff:", "CapPrm:", "CapInh:", "CapAmb:"] {
        assert_eq!(of(set), "0000000000000000", "{set} {status}");
    }
    assert_eq!((of("NoNewPrivs:"), of("Seccomp:")), ("1".to_owned(), "2".to_owned()), "{status}");
}

fn resident_kib(machine: &Machine<'_>, pid: u32) -> u64 {
    let status = machine.run(&["cat", &format!("/proc/{pid}/status")]).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Battery: L5, F1, F3, S10
#[test]
#[ignore = "an hour: make test-all"]
fn monitor_hour() {
    let test = "monitor_hour";
    if !require_root(test) || !traffic::are_there(test) {
        return;
    }
    let Some(corpus) = corpus(test) else { return };
    let length = std::env::var("WIRELANE_MONITOR_SECONDS").map_or(3600, |text| text.parse().unwrap());
    let Some(debian) = installed(test) else { return };
    let root = debian.root();
    let lab = Lab::new(1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let traffic = Traffic::start(&lab, folder.path(), &corpus);
    let machine = debian.boot(&lab.receiver().namespace).unwrap();
    let disk = "install -d -o wirelane -g wirelane /var/lib/wirelane /var/lib/wirelane/disk
                mount -t tmpfs -o size=8m,mode=0700,uid=$(id -u wirelane),gid=$(id -g wirelane) none /var/lib/wirelane/disk";
    machine.run(&["sh", "-euc", disk]).unwrap();
    let mut service = Service { lab: &lab, machine: &machine, root: root.clone(), before: 0 };
    service.write(0);
    machine
        .run(&["systemctl", "enable", "--now", UNIT])
        .unwrap_or_else(|error| panic!("{error:#}: {}", service.journal()));
    assert_eq!(service.counted(), 0, "packets before the capture");
    assert_confined(&machine, service.main_pid());
    let memory = resident_kib(&machine, service.main_pid());

    let begun = Instant::now();
    let mut peers = Peers::default();
    let (mut rounds, mut events) = (0, EVENTS.iter().copied());
    let mut happened = 0;
    // The events are spread over the time; the last round has none.
    while begun.elapsed() < Duration::from_secs(length) || happened < EVENTS.len() {
        let due = length as f64 * happened as f64 / EVENTS.len() as f64;
        let event = if begun.elapsed().as_secs_f64() >= due { events.next() } else { None };
        std::thread::scope(|scope| {
            let round = scope.spawn(|| traffic.round(rounds));
            if let Some(event) = event {
                service.beside(event);
            }
            peers += round.join().unwrap();
        });
        rounds += 1;
        if let Some(event) = event {
            service.between(event);
            happened += 1;
            println!("{:>5} s: {event:?}, {rounds} rounds", begun.elapsed().as_secs());
        }
    }
    let packets = service.settle();
    let (written, lost) = service.recorded();
    let after = resident_kib(&machine, service.main_pid());
    assert_eq!(machine.property(UNIT, "NRestarts").unwrap(), "2", "{}", service.journal());
    machine.run(&["systemctl", "stop", UNIT]).unwrap();
    assert_eq!(machine.property(UNIT, "Result").unwrap(), "success", "{}", service.journal());
    assert_eq!(service.settle(), packets, "after the end");
    let journal = machine.run(&["journalctl", "--no-pager", "-o", "cat", "-u", UNIT]).unwrap();
    for bad in ["panicked", "this is a bug", "watchdog", "do not add up"] {
        assert!(!journal.to_lowercase().contains(bad), "{bad}: {journal}");
    }
    traffic.compare(&peers, &|sql| service.ask(sql), &root.join("var/log/wirelane"));
    println!(
        "{} s, {rounds} rounds: {packets} packets, each in the ledger and in a flow; last process: {written} recorded, {lost} \
         unrecorded; {peers:?}; resident {memory} KiB, at the end {after} KiB",
        begun.elapsed().as_secs()
    );
}

/// A process whose worker hangs is ended by systemd's watchdog and started again. The ledger of before is in the journal, as a
/// warning.
#[test]
#[ignore = "installs a Debian, minutes: make test-all"]
fn systemd_starts_a_service_again_whose_worker_hangs() {
    let test = "systemd_starts_a_service_again_whose_worker_hangs";
    if !require_root(test) {
        return;
    }
    let Some(debian) = installed(test) else { return };
    let root = debian.root();
    let lab = Lab::new(1).unwrap();
    let machine = debian.boot(&lab.receiver().namespace).unwrap();
    let site = "[capture]\ninterface = \"rx0\"\ndirection = \"rx\"\ninterval = 1\n[flows]\n";
    fs::write(root.join("etc/wirelane/rx0.toml"), site).unwrap();
    let settings = root.join("etc/systemd/system/wirelane@.service.d");
    fs::create_dir_all(&settings).unwrap();
    fs::write(settings.join("watchdog.conf"), "[Service]\nWatchdogSec=5\n").unwrap();
    machine.run(&["systemctl", "daemon-reload"]).unwrap();
    let service = Service { lab: &lab, machine: &machine, root: root.clone(), before: 0 };
    machine
        .run(&["systemctl", "start", UNIT])
        .unwrap_or_else(|error| panic!("{error:#}: {}", service.journal()));
    let former = service.main_pid();
    let frozen = Frozen::new(&worker(machine.outside(former).unwrap()));
    wirelane_tests::numbers::send(&lab, 100, &[]).unwrap();
    service.until("the watchdog does not end the process", || service.journal().contains("Watchdog timeout"));
    // A killed process stays until its tracer lets go.
    drop(frozen);
    service.until_restarted(former);
    assert_eq!(machine.property(UNIT, "NRestarts").unwrap(), "1");
    let journal = |more: &[&str]| {
        let words = ["journalctl", "--no-pager", "-o", "cat", "-u", UNIT];
        machine.run(&[&words[..], more].concat()).unwrap()
    };
    let warnings = journal(&["-p", "4..4"]);
    let ledger = "a worker makes no progress; the ledger so far: seen 100, filtered 0, absorbed 0, shed 0, lost 0, delivered 100, \
                  analysed 0";
    assert!(warnings.contains(ledger), "{warnings}{}", journal(&[]));
    assert!(!warnings.contains("<4>"), "{warnings}");
}
