//! 10,000 clients that ask slowly or not at all, of the metrics and of the control socket: the capture does not lose
//! packets, the process does not grow, and later clients are answered.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use wirelane_tests::numbers::{LIMIT, capture, column, finish, send};
use wirelane_tests::{Child, Lab, open_descriptors, require_root, resident_bytes};

const CLIENTS: usize = 10_000;
/// Clients that are connected at a time: as many as a user's limit of descriptors allows on one host.
const AT_A_TIME: usize = 500;
const PACKETS: u64 = 50_000;

/// Resident memory in bytes, and open descriptors, of a process.
fn state(child: &Child) -> (u64, usize) {
    (resident_bytes(child.pid()).unwrap(), open_descriptors(child.pid()).unwrap())
}

/// Runs `attack` while packets arrive; the capture counts them all, and does not grow by more than some connections
/// take.
fn attacked(lab: &Lab, child: Child, attack: impl FnOnce() + Send, ask: impl Fn()) {
    ask();
    let before = state(&child);
    std::thread::scope(|scope| {
        let attack = scope.spawn(attack);
        while !attack.is_finished() {
            send(lab, PACKETS / 50, &["--rate", "20k"]).unwrap();
        }
        attack.join().unwrap();
    });
    let after = state(&child);
    // A new client is answered.
    ask();
    println!(
        "resident {} and {} KiB, descriptors {} and {}",
        before.0 >> 10,
        after.0 >> 10,
        before.1,
        after.1
    );
    assert!(after.0 < before.0 + (8 << 20), "it grew from {} to {} bytes", before.0, after.0);
    assert!(after.1 < before.1 + 150, "{} descriptors, {} before", after.1, before.1);
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
            let mut clients = Vec::new();
            for number in 0..CLIENTS {
                // A client that is not accepted gives up, and its slot in the queue stays.
                if let Ok(mut client) = TcpStream::connect_timeout(&address, Duration::from_millis(2)) {
                    // Silent clients, incomplete requests, and clients that never read.
                    let said = [
                        "",
                        "GET /metr",
                        "GET /metrics HTTP/1.1\r\nHost: h\r\n",
                        "GET /metrics HTTP/1.1\r\n\r\n",
                    ][number % 4]
                        .as_bytes();
                    let _ = client.write_all(said);
                    clients.push(client);
                }
                if clients.len() == AT_A_TIME {
                    clients.drain(..AT_A_TIME / 2);
                }
            }
        })
        .unwrap();
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
    attacked(&lab, child, attack, ask);
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
        let mut clients = Vec::new();
        let begun = Instant::now();
        for number in 0..CLIENTS {
            let client = match UnixStream::connect(&socket) {
                Ok(client) => client,
                // The queue is full, or the server does not accept more data.
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionRefused) =>
                {
                    continue;
                }
                Err(error) => panic!("{error}"),
            };
            client.set_nonblocking(true).unwrap();
            let said = ["", "{\"ver", "[[[[[[[[", "\u{ff}\n"][number % 4].as_bytes();
            let _ = (&client).write_all(said);
            clients.push(client);
            if clients.len() == AT_A_TIME {
                clients.drain(..AT_A_TIME / 2);
            }
            assert!(begun.elapsed() < LIMIT, "{number} clients took {:?}", begun.elapsed());
        }
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
    attacked(&lab, child, attack, ask);
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
