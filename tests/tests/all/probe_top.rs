//! `wirelane probe --top` on a terminal: the content of its screen, and that the terminal is restored.

use std::fs;
use std::process::Command;

use wirelane_tests::numbers::send;
use wirelane_tests::terminal::Terminal;
use wirelane_tests::{Lab, require_root, wirelane_binary};

const CONFIG: &str = "interval = \"200ms\"\n\
    [[measurement]]\nname = \"all\"\nvalues = [\"packets\", \"bytes\", \"flows\"]\n\
    [[measurement]]\nname = \"sources\"\nkey = [\"src-port\"]\nvalues = [\"packets\", \"distinct-dst\"]\nkeys = 100\n\
    [[alarm]]\nname = \"any\"\nmeasurement = \"all\"\nvalue = \"packets\"\nabove = 0\nclear-after = 10000\n";

#[test]
fn the_screen_has_the_numbers_and_the_terminal_is_given_back() {
    if !require_root("the_screen_has_the_numbers_and_the_terminal_is_given_back") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("p.toml");
    fs::write(&path, CONFIG).unwrap();
    let lab = Lab::new(1).unwrap();
    let device = lab.receiver().device.as_str();
    let words = ["probe", path.to_str().unwrap(), "--top", "-i", device, "--interval", "0.2", "udp"];
    let mut terminal = Terminal::start(&lab, 80, 24, &words);
    terminal.until_text(&format!("wirelane probe  {device}  engine ring"));
    terminal.until_text("no alarm is raised");
    let columns = |columns: usize| {
        move |rows: &[String]| rows[0].ends_with("q ends") && rows[0].chars().count() == columns
    };
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| {
            send(
                &lab,
                20_000,
                &["--pattern", "ports", "--flows", "4", "--src-port", "1000", "--rate", "4000"],
            )
        });
        // Down to the second measurement, whose rows are shown then.
        terminal.type_in("\u{1b}[B");
        terminal.until("rows of keys", |rows| {
            rows.iter().any(|row| row.starts_with("sources: "))
                && ["1000 ", "1001 ", "1002 ", "1003 "]
                    .iter()
                    .all(|key| rows.iter().any(|row| row.starts_with(key)))
        });
        println!("{}", terminal.rows().join("\n"));
        terminal.until_text("1 raised");
        terminal.until("a past", |rows| rows.iter().any(|row| row.starts_with("all ") && row.contains('█')));
        for (width, height) in [(60, 16), (120, 40), (80, 24)] {
            terminal.resize(width, height);
            terminal.until(&format!("{width} columns"), columns(usize::from(width)));
            terminal.until("rows", |rows| rows.iter().any(|row| row.starts_with("1000 ")));
            println!("{}", terminal.rows().join("\n"));
        }
        terminal.type_in("s");
        terminal.until_text("by packets");
        sending.join().unwrap().unwrap();
    });
    terminal.until_text("lost 0  shed 0");
    terminal.until_text("analysed 20,000");
    terminal.type_in("p");
    terminal.until_text("PAUSED");
    terminal.type_in("p");
    terminal.until("time goes on", |rows| !rows[0].contains("PAUSED"));
    // No thread has rights, including the one that reads keys.
    let tasks = fs::read_dir(format!("/proc/{}/task", terminal.pid())).unwrap();
    for task in tasks {
        let status = fs::read_to_string(task.unwrap().path().join("status")).unwrap();
        assert!(status.contains("Seccomp:\t2"), "{status}");
    }
    terminal.type_in("q");
    let (status, rows) = terminal.ended();
    let text = rows.join("\n");
    assert!(status.success() && text.contains("the ledger balances"), "{status} {text}");
    assert!(
        text.contains("all: 20,000 packets") && text.contains("sources: 20,000 packets, 4 keys"),
        "{text}"
    );
    assert!(!text.contains("ALARM"), "what was on the screen is not printed again: {text}");
}

/// The screen needs a terminal and a live capture.
#[test]
fn no_screen_without_a_terminal() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("p.toml"), CONFIG).unwrap();
    fs::write(
        folder.path().join("read.toml"),
        format!("[capture]\nread = \"x.pcap\"\n{}", CONFIG.replace("interval", "#")),
    )
    .unwrap();
    for (words, message) in [
        (&["p.toml", "-i", "lo", "--top"][..], "standard output is not a terminal"),
        (&["read.toml", "--top"], "there is nothing live to show"),
        (&["p.toml", "-r", "x.pcap", "--top"], "cannot be used with"),
        (&["p.toml", "-i", "lo", "--top", "--json"], "cannot be used with"),
    ] {
        let mut command = Command::new(wirelane_binary().unwrap());
        let output = command.current_dir(folder.path()).arg("probe").args(words).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{words:?}: {errors}");
        assert!(errors.contains(message) && output.stdout.is_empty(), "{words:?}: {errors}");
    }
}
