//! Signals and log rotation: the effect of SIGHUP, SIGUSR1 and SIGUSR2 on each command, and logrotate with logs and
//! exports.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use wirelane_tests::numbers::{LIMIT, capture, column, last_of, send};
use wirelane_tests::{Lab, LabOptions, Signal, require_root};

const PORT: u16 = 8080;

/// Makes so many connections with one HTTP request each.
fn talk(lab: &Lab, connections: usize) {
    let address = SocketAddr::from((lab.receiver().address, PORT));
    let (server, client) = (&lab.receiver().namespace, &lab.sender().namespace);
    let listener = lab.enter(server, || TcpListener::bind(address).unwrap()).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..connections {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = [0; 1024];
                let _ = stream.read(&mut request).unwrap();
                stream
                    .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
                    .unwrap();
            }
        });
        lab.enter(client, || {
            for number in 0..connections {
                let mut stream = TcpStream::connect(address).unwrap();
                // In one write: the server answers its first read.
                let request = format!("GET /{number} HTTP/1.1\r\nHost: h\r\n\r\n");
                stream.write_all(request.as_bytes()).unwrap();
                stream.read_to_end(&mut Vec::new()).unwrap();
            }
        })
        .unwrap();
    });
}

/// Each command without line output ends at SIGHUP, with its ledger and with status 0; other signals for rotation have
/// no effect.
#[test]
fn a_hangup_ends_commands_cleanly() {
    if !require_root("a_hangup_ends_commands_cleanly") {
        return;
    }
    let lab = Lab::with(&LabOptions::default()).unwrap();
    let device = &lab.receiver().device;
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("a.pcapng");
    let record = ["record", "-i", device, "--user", "root", "-w", recording.to_str().unwrap(), "--json"];
    for words in [
        &["count", "-i", device, "--json"][..],
        &record,
        &["flows", "-i", device, "--json"],
        &["http", "-i", device, "--json"],
        &["voip", "-i", device, "--json"],
    ] {
        let child = capture(&lab, words).unwrap();
        for signal in [Signal::User1, Signal::User2] {
            child.signal(signal).unwrap();
        }
        send(&lab, 100, &[]).unwrap();
        child.signal(Signal::HangUp).unwrap();
        let last = last_of(&child.finish(LIMIT).unwrap()).unwrap();
        assert_eq!((column(&last, "lost"), column(&last, "seen") >= 100), (0, true), "{words:?}: {last}");
    }
    let read = Command::new("tcpdump").args(["-nr"]).arg(&recording).output().unwrap();
    assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
    assert!(read.stdout.iter().filter(|byte| **byte == b'\n').count() >= 100);
}

/// A file and its rotated generations, oldest first.
fn generations(path: &Path) -> Vec<PathBuf> {
    let name = path.display();
    let older = (1..9).rev().map(|number| PathBuf::from(format!("{name}.{number}")));
    older.chain([path.to_owned()]).filter(|path| path.exists()).collect()
}

/// Waits until the lines of a file and its generations have so many flows, and these files have not changed for a
/// second: logrotate's copytruncate loses bytes written between its copy and its truncation.
fn wait_for_quiet(lines_of: &Path, flows: usize, files: &[&PathBuf]) {
    let deadline = Instant::now() + LIMIT;
    let sizes =
        || files.iter().map(|file| fs::metadata(file).map_or(0, |file| file.len())).collect::<Vec<_>>();
    let lines = || {
        let texts = generations(lines_of).into_iter().map(|file| fs::read_to_string(file).unwrap());
        texts.map(|text| text.lines().count()).sum::<usize>()
    };
    let (mut last, mut since) = (sizes(), Instant::now());
    while lines() < flows || since.elapsed() < Duration::from_millis(1500) {
        assert!(Instant::now() < deadline, "{} of {flows} flows", lines());
        std::thread::sleep(Duration::from_millis(100));
        let now = sizes();
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
}

fn rotate(how: &str, create: bool) {
    let lab = Lab::with(&LabOptions { queues: 2, ..LabOptions::default() }).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let [json, csv, ipfix, log] =
        ["f.json", "f.csv", "f.ipfix", "access.log"].map(|name| folder.path().join(name));
    let device = &lab.receiver().device;
    let exports = [&json, &csv, &ipfix].map(|path| format!("file:{}", path.display()));
    let mut words = vec!["flows", "-i", device, "--user", "root", "--json", "--inactive-timeout", "1"];
    exports.iter().for_each(|export| words.extend(["--export", export]));
    let flows = capture(&lab, &words).unwrap();
    let combined = format!("combined:{}", log.display());
    let http =
        capture(&lab, &["http", "-i", device, "--user", "root", "--json", "--log", &combined]).unwrap();
    let (configuration, state) = (folder.path().join("rotate.conf"), folder.path().join("state"));
    let files = [&json, &csv, &ipfix, &log].map(|path| path.display().to_string()).join(" ");
    let text = format!("{files} {{\n su root root\n rotate 9\n nocompress\n missingok\n {how}\n}}\n");
    fs::write(&configuration, text).unwrap();
    const ROUNDS: usize = 4;
    const CONNECTIONS: usize = 50;
    for round in 0..ROUNDS {
        talk(&lab, CONNECTIONS);
        if round + 1 == ROUNDS {
            break;
        }
        // IPFIX messages are sent after a second.
        wait_for_quiet(&json, 2 * CONNECTIONS * (round + 1), &[&json, &csv, &ipfix, &log]);
        let rotated =
            Command::new("logrotate").args(["-f", "-s"]).arg(&state).arg(&configuration).output().unwrap();
        assert!(rotated.status.success(), "{}", String::from_utf8_lossy(&rotated.stderr));
        if create {
            for child in [&flows, &http] {
                child.signal(Signal::HangUp).unwrap();
            }
        }
        // Until the names have been checked: earlier records may go into the renamed file.
        std::thread::sleep(Duration::from_millis(1500));
    }
    let (flows, http) = (flows.terminate(LIMIT).unwrap(), http.terminate(LIMIT).unwrap());
    let (flows, http) = (last_of(&flows).unwrap(), last_of(&http).unwrap());
    let all = column(&flows, "flows");
    assert!(all >= 2 * (ROUNDS * CONNECTIONS) as u64, "{flows}");
    for export in flows["exports"].as_array().unwrap() {
        assert_eq!((column(export, "flows"), column(export, "unsent_flows")), (all, 0), "{export}");
    }
    let (mut lines, mut rows) = (0, 0);
    // A name is checked each second: the last lines may be in the file that was renamed last.
    assert!(generations(&json).len() >= ROUNDS - 1);
    for file in generations(&json) {
        let text = fs::read_to_string(&file).unwrap();
        assert!(!text.is_empty(), "{}", file.display());
        let whole = |line: &&str| serde_json::from_str::<Value>(line).is_ok();
        assert!(text.lines().all(|line| whole(&line)), "{}", file.display());
        lines += text.lines().count();
    }
    for file in generations(&csv) {
        let text = fs::read_to_string(&file).unwrap();
        let header = text.lines().next().unwrap();
        assert!(header.contains("src"), "{}: {header}", file.display());
        let columns = header.split(',').count();
        assert!(text.lines().all(|line| line.split(',').count() == columns), "{}", file.display());
        rows += text.lines().count() - 1;
    }
    assert_eq!((lines as u64, rows as u64), (all, all));
    // Every IPFIX file has its templates: tshark reads all of its flows.
    let mut read = 0;
    for file in generations(&ipfix) {
        let output =
            Command::new("tshark").args(["-T", "fields", "-e", "cflow.srcport", "-r"]).arg(&file).output();
        let Ok(output) = output else { return println!("left out: IPFIX files (no tshark)") };
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let found = text.split([',', '\n']).filter(|port| !port.is_empty()).count();
        assert!(found > 0, "{}: {text}", file.display());
        read += found;
    }
    let with_ports = {
        let text: String = generations(&json).iter().map(|file| fs::read_to_string(file).unwrap()).collect();
        text.lines().filter(|line| line.contains("\"src_port\"")).count()
    };
    assert_eq!(read, with_ports);
    let served = (ROUNDS * CONNECTIONS) as u64;
    assert_eq!(
        (column(&http["logs"][0], "lines"), column(&http["logs"][0], "unwritten")),
        (served, 0),
        "{http}"
    );
    let mut requests = Vec::new();
    for file in generations(&log) {
        let text = fs::read_to_string(&file).unwrap();
        requests.extend(text.lines().map(|line| line.split('"').nth(1).unwrap().to_owned()));
    }
    let expected: Vec<String> =
        (0..ROUNDS).flat_map(|_| (0..CONNECTIONS).map(|number| format!("GET /{number} HTTP/1.1"))).collect();
    assert_eq!(requests, expected);
}

#[test]
fn logrotate_loses_no_line() {
    if !require_root("logrotate_loses_no_line") {
        return;
    }
    if Command::new("logrotate").arg("--version").output().is_err() {
        println!("left out: logrotate_loses_no_line (no logrotate: scripts/setup)");
        return;
    }
    // Without a signal, too: outputs check their file names each second.
    std::thread::scope(|scope| {
        for (how, create) in [("create 0600 root root", true), ("nocreate", false), ("copytruncate", false)] {
            scope.spawn(move || rotate(how, create));
        }
    });
}

/// A folder in which the user may not create files: lines go to the renamed file, and the program reports it.
#[test]
fn a_folder_without_rights_keeps_the_renamed_file() {
    if !require_root("a_folder_without_rights_keeps_the_renamed_file") {
        return;
    }
    let lab = Lab::with(&LabOptions::default()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("access.log");
    let combined = format!("json:{}", log.display());
    let words = ["http", "-i", &lab.receiver().device, "--user", "nobody", "--json", "--log", &combined];
    let child = capture(&lab, &words).unwrap();
    talk(&lab, 5);
    let renamed = folder.path().join("access.log.1");
    fs::rename(&log, &renamed).unwrap();
    child.signal(Signal::HangUp).unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    talk(&lab, 5);
    let finished = child.terminate(LIMIT).unwrap();
    assert!(finished.stderr.contains("the renamed file is written on"), "{}", finished.stderr);
    let last = last_of(&finished).unwrap();
    assert_eq!(column(&last["logs"][0], "lines"), 10, "{last}");
    assert_eq!(fs::read_to_string(&renamed).unwrap().lines().count(), 10);
    assert!(!log.exists());
}
