//! Bench of kernel tests: a veth pair, or the device of a guest.

use std::fs::{self, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use wirelane_tests::{Child, Lab, Signal, wirelane_binary};

use super::LIMIT;

/// A device to capture on, and a way to send packets to it.
pub(super) trait Bench {
    fn wirelane(&self, words: &[&str]) -> Child;
    fn device(&self) -> &str;
    /// Sends numbered packets; returns the number that the device accepted, which is smaller only for the in-kernel
    /// generator, where a full device refuses frames.
    fn send(&self, packets: u64, method: &str) -> u64 {
        self.send_with(packets, method, "")
    }

    /// As [`Bench::send`], with further options of `wirelane send`.
    fn send_with(&self, packets: u64, method: &str, options: &str) -> u64;
}

/// A veth pair.
impl Bench for Lab {
    fn wirelane(&self, words: &[&str]) -> Child {
        start(self, &self.receiver().namespace, words)
    }

    fn device(&self) -> &str {
        &self.receiver().device
    }

    fn send_with(&self, packets: u64, method: &str, options: &str) -> u64 {
        let end = self.sender();
        let number = packets.to_string();
        let words = ["send", "-i", &end.device, "--packets", &number, "--rate", "20k", "--json"];
        let options: Vec<&str> = options.split_whitespace().collect();
        let words = [&words, ["--method", method].as_slice(), &options].concat();
        let finished = start(self, &end.namespace, &words).finish(LIMIT).unwrap();
        assert!(finished.status.success(), "{}", finished.stderr);
        let sent = field(&finished.last_json().unwrap(), "sent");
        assert!(sent == packets || method == "kernel" && (1..packets).contains(&sent), "{method}: {sent}");
        sent
    }
}

pub(super) fn start(lab: &Lab, namespace: &str, words: &[&str]) -> Child {
    let binary = wirelane_binary().unwrap();
    Child::spawn(lab.command(namespace, binary).args(words)).unwrap()
}

/// The virtio-net device of a guest.
pub(super) struct Guest {
    device: String,
    peer: String,
}

impl Guest {
    pub(super) fn find(test: &str) -> Option<Guest> {
        match (std::env::var("WIRELANE_PEER_DEVICE"), std::env::var("WIRELANE_PEER")) {
            (Ok(device), Ok(peer)) => Some(Guest { device, peer }),
            _ => {
                println!("left out: {test} (runs in the guests of make test-kernels)");
                None
            }
        }
    }

    /// True in a guest, which has a device of its own.
    pub(super) fn is_here() -> bool {
        std::env::var_os("WIRELANE_PEER_DEVICE").is_some()
    }

    /// True in a guest, after a message that a test by tc is skipped there if it also exists for native XDP: loading
    /// each capture's programs takes the verifier of an emulated machine half a minute.
    pub(super) fn leaves_out(test: &str) -> bool {
        if Guest::is_here() {
            println!("left out: {test} (guests try this by native XDP alone)");
        }
        Guest::is_here()
    }

    /// Sends the host a request, and returns its answer.
    pub(super) fn ask(&self, question: &str) -> String {
        let mut line = OpenOptions::new().read(true).write(true).open(&self.peer).unwrap();
        // libtest has begun a line of its own there.
        write!(line, "\n{question}\n").unwrap();
        let mut answer = String::new();
        BufReader::new(line).read_line(&mut answer).unwrap();
        answer.trim().to_owned()
    }

    /// Sends so many packets as fast as the host can.
    pub(super) fn burst(&self, packets: u64) {
        let answer = self.ask(&format!("burst {packets}"));
        assert_eq!(answer, format!("sent {packets}"), "the host's answer");
    }

    /// Packets that the card has taken from the host's tap device since the start, and those that the tap device dropped.
    pub(super) fn taken(&self) -> (u64, u64) {
        self.two_numbers("taken")
    }

    /// Packets and bytes that have arrived at the host from here, since the start.
    pub(super) fn arrived(&self) -> (u64, u64) {
        self.two_numbers("arrived")
    }

    fn two_numbers(&self, what: &str) -> (u64, u64) {
        let answer = self.ask(&format!("{what}?"));
        let mut words = answer.split(' ');
        assert_eq!(words.next(), Some(what), "the host's answer: {answer}");
        let mut number = || words.next().and_then(|word| word.parse().ok()).expect("a number");
        (number(), number())
    }
}

impl Bench for Guest {
    fn wirelane(&self, words: &[&str]) -> Child {
        Child::spawn(Command::new(wirelane_binary().unwrap()).args(words)).unwrap()
    }

    fn device(&self) -> &str {
        &self.device
    }

    /// Asks the host to send, and waits until it has.
    fn send_with(&self, packets: u64, _method: &str, options: &str) -> u64 {
        let answer = self.ask(&format!("send {packets} {options}"));
        assert_eq!(answer, format!("sent {packets}"), "the host's answer");
        packets
    }
}

/// The last object of a capture, which is ended once it has seen so many packets: packets of the host may still be in
/// flight.
pub(super) fn last_of(capture: Child, packets: u64) -> Value {
    let deadline = Instant::now() + LIMIT;
    let mut seen = 0;
    while seen < packets && Instant::now() < deadline {
        let Some(interval) = capture.next_json(LIMIT).unwrap() else { break };
        seen += field(&interval, "seen");
    }
    let finished = capture.terminate(LIMIT).unwrap();
    assert!(finished.status.success(), "{}", finished.stderr);
    finished.last_json().unwrap()
}

/// Ids of the running processes of this name.
pub(super) fn processes(name: &str) -> Vec<u32> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap() {
        let Some(pid) = entry.unwrap().file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // Empty if the process has ended meanwhile.
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        if stat.contains(&format!("({name})")) && !stat.contains(") Z ") {
            found.push(pid);
        }
    }
    found
}

/// Kills one process and waits until it has ended.
pub(super) fn kill_process(pid: u32) {
    assert!(Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap().success(), "kill {pid}");
    let deadline = Instant::now() + LIMIT;
    let lives = || fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "));
    while lives() {
        assert!(Instant::now() < deadline, "process {pid} does not end");
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub(super) fn kill(capture: Child) {
    capture.signal(Signal::Kill).unwrap();
    assert!(!capture.finish(LIMIT).unwrap().status.success());
}

pub(super) fn field(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or_else(|| panic!("no {name} in {value}"))
}
