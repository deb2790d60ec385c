//! The image, run by runc as kubelet and containerd run the container of the DaemonSet.

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::Value;
use wirelane_tests::{Child, Lab, numbers, repository, require_root, wirelane_binary};

use super::{done, files, package};

/// A container, which is removed at the end in any case.
struct Container(String);

impl Container {
    fn runc(&self, words: &[&str]) -> Output {
        let (verb, rest) = words.split_first().unwrap();
        Command::new("runc").arg(verb).arg(&self.0).args(rest).output().unwrap()
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        // A container that has ended is gone already.
        let _ = Command::new("runc").args(["delete", "--force", &self.0]).output();
    }
}

fn is_there(program: &str, words: &[&str]) -> bool {
    let is_there = Command::new(program).args(words).output().is_ok_and(|output| output.status.success());
    if !is_there {
        println!("left out: no {program} {}", words.join(" "));
    }
    is_there
}

/// The bundle of runc's for an image.
fn unpack(folder: &Path) -> std::path::PathBuf {
    let out = folder.join("out");
    package(&out, &["image"]);
    let name = files(&out).into_keys().next().unwrap();
    let (layout, bundle) = (folder.join("layout"), folder.join("bundle"));
    std::fs::create_dir(&layout).unwrap();
    done(Command::new("tar").arg("-xf").arg(out.join(name)).arg("-C").arg(&layout));
    let image = format!("{}:{}", layout.display(), env!("CARGO_PKG_VERSION"));
    done(Command::new("umoci").args(["unpack", "--image", &image]).arg(&bundle));
    bundle
}

/// Numbered packets in, all of them in the metrics, in the ledger at the end, and in the store on the node.
/// Battery: S10
#[test]
fn the_image_captures_with_the_rights_of_the_daemon_set() {
    let test = "the_image_captures_with_the_rights_of_the_daemon_set";
    if !require_root(test)
        || !is_there("runc", &["--version"])
        || !is_there("python3", &["-c", "import yaml"])
    {
        return;
    }
    const SENT: u64 = 5000;
    let folder = tempfile::tempdir().unwrap();
    let bundle = unpack(folder.path());
    let lab = Lab::new(1).unwrap();
    let end = lab.receiver();
    let volumes = folder.path().join("volumes");
    done(
        Command::new("python3")
            .arg(repository().join("tests/src/pod.py"))
            .arg(&bundle)
            .arg(repository().join("packaging/kubernetes/wirelane.yaml"))
            .arg(format!("/run/netns/{}", end.namespace))
            .arg(&volumes)
            .arg(&end.device),
    );
    // The metrics are on the loopback of the node.
    lab.exec(&end.namespace, &["ip", "link", "set", "lo", "up"]).unwrap();
    let container = Container(format!("wirelane-test-{}", std::process::id()));
    let mut running = Command::new("runc");
    let mut running =
        Child::spawn(running.arg("run").arg("--bundle").arg(&bundle).arg(&container.0)).unwrap();
    let begin = std::time::Instant::now();
    while !container.runc(&["exec", "/usr/bin/wirelane", "status"]).status.success() {
        if !running.is_running().unwrap() {
            let errors = running.errors();
            // Before the program: runc needs control groups, and others limits that it may set.
            assert!(errors.contains("runc run failed"), "{errors}");
            println!("left out: {test} (runc starts no container here: {})", errors.trim());
            return;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "no status within a minute");
        std::thread::sleep(Duration::from_millis(100));
    }
    numbers::send(&lab, SENT, &["--rate", "20k", "--flows", "10"]).unwrap();

    let seen = format!("wirelane_packets_total{{column=\"seen\"}} {SENT}");
    let asked = ["curl", "--silent", "http://127.0.0.1:9464/metrics"];
    let begin = std::time::Instant::now();
    while !lab.exec(&end.namespace, &asked).unwrap().lines().any(|line| line == seen) {
        assert!(begin.elapsed() < Duration::from_secs(20), "{}", lab.exec(&end.namespace, &asked).unwrap());
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(container.runc(&["kill", "TERM"]).status.success());
    let finished = running.finish(Duration::from_secs(60)).unwrap();
    assert!(finished.status.success(), "{}", finished.stderr);

    let store = volumes.join("state/store");
    let mut query = Command::new(wirelane_binary().unwrap());
    query.args(["query", "SELECT sum(packets) AS packets FROM flows", "--json", "--store"]).arg(store);
    let stored: Value = serde_json::from_slice(&done(&mut query).stdout).unwrap();
    assert_eq!(stored["packets"], SENT, "{stored}");
}
