//! `wirelane send` on the command line: output, exit status, signals.

use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

/// A network namespace with both ends of a veth pair, `wltx` and `wlrx`; removed on drop.
struct Space(String);

impl Space {
    fn new(test: &str) -> Option<Space> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        // SAFETY: takes no arguments and cannot fail.
        if unsafe { libc::geteuid() } != 0 {
            assert!(
                std::env::var_os("WIRELANE_UNPRIVILEGED").is_some(),
                "{test} creates a network namespace and needs root; WIRELANE_UNPRIVILEGED=1 leaves it out"
            );
            println!("left out: {test} (no root)");
            return None;
        }
        let space = format!("wl-send-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        ip(&["netns", "add", &space]);
        let space = Space(space);
        let steps = ["link add wltx type veth peer name wlrx", "link set wltx up", "link set wlrx up"];
        for step in steps {
            let arguments: Vec<&str> = ["-n", &space.0].into_iter().chain(step.split(' ')).collect();
            ip(&arguments);
        }
        let gro = ["netns", "exec", &space.0, "ethtool", "-K", "wlrx", "gro", "on"];
        ip(&gro);
        Some(space)
    }

    fn wirelane(&self, arguments: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0, env!("CARGO_BIN_EXE_wirelane"), "send"]);
        command.args(arguments.split(' '));
        command
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

fn ip(arguments: &[&str]) {
    let status = Command::new("ip").args(arguments).status().expect("iproute2 is installed");
    assert!(status.success(), "ip {arguments:?}: {status}");
}

fn objects(output: &Output) -> Vec<Value> {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}")))
        .collect()
}

#[test]
fn json_has_intervals_and_a_last_object() {
    let Some(space) = Space::new("json_has_intervals_and_a_last_object") else { return };
    for method in ["kernel", "socket"] {
        let arguments =
            format!("-i wltx --method {method} --rate 10k --duration 0.5 --interval 0.1 --size imix --json");
        let output = space.wirelane(&arguments).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let objects = objects(&output);
        let (last, intervals) = objects.split_last().unwrap();
        assert!(!intervals.is_empty(), "{objects:?}");
        assert!(intervals.iter().all(|object| object["final"] == false));
        assert_eq!(last["final"], true);
        assert_eq!(last["method"], method);
        assert_eq!(last["asked_pps"], 10_000.0);
        let offered = last["offered"].as_u64().unwrap();
        // Never more than requested; a stalled machine gives packets up, and reports it.
        let asked = 10_000.0 * last["duration_s"].as_f64().unwrap();
        assert!(offered > 0 && offered as f64 <= asked + 1.0, "{last}");
        assert_eq!(last["last_sequence"], offered - 1);
        assert_eq!(last["sent"].as_u64().unwrap() + last["dropped"].as_u64().unwrap(), offered, "{last}");
    }
}

#[test]
fn signals_end_a_run_with_its_last_object() {
    let Some(space) = Space::new("signals_end_a_run_with_its_last_object") else { return };
    for (method, signal) in [("kernel", libc::SIGINT), ("kernel", libc::SIGTERM), ("socket", libc::SIGINT)] {
        let arguments = format!("-i wltx --method {method} --rate 1000 --interval 0.1 --json");
        let mut child = space.wirelane(&arguments).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // On a busy machine the first interval may end before the first packet.
        loop {
            let interval: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
            if interval["offered"].as_u64().unwrap() > 0 {
                break;
            }
        }
        // `ip netns exec` replaces itself by the command, so this is wirelane's own process.
        // SAFETY: no memory is passed; the process is our child and has not been waited for.
        unsafe { libc::kill(child.id() as libc::pid_t, signal) };
        let start = Instant::now();
        let last: Value = serde_json::from_str(&lines.map(Result::unwrap).last().unwrap()).unwrap();
        assert!(child.wait().unwrap().success());
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
        assert_eq!(last["final"], true);
        assert!(last["offered"].as_u64().unwrap() > 0);
    }
}

#[test]
fn a_rate_out_of_reach_is_said() {
    let Some(space) = Space::new("a_rate_out_of_reach_is_said") else { return };
    let output = space.wirelane("-i wltx --method socket --rate 500M --duration 0.3").output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("fell short   500,000,000 packets/s were asked for"), "{text}");
}

#[test]
fn wrong_usage_exits_with_2_and_other_errors_with_1() {
    let Some(space) = Space::new("wrong_usage_exits_with_2_and_other_errors_with_1") else { return };
    let cases = [
        ("-i wltx --rate fast", 2, "fast"),
        ("-i wltx --src-mac 1:2:3", 2, "1:2:3"),
        ("-i wltx --speed 2x", 2, "--replay"),
        ("-i wltx --replay file.pcap --rate 5 --speed 2x", 2, "cannot be used with"),
        ("-i eth99 --packets 1", 1, "eth99"),
        ("-i wltx --size 59 --packets 1", 2, "60"),
        ("-i wltx --proto tcp --size 60 --packets 1", 2, "66"),
        ("-i wltx --size 3400 --packets 1", 2, "1514"),
        ("-i wltx --replay /no/such/file.pcap", 1, "/no/such/file.pcap"),
    ];
    for (arguments, status, message) in cases {
        let output = space.wirelane(arguments).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(status), "{arguments}: {errors}");
        assert!(errors.contains(message), "{arguments}: {errors}");
        assert!(output.stdout.is_empty(), "{arguments}");
    }
}
