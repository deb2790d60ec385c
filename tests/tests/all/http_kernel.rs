//! `wirelane http --analysis kernel`: sums that are always exact, and refusals. That it logs the same as `--analysis
//! user` is tested beside real servers (`http_servers`) and, for any order of packets, in `wirelane-analysis`.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use serde_json::Value;
use wirelane_tests::numbers::{LIMIT, capture, column, finish, send};
use wirelane_tests::{Child, Lab, LabOptions, Signal, maps_named, require_root, wirelane_binary};

fn http(lab: &Lab, options: &[&str]) -> Child {
    let words = ["http", "-i", &lab.receiver().device, "--json"];
    capture(lab, &[&words, options].concat()).unwrap()
}

/// Asserts that every packet is in one column of a last object.
fn assert_sums(last: &Value) {
    let sum = |names: &[&str]| names.iter().map(|name| column(last, name)).sum::<u64>();
    assert_eq!(column(last, "seen"), sum(&["filtered", "absorbed", "shed", "lost", "delivered"]), "{last}");
    assert_eq!(column(last, "absorbed"), column(last, "packets_offloaded"), "{last}");
    assert_eq!(column(&last["workers"][0], "absorbed"), column(last, "absorbed"), "{last}");
}

/// Packets other than HTTP are offloaded, except those of other captures on the device; and a killed process leaves
/// nothing behind.
#[test]
fn what_is_no_http_stays_below_and_a_killed_capture_leaves_nothing() {
    if !require_root("what_is_no_http_stays_below_and_a_killed_capture_leaves_nothing") {
        return;
    }
    let lab = Lab::with(&LabOptions { queues: 2, alone: true, ..LabOptions::default() }).unwrap();
    assert_eq!(maps_named("wl_http_way"), Default::default(), "nobody else looks at HTTP");
    let child = http(&lab, &["--analysis", "kernel", "--kernel-directions", "1024", "--quiet"]);
    let counter = capture(&lab, &["count", "-i", &lab.receiver().device, "--json"]).unwrap();
    send(&lab, 5000, &["--flows", "5000"]).unwrap();
    assert_eq!(maps_named("wl_http_way").len(), 2, "of received and of transmitted packets");
    assert_eq!(column(&finish(counter).unwrap(), "analysed"), 5000);
    let last = finish(child).unwrap();
    assert_sums(&last);
    assert_eq!((column(&last, "seen"), column(&last, "absorbed")), (5000, 5000));
    let child = http(&lab, &["--analysis", "kernel"]);
    child.signal(Signal::Kill).unwrap();
    child.finish(LIMIT).unwrap();
    let start = Instant::now();
    while !maps_named("wl_http_way").is_empty() {
        assert!(start.elapsed() < LIMIT, "a map is left behind");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Answers every request of one connection with so many bytes, while the client reads them.
fn serve(listener: &TcpListener, bytes: usize) {
    let (mut stream, _) = listener.accept().unwrap();
    let mut request = [0; 1000];
    while stream.read(&mut request).is_ok_and(|length| length > 0) {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {bytes}\r\n\r\n");
        let answer = [head.as_bytes(), &vec![b'b'; bytes]].concat();
        if stream.write_all(&answer).is_err() {
            return;
        }
    }
}

/// A capture that is stopped in the middle of a body logs the part that it has seen, including offloaded bytes.
/// Battery: I10
#[test]
fn what_is_not_whole_is_marked_and_the_sums_are_exact() {
    if !require_root("what_is_not_whole_is_marked_and_the_sums_are_exact") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let address = "10.77.0.2:8099".parse::<SocketAddr>().unwrap();
    let server = lab.receiver().namespace.clone();
    let listener = lab.enter(&server, || TcpListener::bind(address)).unwrap().unwrap();
    let ask = |stream: &mut TcpStream| stream.write_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    let connect = || lab.enter(&lab.sender().namespace, || TcpStream::connect(address)).unwrap().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| serve(&listener, 60_000_000));
        let both = ["--direction", "both", "--ring-size", "64"];
        let kernel = http(&lab, &[&both[..], &["--analysis", "kernel"]].concat());
        let user = http(&lab, &both);
        let mut stream = connect();
        ask(&mut stream);
        // The client reads a part of the body, and then no more.
        let mut some = vec![0; 1_000_000];
        stream.read_exact(&mut some).unwrap();
        std::thread::sleep(Duration::from_millis(700));
        let of = |child: Child| {
            let finished = child.terminate(LIMIT).unwrap();
            let objects = finished.json().unwrap();
            let found = objects.iter().find(|object| object.get("transaction").is_some()).cloned().unwrap();
            (found, objects.last().unwrap().clone())
        };
        let ((of_user, all), (of_kernel, last)) = (of(user), of(kernel));
        assert_sums(&last);
        // The server sends window probes until the second capture has ended too.
        assert!(column(&last, "seen") >= column(&all, "seen"), "{last}\n{all}");
        assert_eq!(of_kernel["marks"], serde_json::json!(["response_unfinished", "forced"]));
        for name in ["marks", "response_body", "response_bytes", "response_length", "response_missing"] {
            assert_eq!(of_kernel[name], of_user[name], "{name}");
        }
        assert!(column(&of_kernel, "response_body") >= 1_000_000);
        assert!(column(&last, "delivered") * 4 < column(&last, "seen"), "{last}");
        drop(stream);
    });
}

/// Incompatible options are refused with a hint, and nothing is captured.
#[test]
fn what_the_kernel_cannot_do_is_refused() {
    if !require_root("what_the_kernel_cannot_do_is_refused") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    for (words, message) in [
        (vec!["--packets", "5"], "use --duration"),
        (vec!["--engine", "packet"], "only --engine ring"),
        (vec!["--engine", "xsk", "--exclusive"], "only --engine ring"),
        (vec!["--clock", "card"], "use 'packet' or 'batch'"),
        (vec!["--kernel-directions", "1000"], "1000 is not in 1024..=4194304"),
    ] {
        let mut command = lab.command(&lab.receiver().namespace, wirelane_binary().unwrap());
        let command =
            command.args(["http", "-i", &lab.receiver().device, "--analysis", "kernel"]).args(&words);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{words:?}: {said}");
        assert!(said.contains(message), "{words:?}: {said}");
    }
}
