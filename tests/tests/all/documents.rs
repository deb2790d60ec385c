//! Documents: links, paths, lengths and language; manual pages of formats and concepts; the book.

use std::path::Path;
use std::process::{Command, Output};

use wirelane_tests::{repository, wirelane_binary};

fn script(name: &str, argument: Option<&Path>) -> Output {
    let mut command = Command::new(repository().join("scripts").join(name));
    command.args(argument).current_dir(repository());
    command.env("WIRELANE", wirelane_binary().unwrap());
    command.output().unwrap()
}

/// The standard output and error of a program that has to succeed.
fn printed(output: &Output) -> String {
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(output.status.success(), "{text}");
    text
}

fn is_there(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok()
}

#[test]
fn links_paths_lengths_and_language() {
    assert_eq!(printed(&script("docs-check", None)), "");
}

#[test]
fn manual_pages_of_formats_and_concepts() {
    let folder = tempfile::tempdir().unwrap();
    printed(&script("man-pages", Some(folder.path())));
    if !is_there("groff") {
        println!("left out: manual_pages_of_formats_and_concepts (no groff)");
        return;
    }
    for page in [
        "man5/wirelane-rules.5",
        "man5/wirelane-probe.5",
        "man5/wirelane-store.5",
        "man7/wirelane-concepts.7",
    ] {
        let page = folder.path().join(page);
        let output = Command::new("groff").args(["-man", "-Tutf8", "-ww"]).arg(&page).output().unwrap();
        let warnings = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && warnings.is_empty(), "{}: {warnings}", page.display());
        assert!(String::from_utf8_lossy(&output.stdout).lines().count() > 30, "{}", page.display());
    }
}

#[test]
fn the_book_is_built() {
    if !is_there("mdbook") {
        println!("left out: the_book_is_built (no mdbook)");
        return;
    }
    let text = printed(&script("docs", None));
    assert!(!text.contains("WARN") && !text.contains("ERROR"), "{text}");
    let page = repository().join("target/book/reference/commands/count.html");
    assert!(std::fs::read_to_string(page).unwrap().contains("--interface"));
}
