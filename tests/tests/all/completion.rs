//! Shell completion: `-i` offers the devices of the moment, `-r` and `-w` files. The shells themselves decide.

use std::path::Path;
use std::process::Command;

use wirelane_tests::terminal::Terminal;
use wirelane_tests::{Lab, LabOptions, require_root, wirelane_binary};

/// The completion script of a shell, in a file.
fn script(shell: &str, folder: &Path) -> String {
    let output = Command::new(wirelane_binary().unwrap()).args(["completions", shell]).output().unwrap();
    assert!(output.status.success(), "{shell}: {}", String::from_utf8_lossy(&output.stderr));
    let path = folder.join(shell);
    std::fs::write(&path, output.stdout).unwrap();
    path.to_str().unwrap().to_owned()
}

/// The words that a shell offers in the receiver's namespace of a lab, in a folder, with our program in `PATH`.
fn offered(lab: &Lab, folder: &Path, shell: &[&str]) -> Vec<String> {
    let binary = wirelane_binary().unwrap();
    let path = format!("PATH={}:/usr/bin:/bin", binary.parent().unwrap().display());
    let folder = format!("--chdir={}", folder.display());
    // fish writes its settings there.
    let settings = tempfile::tempdir().unwrap();
    let home = format!("HOME={}", settings.path().display());
    // Options of env stand before its assignments.
    let words = [&["env", &folder, &path, &home], shell].concat();
    let output = lab.exec(&lab.receiver().namespace, &words).unwrap();
    // fish adds a description behind a tab.
    output.lines().filter_map(|line| line.split('\t').next()).map(str::to_owned).collect()
}

#[test]
fn shells_offer_devices_and_files() {
    if !require_root("shells_offer_devices_and_files") {
        return;
    }
    let lab = Lab::with(&LabOptions { queues: 2, ..LabOptions::default() }).unwrap();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("some.pcap"), "").unwrap();
    let sorted = |mut words: Vec<String>| {
        words.sort();
        words
    };
    let devices = ["rx0", "rx0@0", "rx0@1"];

    let shells = ["zsh", "fish"].map(|shell| Command::new(shell).arg("--version").output().is_ok());
    if shells.contains(&false) {
        println!("left out: shells_offer_devices_and_files (no zsh or no fish)");
        return;
    }
    let fish = script("fish", folder.path());
    let complete = |line: &str| {
        let script = format!("source {fish}; complete -C '{line}'");
        sorted(offered(&lab, folder.path(), &["fish", "--no-config", "-c", &script]))
    };
    assert_eq!(complete("wirelane count -i r"), devices);
    assert_eq!(complete("wirelane count -i lo,rx0@"), ["lo,rx0@0", "lo,rx0@1"]);
    assert_eq!(complete("wirelane record --interface rx0@"), devices[1..]);
    assert_eq!(complete("wirelane record -i rx0 -w some"), ["some.pcap"]);
    assert_eq!(complete("wirelane flows -r some"), ["some.pcap"]);

    // The functions of zsh's completion need its line editor: the words are those that the script hands to it.
    let zsh = script("zsh", folder.path());
    let text = std::fs::read_to_string(&zsh).unwrap();
    let hands = "{compset -P \"*,\"; compadd -- ${(f)\"$(wirelane devices --names 2>/dev/null)\"}}";
    let count = text.split("(count)").nth(1).unwrap().split(";;").next().unwrap();
    assert!(count.contains("*-i+[") && count.contains(&format!(":DEV:{hands}'")), "{count}");
    assert!(count.contains("-r+[") && count.contains(":FILE:_files'"), "{count}");
    let script = format!(
        "zsh -n {zsh} && compset() {{ [[ $1 == -P ]] }} && compadd() {{ shift; print -l -- \"$@\" }} && {}",
        &hands[1..hands.len() - 1]
    );
    let words = sorted(offered(&lab, folder.path(), &["zsh", "-f", "-c", &script]));
    assert!(devices.iter().all(|device| words.contains(&(*device).to_owned())), "{words:?}");
}

/// Bash at a terminal, since its line editor splits words at `@` and `=`. A device's name is text, not a command.
#[test]
fn bash_completes_devices_lists_and_files_as_text() {
    if !require_root("bash_completes_devices_lists_and_files_as_text") {
        return;
    }
    let lab = Lab::with(&LabOptions { queues: 2, ..LabOptions::default() }).unwrap();
    let hostile = ["ip", "link", "add", "x$(id>ran)", "type", "veth", "peer", "name", "px"];
    lab.exec(&lab.receiver().namespace, &hostile).unwrap();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("some.pcap"), "").unwrap();
    let path = format!("PATH={}:/usr/bin:/bin", wirelane_binary().unwrap().parent().unwrap().display());
    let place = format!("--chdir={}", folder.path().display());
    let words = [&place, &path, "PS1=> ", "bash", "--norc", "--noprofile"];
    let mut terminal = Terminal::of(&lab, (100, 40), Path::new("/usr/bin/env"), &words, None);
    terminal.until("a prompt", |rows| rows[0] == ">");
    terminal.type_in(&format!("source {}; clear\r", script("bash", folder.path())));
    // The line at the end, and what is listed before it.
    for (typed, line, listed) in [
        ("wirelane count -i rx0", "wirelane count -i rx0", "rx0    rx0@0  rx0@1"),
        ("wirelane count -i rx0@", "wirelane count -i rx0@", "@0  @1"),
        ("wirelane count -i lo,rx0@", "wirelane count -i lo,rx0@", "@0  @1"),
        ("wirelane count --interface=rx0@", "wirelane count --interface=rx0@", "@0  @1"),
        ("wirelane count --interface=r", "wirelane count --interface=rx0", "rx0    rx0@0  rx0@1"),
        ("wirelane count -i lo,x", "wirelane count -i lo,x\\$\\(id\\>ran\\)", ""),
        ("wirelane flows -r som", "wirelane flows -r some.pcap", ""),
        ("wirelane record -i rx0@1 -w s", "wirelane record -i rx0@1 -w some.pcap", ""),
    ] {
        terminal.type_in("\u{15}clear\r");
        terminal.until("a clear screen", |rows| rows[0] == ">" && rows[1].is_empty());
        terminal.type_in(&format!("{typed}\t"));
        if !listed.is_empty() {
            terminal.type_in("\t\t");
        }
        terminal.until(line, |rows| {
            let last = rows.iter().rfind(|row| !row.is_empty());
            last.is_some_and(|last| last == &format!("> {line}"))
                && (listed.is_empty() || rows.iter().any(|row| row == listed))
        });
    }
    assert!(!folder.path().join("ran").exists(), "the name of a device ran as a command");
    terminal.type_in("\u{15}exit 0\r");
    assert!(terminal.ended().0.success());
}
