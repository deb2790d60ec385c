//! The same packets with `--analysis kernel` at the same time: the log equals that of `--analysis user` line by line.

use std::fs;
use std::path::Path;

use serde_json::Value;
use wirelane_tests::numbers::{capture, column};
use wirelane_tests::{Child, Lab};

/// Tolerance between the times of one packet in two processes: each measures its offset to UTC by itself.
const APART_S: f64 = 0.002;

/// A capture of both directions that parses message heads in the kernel.
pub fn start(lab: &Lab, log: &Path) -> Child {
    let device = lab.receiver().device.clone();
    let log = format!("json:{}", log.display());
    let words = ["http", "-i", &device, "--direction", "both", "--json", "--quiet", "--ring-size", "64"];
    let words = [&words[..], &["--analysis", "kernel", "--output-rate", "0", "--log", &log]].concat();
    capture(lab, &words).unwrap()
}

/// Each transaction as its fields without times, and its times: sorted by connection, then by order.
fn read(log: &Path) -> Vec<(Value, [f64; 4])> {
    let text = fs::read_to_string(log).unwrap();
    let seconds = |value: Option<Value>| {
        value.and_then(|value| value.as_str().map(|text| text.parse::<f64>().unwrap())).unwrap_or(-1.0)
    };
    let mut all: Vec<(Value, [f64; 4])> = text
        .lines()
        .map(|line| {
            let mut value: Value = serde_json::from_str(line).unwrap();
            let object = value.as_object_mut().unwrap();
            object.remove("transaction");
            let times =
                ["time", "request_s", "ttfb_s", "duration_s"].map(|name| seconds(object.remove(name)));
            (value, times)
        })
        .collect();
    let key = |value: &Value| {
        (value["client"].to_string(), value["client_port"].as_u64(), value["server_port"].as_u64())
    };
    all.sort_by(|(one, a), (other, b)| {
        // Ports are reused some time later.
        let second = |times: &[f64; 4]| times[0];
        let number = |value: &Value| value["number"].as_u64();
        key(one).cmp(&key(other)).then(second(a).total_cmp(&second(b))).then(number(one).cmp(&number(other)))
    });
    all
}

/// Both logs are the same, and delivered and offloaded packets add up to all packets.
pub fn assert_same(user: &Path, of_user: &Value, kernel: &Path, of_kernel: &Value) {
    let (user, kernel) = (read(user), read(kernel));
    for (user, kernel) in user.iter().zip(&kernel) {
        assert_eq!(kernel.0, user.0);
        for (one, other) in user.1.iter().zip(kernel.1) {
            assert!((one - other).abs() < APART_S, "{one} s and {other} s: {}", user.0);
        }
    }
    assert_eq!(kernel.len(), user.len());
    assert_eq!(column(of_kernel, "lost"), 0, "{of_kernel}");
    let (up, offloaded) = (column(of_kernel, "delivered"), column(of_kernel, "absorbed"));
    assert_eq!((up, column(of_kernel, "seen")), (column(of_kernel, "analysed"), up + offloaded));
    assert_eq!(column(of_kernel, "packets_offloaded"), offloaded);
    assert_eq!(up + offloaded, column(of_user, "analysed"), "they have seen the same packets");
    assert_eq!(column(of_kernel, "bytes") + column(of_kernel, "bytes_offloaded"), column(of_user, "bytes"));
    for name in ["transactions", "requests", "responses", "informational", "lost_bytes"] {
        assert_eq!(column(of_kernel, name), column(of_user, name), "{name}");
    }
    assert_eq!(of_kernel["marks"], of_user["marks"]);
    println!(
        "--analysis kernel: {} lines are the same; {up} of {} packets were delivered",
        user.len(),
        up + offloaded
    );
}
