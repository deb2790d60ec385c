//! Scripts of Python, by which other programs' libraries judge ours.

use std::io::Write as _;
use std::process::{Command, Stdio};

/// Standard output of a script that reads this text.
///
/// # Panics
/// If the script fails.
pub fn fed(python: &str, script: &str, text: &str) -> String {
    let mut command = Command::new(python);
    command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}\n{text}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The first of these interpreters that has a module.
pub fn with_module<'p>(pythons: &[&'p str], module: &str) -> Option<&'p str> {
    let has_it = |python: &&&'p str| {
        let output = Command::new(python).args(["-c", &format!("import {module}")]).output();
        output.is_ok_and(|output| output.status.success())
    };
    pythons.iter().find(has_it).copied()
}
