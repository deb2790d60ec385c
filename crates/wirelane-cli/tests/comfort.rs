//! Manual pages, completions, colours, JSON: output for people and programs besides the results. Needs no privilege.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

const WIRELANE: &str = env!("CARGO_BIN_EXE_wirelane");
const COMMANDS: [&str; 8] = ["devices", "count", "flows", "groups", "record", "send", "completions", "man"];

fn wirelane(arguments: &[&str]) -> Output {
    Command::new(WIRELANE).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Whether a program is installed; if not, prints which check is skipped.
fn is_there(program: &str) -> bool {
    let there = Command::new(program).arg("--version").output().is_ok();
    if !there {
        println!("left out: what {program} makes of it (it is not installed: scripts/setup)");
    }
    there
}

/// A folder of this test, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("wirelane-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn manual_pages_have_every_option_and_groff_finds_no_fault() {
    let folder = Folder::new("man");
    let written = wirelane(&["man", "--dir", folder.0.to_str().unwrap()]);
    assert!(written.status.success(), "{written:?}");
    let single = wirelane(&["man"]).stdout;
    assert_eq!(std::fs::read(folder.0.join("wirelane.1")).unwrap(), single);
    for command in COMMANDS {
        assert!(text(&single).contains(&format!("wirelane\\-{command}(1)")), "{command}");
        let page = std::fs::read_to_string(folder.0.join(format!("wirelane-{command}.1"))).unwrap();
        // The page contains every long option of the help, and the text after the options.
        let help = text(&wirelane(&[command, "--help"]).stdout);
        let options = help.split_whitespace().filter(|word| word.starts_with("--") && word.len() > 2);
        let mut found = 0;
        for option in options.filter(|option| option[2..].chars().all(|c| c.is_ascii_lowercase() || c == '-'))
        {
            assert!(page.contains(&option.replace('-', "\\-")), "{option} is not in the page of {command}");
            found += 1;
        }
        assert!(found > 0, "{help}");
    }
    if !is_there("groff") {
        return;
    }
    for page in std::fs::read_dir(&folder.0).unwrap() {
        let page = page.unwrap().path();
        let checked =
            Command::new("groff").args(["-ww", "-man", "-Tutf8", "-z"]).arg(&page).output().unwrap();
        assert!(checked.status.success() && checked.stderr.is_empty(), "{}: {checked:?}", page.display());
    }
}

#[test]
fn bash_completes_commands_options_and_values() {
    let script = text(&wirelane(&["completions", "bash"]).stdout);
    let folder = tempfile::tempdir().unwrap();
    // As bash does for the Tab key: calls the function that is registered for the command.
    let complete = |words: &[&str]| {
        let quoted: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
        let test = format!(
            "{script}\nset -e\nCOMP_WORDS=({}); COMP_CWORD={}\n\
             function=$(complete -p wirelane | sed 's/.*-F \\([^ ]*\\).*/\\1/')\n\
             $function wirelane \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD-1]}}\"\n\
             printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            quoted.join(" "),
            words.len() - 1
        );
        // In a file, because it is longer than an argument may be.
        let file = folder.path().join("test.sh");
        std::fs::write(&file, test).unwrap();
        let output = Command::new("bash").arg("--norc").arg(&file).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{words:?}: {output:?}");
        text(&output.stdout).lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(complete(&["wirelane", "coun"]), ["count"]);
    assert_eq!(complete(&["wirelane", "count", "--dur"]), ["--duration"]);
    assert_eq!(complete(&["wirelane", "count", "--hook", "gen"]), ["generic"]);
    assert_eq!(complete(&["wirelane", "completions", "fi"]), ["fish"]);
    let all = complete(&["wirelane", ""]);
    assert!(COMMANDS.iter().all(|command| all.contains(&(*command).to_owned())), "{all:?}");
}

#[test]
fn zsh_and_fish_take_their_completions() {
    let folder = Folder::new("completions");
    for (shell, arguments) in [("zsh", ["-f", "-n"]), ("fish", ["--no-config", "--no-execute"])] {
        let script = wirelane(&["completions", shell]);
        assert!(script.status.success() && script.stdout.len() > 1000, "{shell}");
        if is_there(shell) {
            let file = folder.0.join(shell);
            std::fs::write(&file, &script.stdout).unwrap();
            let output = Command::new(shell).args(arguments).arg(&file).output().unwrap();
            assert!(output.status.success() && output.stderr.is_empty(), "{shell}: {output:?}");
        }
    }
    if is_there("fish") {
        let ask = format!("source {}; complete -C 'wirelane count --dur'", folder.0.join("fish").display());
        let output = Command::new("fish").args(["--no-config", "-c", &ask]).output().unwrap();
        assert!(text(&output.stdout).starts_with("--duration"), "{output:?}");
    }
}

#[test]
fn make_install_puts_everything_in_its_place() {
    let folder = Folder::new("install");
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let output = Command::new("make")
        .args([
            "install",
            "PREFIX=/usr",
            &format!("BINARY={WIRELANE}"),
            &format!("DESTDIR={}", folder.0.display()),
        ])
        .current_dir(repository)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    for file in [
        "bin/wirelane",
        "bin/.debug/wirelane.debug",
        "share/man/man1/wirelane.1",
        "share/man/man1/wirelane-record.1",
        "share/man/man5/wirelane-rules.5",
        "share/man/man7/wirelane-concepts.7",
        "lib/wirelane/libpcap.so.0.8",
        "lib/wirelane/.debug/libpcap.so.0.8.debug",
        "lib/wirelane/libpcap.so",
        "lib/wirelane/libwirelane-pcap.so",
        "lib/wirelane/pkgconfig/libpcap.pc",
        "share/bash-completion/completions/wirelane",
        "share/zsh/site-functions/_wirelane",
        "share/fish/vendor_completions.d/wirelane.fish",
    ] {
        let path = folder.0.join("usr").join(file);
        assert!(std::fs::metadata(&path).is_ok_and(|metadata| metadata.len() > 0), "{}", path.display());
    }
    // The stripped program still runs.
    let installed = folder.0.join("usr/bin/wirelane");
    assert!(std::fs::metadata(&installed).unwrap().len() < std::fs::metadata(WIRELANE).unwrap().len());
    assert!(Command::new(&installed).arg("--version").output().unwrap().status.success());
    // Wireshark's folder is below the prefix if that is not the system's.
    let output = Command::new("make")
        .args(["-n", "install", "PREFIX=/opt/w", &format!("BINARY={WIRELANE}")])
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))
        .output()
        .unwrap();
    assert!(text(&output.stdout).contains("/opt/w/lib/wireshark/extcap/wirelane"), "{output:?}");
}

#[test]
fn colours_are_for_terminals_whose_user_wants_them() {
    const ESCAPE: char = '\u{1b}';
    // script(1) provides a terminal for the command.
    let on_terminal = |no_color: Option<&str>, command: &str| {
        let mut script = Command::new("script");
        script
            .args(["-qec", &format!("{WIRELANE} {command}"), "/dev/null"])
            .env("TERM", "xterm")
            .env_remove("NO_COLOR");
        if let Some(value) = no_color {
            script.env("NO_COLOR", value);
        }
        text(&script.output().unwrap().stdout)
    };
    for command in ["devices", "count --no-such-option"] {
        assert!(on_terminal(None, command).contains(ESCAPE), "{command}");
        let plain = on_terminal(Some("1"), command);
        assert!(!plain.contains(ESCAPE) && plain.len() > 20, "{command}: {plain}");
        let piped = wirelane(&command.split(' ').collect::<Vec<_>>());
        assert!(!text(&piped.stdout).contains(ESCAPE) && !text(&piped.stderr).contains(ESCAPE), "{command}");
    }
}

/// A little-endian microsecond pcap of one Ethernet frame.
fn pcap() -> Vec<u8> {
    let words: [u32; 10] = [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65535, 1, 1, 2, 60, 60];
    words.iter().flat_map(|word| word.to_le_bytes()).chain([0; 60]).collect()
}

#[test]
fn json_is_an_object_a_line_and_errors_are_text() {
    let folder = Folder::new("json");
    let input = folder.0.join("in.pcap");
    std::fs::write(&input, pcap()).unwrap();
    let (input, output) = (input.to_str().unwrap(), folder.0.join("out.pcapng"));
    let output = output.to_str().unwrap();
    for words in [
        &["devices", "--json"][..],
        &["devices", "lo", "--json"],
        &["count", "-r", input, "--json"],
        &["record", "-r", input, "-w", output, "--json"],
    ] {
        let ran = wirelane(words);
        assert!(ran.status.success() && ran.stderr.is_empty(), "{words:?}: {ran:?}");
        let objects: Vec<Value> =
            text(&ran.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(objects.len() > 1 && objects.iter().all(Value::is_object), "{words:?}");
        let last = objects.iter().filter(|object| object["final"] == true).count();
        assert_eq!((last, &objects[objects.len() - 1]["final"]), (1, &Value::Bool(true)), "{words:?}");
    }
    for words in [
        &["devices", "nosuchdevice0", "--json"][..],
        &["count", "-i", "nosuchdevice0", "--json"],
        &["count", "-r", "/no/such/file", "--json"],
        &["record", "-r", input, "-w", "/no/such/folder/out.pcapng", "--json"],
        &["send", "-i", "nosuchdevice0", "--json"],
    ] {
        let ran = wirelane(words);
        let errors = text(&ran.stderr);
        assert!(ran.status.code() == Some(1) && ran.stdout.is_empty(), "{words:?}: {ran:?}");
        assert!(errors.starts_with("wirelane: ") && errors.lines().count() == 1, "{words:?}: {errors}");
    }
}
