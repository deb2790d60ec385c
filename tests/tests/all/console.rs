//! Console blocks of README.md and `docs/`, run against a recording of the demo (`scripts/console`).

use std::path::Path;
use std::process::Command;

use wirelane_tests::{Lab, repository, require_root, wirelane_binary};

fn console(recording: &Path, words: &[&str]) -> (bool, String) {
    let program = wirelane_binary().unwrap();
    let mut command = Command::new(repository().join("scripts/console"));
    command.args(["--recording".as_ref(), recording, "--wirelane".as_ref(), &program]).args(words);
    let output = command.output().unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.success(), text)
}

#[test]
fn console_blocks_show_what_the_commands_print() {
    if !require_root("console_blocks_show_what_the_commands_print") {
        return;
    }
    // The blocks capture: tests that count the BPF objects of the machine wait for the end.
    let _lab = Lab::new(1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("demo.pcapng");
    let mut demo = Command::new(repository().join("scripts/demo"));
    demo.arg("--wirelane").arg(wirelane_binary().unwrap()).arg("--keep").arg(&recording);
    let output = demo.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let (agree, text) = console(&recording, &[]);
    assert!(agree, "{text}");
    println!("{text}");
}

#[test]
fn what_a_page_shows_wrongly_is_found() {
    if !require_root("what_a_page_shows_wrongly_is_found") {
        return;
    }
    // The blocks capture: tests that count the BPF objects of the machine wait for the end.
    let _lab = Lab::new(1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.md");
    let check = |block: &str| {
        std::fs::write(&page, block).unwrap();
        console(Path::new("/dev/null"), &[page.to_str().unwrap()])
    };
    let right = "```console demo\n$ seq 3\n1\n...\n$ echo 'a   b' 1,000; \\\n  sudo false\na b [..]\n```\n";
    let (agree, text) = check(&right.replace("demo", "demo status=1"));
    assert!(agree && text.contains("2 commands in 1 blocks of 1 pages agree"), "{text}");
    let (agree, text) = check(right);
    assert!(!agree && text.contains("exited with 1, expected 0"), "{text}");
    for (marks, shown, expected) in [
        ("", "1,000 b", false),
        ("", "1,001 a", false),
        ("numbers=5%", "960 a", true),
        ("numbers=5%", "900 a", false),
        ("numbers=any", "7.5 a", true),
        ("", "1,000 a\nmore", false),
        ("", "...\n1,000 a\n...", true),
        ("", "...\n1,000 a\nmore", false),
    ] {
        let (agree, text) = check(&format!("```console demo {marks}\n$ echo '1,000  a'\n{shown}\n```\n"));
        assert_eq!(agree, expected, "{marks} {shown}: {text}");
    }
    let (agree, text) = check("```console dmeo\n$ true\n```\n");
    assert!(!agree && text.contains("unknown mark 'dmeo'"), "{text}");
}
