//! Live metrics for Prometheus.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use wirelane_tests::calls::{Scene, message};
use wirelane_tests::numbers::{LIMIT, capture, column, last_of, wirelane};
use wirelane_tests::python::{fed, with_module};
use wirelane_tests::{Lab, require_root, wirelane_binary};

use super::scenes::{ALICE, BOB, INVITE, answered, by_tcp, head_of, web};

/// Response of a port on the loopback address of the receiver's namespace.
fn scrape(lab: &Lab, port: u16, request: &str) -> String {
    let read = || {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    };
    lab.enter(&lab.receiver().namespace, read).unwrap()
}

/// Samples, parsed by Prometheus's own Python library: names with labels, and their values.
fn samples(text: &str) -> Option<BTreeMap<String, f64>> {
    const SCRIPT: &str = "import sys\nfrom prometheus_client.openmetrics.parser import text_string_to_metric_families\n\
        for family in text_string_to_metric_families(sys.stdin.read()):\n  for s in family.samples:\n    \
        print(s.name + ''.join(',%s=%s' % label for label in sorted(s.labels.items())), s.value)";
    // A Python that comes before the system's on the PATH does not find the system's packages.
    let pythons = ["/usr/bin/python3", "python3"];
    let Some(python) = with_module(&pythons, "prometheus_client.openmetrics.parser") else {
        println!("left out: what Prometheus's parser reads (no python3-prometheus-client: scripts/setup)");
        return None;
    };
    let text = fed(python, SCRIPT, text);
    let sample = |line: &str| {
        let (name, value) = line.rsplit_once(' ').unwrap();
        (name.to_owned(), value.parse().unwrap())
    };
    Some(text.lines().map(sample).collect())
}

/// Battery: I10
#[test]
fn prometheus_reads_what_was_counted() {
    if !require_root("prometheus_reads_what_was_counted") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let device = lab.receiver().device.clone();
    let words = |command, port| {
        [command, "-i", &device, "--json", "--metrics", port, "--interval", "0.2"].map(str::to_owned).to_vec()
    };
    let start = |words: Vec<String>| {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        capture(&lab, &words).unwrap()
    };
    let calls = [words("voip", "127.0.0.1:9464"), vec!["--linger".into(), "1".into()]].concat();
    let (voip, http) = (start(calls), start(words("http", "127.0.0.1:9465")));
    const GET: &str = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
    let before = scrape(&lab, 9464, GET);
    assert!(
        before.starts_with("HTTP/1.1 200 OK\r\n") && before.contains("application/openmetrics-text"),
        "{before}"
    );
    assert!(scrape(&lab, 9464, "GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
    assert!(scrape(&lab, 9464, "POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 "));
    let head = scrape(&lab, 9464, "HEAD /metrics HTTP/1.1\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 ") && head.ends_with("\r\n\r\n"), "{head}");

    let mut scene = Scene::new();
    answered(&mut scene);
    by_tcp(&mut scene);
    let going_on = message(INVITE, &head_of("Call-ID: on@example.com"), "");
    scene.udp(12_000_000, ALICE, BOB, &going_on);
    let packets = scene.len() as u64;
    let file = folder.path().join("calls.pcap");
    scene.write(&file).unwrap();
    let web = web(folder.path());
    for file in [&file, &web] {
        let replayed =
            ["send", "-i", &lab.sender().device, "--json", "--speed", "max", "-r", file.to_str().unwrap()];
        last_of(&wirelane(&lab, &lab.sender().namespace, &replayed).unwrap().finish(LIMIT).unwrap()).unwrap();
    }
    let text = |port| {
        let answer = scrape(&lab, port, GET);
        answer.split_once("\r\n\r\n").unwrap().1.to_owned()
    };
    // The calls linger for a second, and the ledger is updated at intervals.
    let end = Instant::now() + LIMIT;
    let seen = packets + 7;
    while !text(9464).contains("wirelane_voip_calls_total{state=\"completed\"} 1")
        || !text(9465).contains(&format!("wirelane_packets_total{{column=\"seen\"}} {seen}"))
    {
        assert!(Instant::now() < end, "{}\n{}", text(9464), text(9465));
        std::thread::sleep(Duration::from_millis(100));
    }
    std::thread::sleep(Duration::from_millis(500));
    let (calls, transactions) = (text(9464), text(9465));
    let (voip, http) = (voip.terminate(LIMIT).unwrap(), http.terminate(LIMIT).unwrap());
    let (voip, http) = (last_of(&voip).unwrap(), last_of(&http).unwrap());
    let (Some(calls), Some(transactions)) = (samples(&calls), samples(&transactions)) else { return };
    for (samples, last) in [(&calls, &voip), (&transactions, &http)] {
        for name in ["seen", "filtered", "absorbed", "shed", "lost", "delivered", "analysed"] {
            assert_eq!(
                samples[&format!("wirelane_packets_total,column={name}")],
                column(last, name) as f64,
                "{name}"
            );
        }
        assert_eq!(samples["wirelane_bytes_total"], column(last, "bytes") as f64);
    }
    for (name, value) in [
        ("calls_active", 1.0),
        ("calls_total,state=completed", 1.0),
        ("calls_total,state=failed", 1.0),
        ("calls_total,state=canceled", 1.0),
        ("calls_total,state=answered", 0.0),
        ("calls_answered_total", 1.0),
        ("calls_failed_total,class=4xx", 1.0),
        ("calls_failed_total,class=5xx", 0.0),
        ("post_dial_delay_seconds_count", 3.0),
        ("stream_mos_count", 2.0),
        ("stream_jitter_seconds_count", 2.0),
        ("stream_loss_ratio_bucket,le=0.0", 1.0),
        ("stream_loss_ratio_bucket,le=0.02", 2.0),
        ("streams_total,call=yes", 2.0),
        ("streams_total,call=no", 0.0),
        ("rtp_packets_total,count=packets", 990.0),
        ("rtp_packets_total,count=expected", 1000.0),
        ("rtp_packets_total,count=lost", 10.0),
    ] {
        assert_eq!(calls.get(&format!("wirelane_voip_{name}")), Some(&value), "{name} {calls:?}");
    }
    for (name, value) in [
        ("transactions_total,class=2xx,method=GET", 1.0),
        ("transactions_total,class=4xx,method=POST", 1.0),
        // Two more conversations are still open: an unknown method is not accepted where a connection is seen from its
        // middle, so its response may still belong to a request; and the request without a response may still be
        // answered.
        ("duration_seconds_count", 2.0),
        ("first_byte_seconds_count", 2.0),
        ("response_body_bytes_total", 9.0),
        ("missing_bytes_total", 0.0),
    ] {
        assert_eq!(
            transactions.get(&format!("wirelane_http_{name}")),
            Some(&value),
            "{name} {transactions:?}"
        );
    }
    let counted = transactions.keys().filter(|name| name.starts_with("wirelane_http_transactions_total"));
    assert_eq!(counted.count(), 2);

    for (words, message) in [
        (&["--metrics", "0.0.0.0:9464", "-i", "lo"][..], "other hosts could read it"),
        (&["--metrics", "127.0.0.1:9464", "-r", "x"], "cannot be used with"),
    ] {
        let output = Command::new(wirelane_binary().unwrap()).arg("voip").args(words).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && error.contains(message), "{error}");
    }
}
