//! Checks tests/BATTERY.md: the tests that it names exist, and no row is empty.

use std::collections::BTreeSet;
use std::fs;

use wirelane_tests::repository;

/// The codes that concern the capture engine and the recorder.
const CODES: &str = "L1 L2 L3 L4 L5 L6 L9 L11 L12 F1 F2 F3 F4 F5 F6 F7 F8 F9 F10 I1 I2 I3 I4 I5 I6 I8 I9 I10 S1 S2 S3 S4 S5 S6 S8 S9 S10 S12";

/// Rows of its tables: code, claim, proof.
fn rows(text: &str) -> Vec<[String; 3]> {
    text.lines()
        .filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"))
        .map(|line| {
            let cells: Vec<String> = line.split(" | ").map(str::to_owned).collect();
            <[String; 3]>::try_from(cells).unwrap_or_else(|cells| panic!("not three cells: {cells:?}"))
        })
        .filter(|[code, ..]| code != "code" && code != "---")
        .collect()
}

/// Whether `source` has a function of this name that is marked as a test.
fn has_test(source: &str, name: &str) -> bool {
    let lines: Vec<&str> = source.lines().map(str::trim_start).collect();
    let head = format!("fn {name}(");
    lines.iter().enumerate().any(|(at, line)| {
        line.starts_with(&head)
            && lines[..at]
                .iter()
                .rev()
                .take_while(|line| line.starts_with('#') || line.starts_with("//"))
                .any(|line| *line == "#[test]")
    })
}

/// What is wrong with what a proof names: files that are not there, functions that are no tests.
fn faults(proof: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let mut tests = 0;
    // Between the first and the second backtick, the third and the fourth, and so on.
    for word in proof.split('`').skip(1).step_by(2) {
        let (file, test) = match word.split_once("::") {
            Some((file, test)) => (file, Some(test)),
            None if word.contains('/') => (word, None),
            None => continue, // a command, as in `make bench`
        };
        let path = if file.contains('/') {
            repository().join(file)
        } else {
            repository().join("tests/tests/all").join(file)
        };
        match (fs::read_to_string(&path), test) {
            (Err(error), _) => faults.push(format!("{}: {error}", path.display())),
            (Ok(source), Some(test)) if !has_test(&source, test) => {
                faults.push(format!("{} has no test {test}", path.display()));
            }
            (Ok(_), _) => tests += 1,
        }
    }
    // What is measured or booted has a command of its own.
    if faults.is_empty() && tests == 0 && !["`make ", "not yet: "].iter().any(|word| proof.contains(word)) {
        faults.push(format!("neither a test nor a reason: {proof}"));
    }
    faults
}

#[test]
fn every_test_that_is_named_exists() {
    let text = fs::read_to_string(repository().join("tests/BATTERY.md")).unwrap();
    assert_eq!(text.matches('`').count() % 2, 0, "a backtick without its other one");
    let rows = rows(&text);
    let codes: Vec<&str> = rows.iter().flat_map(|[codes, ..]| codes.split(", ")).collect();
    let distinct: BTreeSet<&str> = codes.iter().copied().collect();
    assert_eq!(distinct.len(), codes.len(), "a code has two rows: {codes:?}");
    assert_eq!(distinct, CODES.split(' ').collect(), "codes without a row, or rows without a code");
    let faults: Vec<String> = rows
        .iter()
        .flat_map(|[code, claim, proof]| {
            assert!(!claim.is_empty(), "{code} claims nothing");
            faults(proof).into_iter().map(move |fault| format!("{code}: {fault}"))
        })
        .collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn what_is_not_there_is_found() {
    assert!(faults("`battery.rs::what_is_not_there_is_found`").is_empty());
    assert!(faults("not yet: why").is_empty());
    assert!(faults("`make bench`").is_empty());
    for wrong in [
        "",
        "not yet",
        "`bench`",
        "`battery.rs::rows`",
        "`battery.rs::no_such_test`",
        "`no_such_file.rs::rows`",
        "`tests/no_such_file`",
    ] {
        assert_eq!(faults(wrong).len(), 1, "{wrong}");
    }
    assert!(!has_test("#[test]\n\nfn name() {}", "name"), "the mark is another's");
    assert!(has_test("    #[test]\n    // why\n    fn name(a: u8) {}", "name"));
}
