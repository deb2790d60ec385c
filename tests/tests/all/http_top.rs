//! `wirelane http --top` on a terminal, with requests that a server of the test answers.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;

use wirelane_tests::numbers::LIMIT;
use wirelane_tests::terminal::Terminal;
use wirelane_tests::{Lab, require_root};

/// Sends a request for each path, each on a connection of its own, which the lab's receiver answers with the status
/// that the path begins with, and with a body of 100 bytes.
pub fn ask(lab: &Lab, paths: &[&str]) {
    let (asks, answers) = (lab.sender(), lab.receiver());
    let bind = || TcpListener::bind(SocketAddr::new(answers.address.into(), 0));
    let listener = lab.enter(&answers.namespace, bind).unwrap().unwrap();
    let to = listener.local_addr().unwrap();
    let number = paths.len();
    let server = std::thread::spawn(move || {
        for stream in listener.incoming().take(number) {
            let mut stream = stream.unwrap();
            stream.set_read_timeout(Some(LIMIT)).unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                head.push(byte[0]);
            }
            let status = String::from_utf8_lossy(&head[5..8]).into_owned();
            let answer = format!(
                "HTTP/1.1 {status} Text\r\nContent-Length: 100\r\nConnection: close\r\n\r\n{:100}",
                ""
            );
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    for path in paths {
        let request = format!("GET /{path} HTTP/1.1\r\nHost: www.example\r\n\r\n");
        let talk = || {
            let mut stream = TcpStream::connect(to)?;
            stream.set_read_timeout(Some(LIMIT))?;
            stream.write_all(request.as_bytes())?;
            stream.read_to_end(&mut Vec::new())
        };
        assert!(lab.enter(&asks.namespace, talk).unwrap().unwrap() > 100);
    }
    server.join().unwrap();
}

fn terminal(lab: &Lab) -> Terminal {
    let device = lab.receiver().device.as_str();
    let words = ["http", "-i", device, "--top", "--direction", "both", "--interval", "0.2"];
    let terminal = Terminal::start(lab, 80, 24, &words);
    terminal.until_text(&format!("wirelane http  {device}  engine ring"));
    terminal
}

/// Numbers of the row that begins with this name.
fn numbers(rows: &[String], name: &str) -> Vec<String> {
    let row = rows.iter().find(|row| row.split_whitespace().next() == Some(name));
    row.map_or_else(Vec::new, |row| row.split_whitespace().skip(1).take(3).map(str::to_owned).collect())
}

#[test]
fn transactions_are_on_the_screen_of_http_one_by_one_and_in_sums() {
    if !require_root("transactions_are_on_the_screen_of_http_one_by_one_and_in_sums") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let mut terminal = terminal(&lab);
    terminal.until_text("0 transactions");
    ask(&lab, &["200/a?1", "200/a?2", "404/b", "500/c"]);
    for (columns, rows) in [(80, 24), (160, 50)] {
        terminal.resize(columns, rows);
        terminal.until_text("4 transactions (");
        terminal.until("the latest first", |rows| {
            let urls = rows.iter().filter_map(|row| row.split_once(" www.example/").map(|(_, path)| path));
            urls.collect::<Vec<_>>() == ["500/c", "404/b", "200/a?2", "200/a?1"]
        });
        println!("{}", terminal.rows().join("\n"));
    }
    terminal.until_text("2 failed, 400 bytes");
    let client = lab.sender().address.to_string();
    for (key, name, expected) in [
        ("h", "www.example", ["4", "2", "400"]),
        ("u", "www.example/200/a", ["2", "0", "200"]),
        ("c", client.as_str(), ["4", "2", "400"]),
        ("r", "404", ["1", "1", "100"]),
    ] {
        terminal.type_in(key);
        terminal.until(name, |rows| numbers(rows, name) == expected);
        println!("{}", terminal.rows().join("\n"));
    }
    // No size of the terminal ends the capture.
    for (columns, rows) in [(1, 1), (2, 40), (300, 2), (80, 24)] {
        terminal.resize(columns, rows);
        std::thread::sleep(std::time::Duration::from_millis(300));
    }
    terminal.type_in("t/404");
    terminal.until("one transaction", |rows| {
        rows.iter().filter(|row| row.contains(" www.example/")).count() == 1
    });
    terminal.type_in("\u{1b}q");
    let (status, rows) = terminal.ended();
    let text = rows.join("\n");
    assert!(status.success() && text.contains("the ledger balances"), "{status} {text}");
    assert!(text.contains("4 transactions in 4 connections"), "{text}");
}

#[test]
fn a_signal_ends_the_screen_of_http() {
    if !require_root("a_signal_ends_the_screen_of_http") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let terminal = terminal(&lab);
    ask(&lab, &["200/a"]);
    terminal.until_text("1 transaction (");
    let pid = terminal.pid().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    let (status, rows) = terminal.ended();
    let text = rows.join("\n");
    assert!(status.success() && text.contains("1 transaction in 1 connection"), "{status} {text}");
}
