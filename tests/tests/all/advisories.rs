//! `scripts/advisories`: the crates of the project are compared with a database whose date is printed, or nothing is, and the
//! script says why.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use wirelane_tests::repository;

/// A crate of the project, which an advisory of the tests is about.
const CRATE: &str = "libc";

fn advisories(words: &[&str]) -> Command {
    let mut command = Command::new(repository().join("scripts/advisories"));
    command.args(words);
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A database in git with one advisory, from this day on.
fn database(folder: &Path, day: &str, package: &str) {
    let place = folder.join("crates").join(package);
    fs::create_dir_all(&place).unwrap();
    let advisory = format!(
        "```toml\n[advisory]\nid = \"RUSTSEC-2026-9999\"\npackage = \"{package}\"\ndate = \"2026-01-01\"\n\
         url = \"https://example.com/\"\ncategories = [\"denial-of-service\"]\n\n[versions]\npatched = []\n```\n\n\
         # Packets stop\n\nAll of them.\n"
    );
    fs::write(place.join("RUSTSEC-2026-9999.md"), advisory).unwrap();
    let git = |words: &[&str]| {
        let output = Command::new("git")
            .arg("-C")
            .arg(folder)
            .args(["-c", "user.name=a", "-c", "user.email=a@example.com"])
            .args(words)
            .env("GIT_COMMITTER_DATE", format!("{day}T12:00:00Z"))
            .output()
            .unwrap();
        assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
    };
    git(&["init", "--quiet"]);
    git(&["add", "."]);
    git(&["commit", "--quiet", "--message", "An advisory"]);
}

/// Without the tool or the database, nothing is compared, and the reason is printed.
#[test]
fn without_a_database_nothing_is_compared() {
    let refused = |output: Output, expected: &str| {
        assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
        assert!(text(&output.stderr).contains(expected), "{}", text(&output.stderr));
        assert_eq!(text(&output.stdout), "");
    };
    let without = advisories(&[]).env("PATH", "/usr/bin:/bin").output().unwrap();
    if Path::new("/usr/bin/cargo-deny").exists() {
        println!("left out: without_a_database_nothing_is_compared: without cargo-deny (it is in /usr/bin)");
    } else {
        refused(without, "nothing was checked: there is no cargo-deny (cargo install --locked cargo-deny)");
    }
    if !has_cargo_deny("without_a_database_nothing_is_compared") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let output = advisories(&["--database", path]).output().unwrap();
    let reason =
        format!("nothing was checked: no database of advisories in {path}: expected a git clone of ");
    refused(output, &reason);
}

/// The first line has the date of the database, and an advisory about a crate of the project makes the script fail.
#[test]
fn an_advisory_about_a_crate_is_printed_with_the_date_of_the_database() {
    if !has_cargo_deny("an_advisory_about_a_crate_is_printed_with_the_date_of_the_database") {
        return;
    }
    let run = |package: &str| {
        let folder = tempfile::tempdir().unwrap();
        database(folder.path(), "2026-01-02", package);
        let output = advisories(&["--database", folder.path().to_str().unwrap()]).output().unwrap();
        let out = text(&output.stdout);
        let line = out.lines().next().unwrap_or_default();
        assert!(
            line.starts_with("database of 2026-01-02, ") && line.ends_with(" days old, with 1 advisories"),
            "{out}{}",
            text(&output.stderr)
        );
        (output.status.code(), out + &text(&output.stderr))
    };
    let (status, said) = run("a-crate-that-nobody-needs");
    assert!(status == Some(0) && said.contains("advisories ok"), "{said}");
    let (status, said) = run(CRATE);
    assert!(status.is_some_and(|status| status != 0), "{said}");
    assert!(said.contains("RUSTSEC-2026-9999") && said.contains("advisories FAILED"), "{said}");
}

fn has_cargo_deny(test: &str) -> bool {
    let found =
        Command::new("cargo-deny").arg("--version").output().is_ok_and(|output| output.status.success());
    if !found {
        println!("left out: {test} (no cargo-deny)");
    }
    found
}
