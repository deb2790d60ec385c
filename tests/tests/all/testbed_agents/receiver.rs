//! A third machine behind the sensor's, with an agent that counts what arrives.

use std::fs;
use std::io::Write;
use std::process::Command;

use wirelane_tests::{Child, Signal, require_root, wirelane_binary};

use super::{Field, LIMIT, PORT, number};

/// A third machine behind the sensor's, to which packets are passed on: a network namespace with a device for them, and
/// one for the connection of manager and agent. Removed on drop.
struct Behind(String);

impl Behind {
    const ADDRESS: &str = "10.77.9.2";

    fn new(field: &Field) -> Behind {
        let link = &field.lab.links[0];
        let name = format!("{}-behind", link.receiver.namespace);
        let ip = |words: &str| {
            let output = Command::new("ip").args(words.split(' ')).output().unwrap();
            assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
        };
        ip(&format!("netns add {name}"));
        let behind = Behind(name);
        let Behind(name) = &behind;
        let (manager, sensor) = (&link.sender.namespace, &link.receiver.namespace);
        for (namespace, words) in [
            (
                name,
                "echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6; echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6",
            ),
            (sensor, "echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6"),
        ] {
            field.lab.exec(namespace, &["sh", "-c", words]).unwrap();
        }
        ip(&format!("-n {sensor} link add out type veth peer name in netns {name}"));
        ip(&format!("-n {manager} link add told type veth peer name tells netns {name}"));
        ip(&format!("-n {manager} address add 10.77.9.1/24 dev told"));
        ip(&format!("-n {name} address add {}/24 dev tells", Behind::ADDRESS));
        for (namespace, device) in [(sensor, "out"), (name, "in"), (manager, "told"), (name, "tells")] {
            ip(&format!("-n {namespace} link set {device} up"));
        }
        for words in [
            "tc qdisc add dev rx0 clsact",
            "tc filter add dev rx0 ingress pref 65535 protocol all u32 match u32 0 0 action mirred egress redirect dev out",
        ] {
            field.lab.exec(sensor, &words.split(' ').collect::<Vec<_>>()).unwrap();
        }
        field.certificate(
            "ca",
            "receiver",
            &format!("serverAuth -addext subjectAltName=IP:{}", Behind::ADDRESS),
        );
        behind
    }

    fn agent(&self, field: &Field) -> Child {
        let listen = format!("{}:{PORT}", Behind::ADDRESS);
        let identity = ["--cert", "receiver.pem", "--key", "receiver.key", "--ca", "ca.pem"];
        let mut command = field.lab.command(&self.0, wirelane_binary().unwrap());
        command.args(["testbed", "agent", "--listen", &listen, "--device", "in"]).args(identity);
        let child = Child::spawn(command.current_dir(field.at())).unwrap();
        assert_eq!(child.next_line(LIMIT).unwrap(), Some(format!("listening on {listen}")));
        child
    }

    /// As [`Field::suite`], with a receiver.
    fn battery(field: &Field, name: &str, device: &str, rest: &str) {
        field.suite(name, rest);
        let mut file = fs::OpenOptions::new().append(true).open(field.path(&format!("{name}.toml"))).unwrap();
        writeln!(file, "[receiver]\nagent = \"{}:{PORT}\"\ndevice = \"{device}\"", Behind::ADDRESS).unwrap();
    }
}

impl Drop for Behind {
    fn drop(&mut self) {
        // A leftover namespace makes the next test fail that creates one of this name.
        let _ = Command::new("ip").args(["netns", "delete", &self.0]).status();
    }
}

#[test]
fn a_receiver_on_a_third_machine_counts_what_is_passed_on() {
    if !require_root("a_receiver_on_a_third_machine_counts_what_is_passed_on") {
        return;
    }
    let field = Field::new();
    let behind = Behind::new(&field);
    let (_injector, _sensor) = field.agents();
    let rest = "sensors = [\"nobody\", \"wirelane-count\", \"wirelane-count-take\"]\nrates = [5000]\nduration = \"200ms\"\n\
                engines = [\"ring\"]\ncores = [[1]]";
    Behind::battery(&field, "three", "in", rest);
    // Without its agent, and with a device that the agent does not serve.
    let told = field.run(&["three.toml", "--out", "x"]);
    assert_eq!(told.status.code(), Some(1));
    assert!(
        told.stderr.contains("the receiver's agent 10.77.9.2:4433: it is not there; start it"),
        "{}",
        told.stderr
    );
    let receiver = behind.agent(&field);
    Behind::battery(&field, "other", "tells", rest);
    let told = field.run_when_free(&["other.toml", "--out", "x"]).stderr;
    assert!(
        told.contains(
            "the receiver's agent 10.77.9.2:4433: it refuses: it is for device in, and not for tells"
        ),
        "{told}"
    );
    assert!(!field.path("x").exists());

    assert!(field.run_when_free(&["three.toml"]).status.success());
    let trials = field.rows("testbed-three");
    assert_eq!(trials.len(), 3);
    for (row, taken) in trials.iter().zip([false, false, true]) {
        assert!(row["fault"].is_empty() && number(row, "sent") >= 900, "{row:?}");
        assert_eq!(number(row, "passed_on"), if taken { 0 } else { number(row, "sent") }, "{row:?}");
    }
    let page = fs::read_to_string(field.path("testbed-three/report.html")).unwrap();
    assert!(page.contains("Receiver:") && page.contains("passed on kpps"));

    // If the agent is killed during a trial, that trial has a fault; after a restart it counts in the next one.
    let rest =
        "sensors = [\"wirelane-count\"]\nrates = [1000]\nduration = \"4s\"\nrepetitions = 2\ncores = [[1]]";
    Behind::battery(&field, "k", "in", rest);
    let manager = field.start(&["k.toml"]);
    field.wait_for("wirelane send", "wirelane count", true);
    receiver.signal(Signal::Kill).unwrap();
    let _ = receiver.finish(LIMIT).unwrap();
    let _receiver = behind.agent(&field);
    let told = manager.finish(LIMIT).unwrap();
    assert_eq!(told.status.code(), Some(1), "{}", told.stderr);
    assert!(told.stderr.contains("the receiver's agent 10.77.9.2:4433 went away"), "{}", told.stderr);
    let trials = field.rows("testbed-k");
    assert_eq!(trials.len(), 2);
    assert!(trials[0]["fault"].contains("went away") && trials[1]["fault"].is_empty(), "{trials:?}");
    assert_eq!(number(&trials[1], "passed_on"), number(&trials[1], "sent"), "{trials:?}");
}
