//! Screens of which the terminal is closed: the command ends as at any other end, and its files are complete.

use std::fs::{self, File};
use std::net::UdpSocket;
use std::path::Path;

use wirelane_tests::numbers::send;
use wirelane_tests::terminal::Terminal;
use wirelane_tests::{Lab, require_root};

use crate::http_top::ask;

/// Status of a command whose results could not be printed.
const UNPRINTED: i32 = 1;

/// A request for a call, which nobody answers.
fn invite(lab: &Lab) {
    let (from, to) = (lab.sender(), lab.receiver());
    let message = format!(
        "INVITE sip:bob@{0} SIP/2.0\r\nVia: SIP/2.0/UDP {1}:5060;branch=z9hG4bK1\r\nFrom: <sip:alice@{1}>;tag=1\r\n\
         To: <sip:bob@{0}>\r\nCall-ID: one@test\r\nCSeq: 1 INVITE\r\nContent-Length: 0\r\n\r\n",
        to.address, from.address
    );
    let sends = || {
        let socket = UdpSocket::bind((from.address, 5060))?;
        socket.send_to(message.as_bytes(), (to.address, 5060))
    };
    assert_eq!(lab.enter(&from.namespace, sends).unwrap().unwrap(), message.len());
}

/// The input of a command, the text on its screen then, and the lines of its file at the end.
struct Case {
    words: Vec<String>,
    traffic: fn(&Lab),
    shown: &'static str,
    file: Option<(&'static str, usize)>,
}

fn cases(folder: &Path) -> Vec<Case> {
    let case = |words: &str, traffic, shown, file: Option<(&'static str, usize)>| {
        let place = |word: &str| word.replace("FOLDER", folder.to_str().unwrap());
        Case { words: words.split(' ').map(place).collect(), traffic, shown, file }
    };
    let packets = |lab: &Lab| {
        send(lab, 1000, &["--flows", "5"]).unwrap();
    };
    vec![
        case("count", packets, "analysed 1,000  in flight 0", None),
        case("flows --export file:FOLDER/flows.json", packets, "flows   5 now", Some(("flows.json", 5))),
        case(
            "http --direction both --log json:FOLDER/http.json",
            |lab| ask(lab, &["200/a", "404/b"]),
            "2 transactions (",
            Some(("http.json", 2)),
        ),
        case("voip --export file:FOLDER/calls.json", invite, "alice@", Some(("calls.json", 1))),
    ]
}

#[test]
fn a_closed_terminal_ends_a_screen_and_leaves_complete_files() {
    if !require_root("a_closed_terminal_ends_a_screen_and_leaves_complete_files") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    for errors_are_there in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        for Case { words, traffic, shown, file } in cases(folder.path()) {
            let errors = folder.path().join("errors");
            let device = lab.receiver().device.as_str();
            let mut line: Vec<&str> = words.iter().map(String::as_str).collect();
            line.extend(["--top", "-i", device, "--interval", "0.2"]);
            if !line.contains(&"--direction") {
                line.extend(["--direction", "rx", "udp"]);
            }
            let stderr = errors_are_there.then(|| File::create(&errors).unwrap());
            let terminal = Terminal::with_errors(&lab, (80, 24), &line, stderr);
            terminal.until_text(&format!("wirelane {}  {device}  engine ring", words[0]));
            traffic(&lab);
            terminal.until_text(shown);
            let status = terminal.hung_up();
            assert_eq!(status.code(), Some(UNPRINTED), "{line:?}: {status}");
            if errors_are_there {
                let text = fs::read_to_string(&errors).unwrap();
                println!("{line:?}: {text}");
                assert!(text.contains("\nwirelane: standard output: "), "{line:?}: {text}");
                assert!(!text.contains("panicked"), "{line:?}: {text}");
            }
            if let Some((file, lines)) = file {
                let text = fs::read_to_string(folder.path().join(file)).unwrap();
                assert_eq!(text.lines().count(), lines, "{line:?}: {text}");
                for line in text.lines() {
                    serde_json::from_str::<serde_json::Value>(line).unwrap();
                }
            }
        }
    }
}
