//! 10,000 clients at a time that ask slowly or not at all, of the metrics and of the control socket: the server keeps as
//! many connections as documented and closes the others, the capture does not lose packets, the process does not grow,
//! and other clients are answered meanwhile.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use wirelane_tests::numbers::{LIMIT, capture, column, finish, send};
use wirelane_tests::slow_clients::{allow_descriptors, crowd, settled};
use wirelane_tests::{Child, Lab, open_descriptors, require_root, resident_bytes};

const CLIENTS: usize = 10_000;
/// Connections that the control socket and the metrics endpoint keep.
const CONTROL: usize = 16;
const METRICS: usize = 64;
const PACKETS: u64 = 50_000;

/// Resident memory in bytes, and open descriptors, of a process.
fn state(child: &Child) -> (u64, usize) {
    (resident_bytes(child.pid()).unwrap(), open_descriptors(child.pid()).unwrap())
}

/// Runs `attack` while packets arrive, with [`CLIENTS`] connections that it returns, of which the server keeps at most
/// `most`; the capture counts all packets, and does not grow by more than these connections take.
fn attacked<T: AsFd + Send>(
    lab: &Lab,
    child: Child,
    most: usize,
    attack: impl FnOnce() -> Vec<T> + Send,
    ask: impl Fn(),
) {
    allow_descriptors(2 * CLIENTS as u64);
    ask();
    let before = state(&child);
    let clients = std::thread::scope(|scope| {
        let attack = scope.spawn(attack);
        while !attack.is_finished() {
            send(lab, PACKETS / 50, &["--rate", "20k"]).unwrap();
        }
        attack.join().unwrap()
    });
    assert_eq!(clients.len(), CLIENTS);
    let open = settled(&clients, most);
    let after = state(&child);
    // A new client is answered beside those that are still connected.
    ask();
    println!(
        "{open} of {CLIENTS} connections are open; resident {} and {} KiB, descriptors {} and {}",
        before.0 >> 10,
        after.0 >> 10,
        before.1,
        after.1
    );
    assert!(after.0 < before.0 + (8 << 20), "it grew from {} to {} bytes", before.0, after.0);
    assert!(after.1 <= before.1 + most, "{} descriptors, {} before", after.1, before.1);
    drop(clients);
    let last = finish(child).unwrap();
    assert_eq!(column(&last, "lost"), 0, "{last}");
    assert_eq!(column(&last, "seen"), column(&last, "analysed"), "{last}");
}

/// Battery: S8
#[test]
fn slow_clients_of_the_metrics_stop_nothing() {
    if !require_root("slow_clients_of_the_metrics_stop_nothing") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let namespace = lab.receiver().namespace.clone();
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 9464));
    let words = ["http", "-i", &lab.receiver().device, "--json", "--quiet", "--metrics", "127.0.0.1:9464"];
    let child = capture(&lab, &words).unwrap();
    let attack = || {
        lab.enter(&namespace, || {
            // Silent clients, incomplete requests, and clients that never read.
            let said =
                ["", "GET /metr", "GET /metrics HTTP/1.1\r\nHost: h\r\n", "GET /metrics HTTP/1.1\r\n\r\n"];
            let client = |number: usize| {
                let mut client = TcpStream::connect_timeout(&address, LIMIT).unwrap();
                // The server may have closed the connection already.
                let _ = client.write_all(said[number % said.len()].as_bytes());
                client
            };
            crowd(CLIENTS, client)
        })
        .unwrap()
    };
    let ask = || {
        lab.enter(&namespace, || {
            let until = Instant::now() + LIMIT;
            loop {
                let answer = || -> std::io::Result<String> {
                    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
                    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
                    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")?;
                    let mut text = String::new();
                    stream.read_to_string(&mut text)?;
                    Ok(text)
                };
                match answer() {
                    Ok(text) if text.contains("wirelane_packets_total") => return,
                    other => assert!(Instant::now() < until, "no answer: {other:?}"),
                }
            }
        })
        .unwrap();
    };
    attacked(&lab, child, METRICS, attack, ask);
}

/// Battery: S8
#[test]
fn slow_clients_of_the_control_socket_stop_nothing() {
    if !require_root("slow_clients_of_the_control_socket_stop_nothing") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let rules = folder.path().join("rules.toml");
    std::fs::write(&rules, "[[rule]]\nid = 1\nprotocol = \"tcp\"\naction = \"pass\"\n").unwrap();
    let words = ["count", "-i", &lab.receiver().device, "--json", "--rules", rules.to_str().unwrap()];
    let child = capture(&lab, &words).unwrap();
    let pid = child.pid().to_string();
    let socket = control_socket(&pid);
    let attack = move || {
        let client = |number: usize| {
            // Waits while the queue of the socket is full.
            let client = UnixStream::connect(&socket).unwrap();
            client.set_nonblocking(true).unwrap();
            let said = ["", "{\"ver", "[[[[[[[[", "\u{ff}\n"][number % 4].as_bytes();
            let _ = (&client).write_all(said);
            client
        };
        crowd(CLIENTS, client)
    };
    let ask = || {
        let until = Instant::now() + LIMIT;
        loop {
            let binary = wirelane_tests::wirelane_binary().unwrap();
            let words = [binary.to_str().unwrap(), "rules", "list", "-i", &lab.receiver().device];
            match lab.exec(&lab.receiver().namespace, &words) {
                Ok(text) => return assert!(text.contains('1'), "{text}"),
                Err(error) => assert!(Instant::now() < until, "{error:#}"),
            }
        }
    };
    attacked(&lab, child, CONTROL, attack, ask);
}

/// The control socket of a process, which only its user and root can connect to.
fn control_socket(pid: &str) -> PathBuf {
    use std::os::unix::fs::PermissionsExt as _;
    let entries = std::fs::read_dir("/run/wirelane").unwrap().map(|entry| entry.unwrap().path());
    let socket = entries
        .into_iter()
        .find(|path| path.file_name().unwrap().to_string_lossy().starts_with(&format!("{pid}.")));
    let socket = socket.unwrap_or_else(|| panic!("no socket of {pid}"));
    let mode = std::fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o077, 0, "{}: {mode:o}", socket.display());
    socket
}
