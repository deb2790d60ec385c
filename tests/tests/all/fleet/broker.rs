//! A Kafka broker (KRaft, one node), and what others read of it.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use wirelane_tests::numbers::LIMIT;
use wirelane_tests::{Child, Signal, repository};

use super::run;

/// How long a broker takes to start, at most: a virtual machine of Java on a busy processor.
const START: Duration = Duration::from_secs(90);

/// The broker: one process with its data in a folder.
pub struct Broker {
    folder: PathBuf,
    port: u16,
    /// Port of the listener with SASL: user `probe`, password `open sesame`.
    pub sasl_port: u16,
    controller: u16,
    process: Option<Child>,
}

/// A port that is free.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl Broker {
    /// Starts a broker; `None`: there is none, or the program was built without Kafka, and the test is left out.
    pub fn start(test: &str, folder: &Path) -> Option<Broker> {
        fs::create_dir_all(folder.join("flows")).unwrap();
        let finished = run(&["ship", folder.to_str().unwrap(), "--to", "kafka://127.0.0.1:1/t", "--once"]);
        fs::remove_dir_all(folder).unwrap();
        if finished.stderr.contains("built without Kafka (cargo: feature 'kafka' of the crate wirelane-cli)")
        {
            println!("left out: {test} (built without Kafka: --features wirelane-cli/kafka)");
            return None;
        }
        let is_there = |program: &str| {
            Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
        };
        let has_kcat = Command::new("kcat").arg("-V").output().is_ok();
        if !repository().join("target/fleet/kafka").is_dir() || !is_there("java") || !has_kcat {
            println!("left out: {test} (no Kafka: scripts/setup fleet)");
            return None;
        }
        let [port, sasl_port, controller] = [(); 3].map(|()| free_port());
        let mut broker = Broker { folder: folder.to_owned(), port, sasl_port, controller, process: None };
        broker.open();
        Some(broker)
    }

    /// Starts the broker again, on the same ports over the same data.
    pub fn open(&mut self) {
        let mut command = Command::new("python3");
        command.arg(repository().join("tests/src/kafka_broker.py")).arg(&self.folder).arg("127.0.0.1");
        command.args([self.port, self.sasl_port, self.controller].map(|port| port.to_string()));
        self.process = Some(Child::spawn(&mut command).unwrap());
        let begun = Instant::now();
        let answers = || {
            let mut command = Command::new("kcat");
            let output = command.args(["-L", "-m", "2", "-b", &self.servers()]).output().unwrap();
            output.status.success()
        };
        while !answers() {
            assert!(begun.elapsed() < START, "the broker does not answer");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Kills the broker.
    pub fn kill(&mut self) {
        let process = self.process.take().unwrap();
        process.signal(Signal::Kill).unwrap();
        process.finish(LIMIT).unwrap();
    }

    /// Address of the broker.
    pub fn servers(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The target of shipping.
    pub fn to(&self) -> String {
        format!("kafka://{}/flows", self.servers())
    }

    /// The messages of a topic; `framing`: they are flows.
    pub fn messages(&self, topic: &str, framing: Option<&str>) -> Vec<Value> {
        let mut command = Command::new(repository().join("target/fleet/bin/python3"));
        command.arg(repository().join("tests/src/kafka_messages.py")).args([&self.servers(), topic]);
        if let Some(framing) = framing {
            command.arg(repository().join("crates/wirelane-ship/proto/flow.proto")).arg(framing);
        }
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if self.process.is_some() {
            self.kill();
        }
    }
}
