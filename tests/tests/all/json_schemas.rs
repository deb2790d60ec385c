//! The JSON schemas in `docs/reference/schemas` describe each line that commands print with `--json`, with all keys.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use wirelane_tests::numbers::{LIMIT, capture, send};
use wirelane_tests::{Capture, Child, Lab, corpus, repository, require_root, wirelane_binary};

/// The commands that have a schema.
const COMMANDS: [&str; 7] = ["count", "packets", "record", "flows", "http", "voip", "receive"];

/// The schema of a command.
pub fn schema(command: &str) -> Value {
    let path = repository().join("docs/reference/schemas").join(command).with_extension("json");
    serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap()
}

/// Checks whether a value is what a schema says, by the keywords that our schemas use; another keyword is an error.
pub fn check(schema: &Value, value: &Value, at: &str) -> Result<(), String> {
    for (keyword, says) in schema.as_object().ok_or("a schema is an object")? {
        match keyword.as_str() {
            "$schema" | "title" => {}
            "anyOf" => branch(says, value, at)?,
            "type" => {
                let named = |kind: &Value| kind.as_str().is_some_and(|kind| is(kind, value));
                let fits = says.as_array().map_or_else(|| named(says), |kinds| kinds.iter().any(named));
                expect(fits, || format!("{at}: {value} is not of type {says}"))?;
            }
            "enum" => {
                let fits = says.as_array().is_some_and(|words| words.contains(value));
                expect(fits, || format!("{at}: {value} is none of {says}"))?;
            }
            "required" => {
                for key in says.as_array().into_iter().flatten().filter_map(Value::as_str) {
                    expect(value.get(key).is_some(), || format!("{at}: {key} is missing"))?;
                }
            }
            "properties" => {
                for (key, one) in value.as_object().into_iter().flatten() {
                    says.get(key).map_or(Ok(()), |schema| check(schema, one, &format!("{at}.{key}")))?;
                }
            }
            "additionalProperties" => {
                let known = |key: &str| schema["properties"].get(key).is_some();
                let other = value.as_object().into_iter().flatten().find(|(key, _)| !known(key));
                expect(says == true || other.is_none(), || format!("{at}: unknown key {other:?}"))?;
            }
            "items" => {
                for (number, one) in value.as_array().into_iter().flatten().enumerate() {
                    check(says, one, &format!("{at}[{number}]"))?;
                }
            }
            other => return Err(format!("keyword {other} at {at}")),
        }
    }
    Ok(())
}

/// The first required key of a branch names the kind of a line.
fn branch(branches: &Value, value: &Value, at: &str) -> Result<(), String> {
    let kind = |branch: &&Value| branch["required"][0].as_str().is_some_and(|key| value.get(key).is_some());
    let found = branches.as_array().and_then(|branches| branches.iter().find(kind));
    check(found.ok_or_else(|| format!("{at}: no schema has such a line: {value}"))?, value, at)
}

fn expect(fits: bool, fault: impl Fn() -> String) -> Result<(), String> {
    if fits { Ok(()) } else { Err(fault()) }
}

fn is(kind: &str, value: &Value) -> bool {
    match kind {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => false,
    }
}

/// Checks all lines of a command; returns the kinds of lines.
pub fn check_all(command: &str, lines: &[Value]) -> Vec<String> {
    let schema = schema(command);
    let mut kinds = Vec::new();
    for line in lines {
        if let Err(fault) = check(&schema, line, command) {
            panic!("{fault}: {line}");
        }
        let branches = schema["anyOf"].as_array().unwrap();
        let keys = branches.iter().filter_map(|branch| branch["required"][0].as_str());
        kinds.extend(keys.filter(|key| line.get(key).is_some()).map(str::to_owned));
    }
    kinds.sort();
    kinds.dedup();
    kinds
}

/// Lines of a command in a folder; it must succeed.
pub fn lines(folder: &Path, words: &[&str]) -> Vec<Value> {
    let mut command = Command::new(wirelane_binary().unwrap());
    let child = Child::spawn(command.args(words).arg("--json").current_dir(folder)).unwrap();
    let done = child.finish(LIMIT).unwrap();
    assert!(done.status.success(), "{words:?}: {}", done.stderr);
    done.json().unwrap()
}

#[test]
fn lines_of_files_are_what_the_schemas_say() {
    let Some(corpus) = corpus("lines_of_files_are_what_the_schemas_say") else { return };
    let folder = tempfile::tempdir().unwrap();
    let parts = folder.path().join("parts");
    fs::create_dir(&parts).unwrap();
    for capture in Capture::all(&corpus).unwrap() {
        let file = parts.join(format!("{}.pcap", capture.id));
        fs::write(&file, capture.bytes().unwrap()).unwrap();
        let whole = || Command::new("capinfos").arg("-c").arg(&file).output().unwrap();
        // Damaged files are for other tests.
        if ["malformed", "load", "fileformat"].contains(&capture.category.as_str())
            || !whole().status.success()
        {
            fs::remove_file(&file).unwrap();
        }
    }
    let options: [(&str, &[&str], &[&str]); 9] = [
        ("count", &[], &["final", "ready"]),
        ("packets", &["-v", "-e"], &["final", "ready", "record"]),
        ("packets", &["--inner"], &["final", "ready", "record"]),
        ("record", &["-w", "out.pcapng", "--overwrite"], &["final", "ready"]),
        ("flows", &[], &["final", "flow", "ready"]),
        ("flows", &["--biflow", "--inner", "--export", "file:x.ipfix"], &["final", "flow", "ready"]),
        ("http", &["--fields", "server"], &["final", "ready", "transaction"]),
        ("receive", &["--expect", "3=5"], &["final", "ready"]),
        ("voip", &["--heuristic"], &["call", "final", "ready", "stream"]),
    ];
    for (command, options, kinds) in options {
        let lines = lines(folder.path(), &[&[command, "-r", "parts"], options].concat());
        assert_eq!(check_all(command, &lines), kinds, "{command} {options:?}");
    }
}

#[test]
fn lines_of_captures_are_what_the_schemas_say() {
    if !require_root("lines_of_captures_are_what_the_schemas_say") {
        return;
    }
    let lab = Lab::new(2).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("out.pcapng");
    for command in COMMANDS {
        let write = ["-w", file.to_str().unwrap()];
        let write = if command == "record" { &write[..] } else { &[] };
        let device = lab.receiver().device.as_str();
        let words = [&[command, "-i", device, "--json", "--interval", "200ms"], write].concat();
        // The first line is read by `capture`.
        let child = capture(&lab, &words).unwrap();
        send(&lab, 200, &["--flows", "4", "--timestamps"]).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(500));
        let done = child.terminate(LIMIT).unwrap();
        assert!(done.status.success(), "{command}: {}", done.stderr);
        let kinds = check_all(command, &done.json().unwrap());
        assert!(kinds.contains(&"final".to_owned()), "{command}: {kinds:?}");
    }
}

#[test]
fn another_line_is_refused() {
    let schema = schema("packets");
    let line = |text: &str| check(&schema, &serde_json::from_str(text).unwrap(), "line");
    let good = r#"{"ready":true,"engine":"file","devices":[]}"#;
    assert_eq!(line(good), Ok(()));
    for (text, fault) in [
        (r#"{"ready":true,"engine":"file"}"#, "devices is missing"),
        (r#"{"ready":true,"engine":7,"devices":[]}"#, "7 is not of type \"string\""),
        (r#"{"ready":true,"engine":"file","devices":[],"more":1}"#, "unknown key"),
        (r#"{"ready":false,"engine":"file","devices":[]}"#, "false is none of [true]"),
        (r#"{"other":true}"#, "no schema has such a line"),
    ] {
        assert!(line(text).is_err_and(|error| error.contains(fault)), "{text}");
    }
}
