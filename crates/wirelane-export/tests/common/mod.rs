//! Helpers for tests of writers: other programs as readers.

use std::io::Write;
use std::process::{Command, Stdio};

/// Runs a reader with a capture on its standard input and returns its standard output; `None`, with a message, if the
/// program is not installed.
pub fn ask(program: &str, arguments: &[&str], capture: &[u8]) -> Option<String> {
    let spawned = Command::new(program)
        .args(arguments)
        .env("TZ", "UTC")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut child) = spawned else {
        println!("left out: reading with {program} (not installed)");
        return None;
    };
    let mut stdin = child.stdin.take().expect("it is piped");
    let capture = capture.to_vec();
    let feeder = std::thread::spawn(move || stdin.write_all(&capture));
    let output = child.wait_with_output().expect("the reader ends");
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    feeder.join().expect("the feeder ends").expect("the reader reads all of it");
    Some(String::from_utf8(output.stdout).expect("text"))
}
