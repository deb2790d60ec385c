//! `make demo`: it agrees if all is well, reports a mismatch, and leaves nothing behind; and the commands of the guides
//! work on its recording as typed there.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;
use wirelane_tests::recordings::count_packets;
use wirelane_tests::{Child, Finished, Lab, Signal, repository, require_root, wirelane_binary};

const LIMIT: Duration = Duration::from_secs(240);

/// A demo with a small flood and temporary files in a folder of the test.
struct Demo {
    folder: TempDir,
    // Keeps the demo's programs away from tests that look at the whole machine.
    lab: Lab,
}

impl Demo {
    fn new() -> Demo {
        Demo { folder: TempDir::new().unwrap(), lab: Lab::new(1).unwrap() }
    }

    fn start(&self, wirelane: &Path, more: &[&str]) -> Child {
        let mut command = Command::new(repository().join("scripts/demo"));
        command.arg("--wirelane").arg(wirelane).args(["--packets", "20000"]).args(more);
        Child::spawn(command.env("TMPDIR", self.folder.path())).unwrap()
    }

    fn run(&self, wirelane: &Path, more: &[&str]) -> Finished {
        let demo = self.start(wirelane, more);
        let pid = demo.pid();
        let finished = demo.finish(LIMIT).unwrap();
        self.assert_nothing_is_left(pid, &finished);
        finished
    }

    fn assert_nothing_is_left(&self, pid: u32, finished: &Finished) {
        let namespaces: Vec<String> = names("/run/netns".as_ref());
        let ours = format!("wldemo-{pid}-");
        assert!(namespaces.iter().all(|name| !name.starts_with(&ours)), "{namespaces:?} {}", finished.stderr);
        let files: Vec<String> = names(self.folder.path());
        assert!(files.iter().all(|name| !name.starts_with("wldemo")), "{files:?} {}", finished.stderr);
    }

    /// A replacement of `wirelane` that adds to the count of one of the observers.
    fn liar(&self) -> PathBuf {
        let path = self.folder.path().join("liar");
        let wirelane = wirelane_binary().unwrap();
        let script = format!(
            "#!/bin/bash\ncase \"$*\" in *'count -i cap0@2'*)\n\
             exec {0} \"$@\" > >(sed -u 's/\"seen\":/\"seen\":1/g') ;;\nesac\nexec {0} \"$@\"\n",
            wirelane.display()
        );
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn every_count_agrees_and_the_recording_is_kept_where_asked() {
    if !require_root("every_count_agrees_and_the_recording_is_kept_where_asked") {
        return;
    }
    let demo = Demo::new();
    let kept = demo.folder.path().join("kept.pcapng");
    let finished = demo.run(&wirelane_binary().unwrap(), &["--keep", kept.to_str().unwrap()]);
    assert!(finished.status.success(), "{:#?} {}", finished.lines, finished.stderr);
    let rows: Vec<&String> = finished.lines.iter().filter(|line| line.ends_with("  yes")).collect();
    assert!(rows.len() >= 12, "{:#?}", finished.lines);
    assert!(finished.lines.iter().any(|line| line.starts_with("Everything agrees")));
    assert!(finished.lines.iter().all(|line| line.chars().count() <= 80), "{:#?}", finished.lines);
    assert!(kept.metadata().unwrap().len() > 20_000 * 60);

    // An existing file is not overwritten, and this is checked before anything is built.
    let refused = demo.run(&wirelane_binary().unwrap(), &["--keep", kept.to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(refused.stderr.contains("exists already"), "{}", refused.stderr);

    guides_work_with(&demo, &kept);
}

/// The commands of the first code block after this text of a guide.
fn commands_of_guide(guide: &str, after: &str) -> Vec<String> {
    let guide = fs::read_to_string(repository().join("docs/guides").join(guide)).unwrap();
    let (_, rest) = guide.split_once(after).unwrap_or_else(|| panic!("the guide has no '{after}'"));
    let block = rest.split("```").nth(1).unwrap();
    block.lines().filter_map(|line| line.strip_prefix("$ ")).map(str::to_owned).collect()
}

/// Runs the guides to flows and the store, from the recording to nfdump's table, SQL and DuckDB: all of them have all
/// packets.
fn guides_work_with(demo: &Demo, recording: &Path) {
    let typed = commands_of_guide("flows.md", "## From packets to a collector and to SQL");
    assert_eq!(typed[..2], ["make demo KEEP=demo.pcapng", "export PATH=$PWD/target/release:$PATH"]);
    let packets = count_packets(recording).unwrap();
    let folder = demo.folder.path();
    fs::copy(recording, folder.join("demo.pcapng")).unwrap();
    let run = |lines: &[String]| {
        let mut command = demo.lab.command(&demo.lab.receiver().namespace, "bash");
        let own = wirelane_binary().unwrap();
        let path = format!("{}:{}", own.parent().unwrap().display(), std::env::var("PATH").unwrap());
        // As at a prompt, a failed command does not end the rest; the status is that of the last one.
        command.args(["-c", &lines.join("\n")]).current_dir(folder).env("PATH", path);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{lines:#?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let shown = run(&typed[2..]);
    for words in ["Top 3 Src IP Addr ordered by bytes", "sent_bytes", "10.77.0.1", "protocol"] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    let sums = run(&[
        "nfdump -R nf -I | sed -n 's/^Packets: //p'".to_owned(),
        "wirelane query --csv 'SELECT sum(packets) AS packets FROM flows' --store flows.db | tail -1"
            .to_owned(),
    ]);
    assert_eq!(sums.split_whitespace().collect::<Vec<_>>(), [packets.to_string(), packets.to_string()]);

    let typed = commands_of_guide("store.md", "DuckDB, with the store of the demo's flows:");
    assert!(typed[0].ends_with("/pip install -q duckdb"), "{typed:?}");
    let python = repository().join("target/python");
    if python.join("lib").exists() {
        std::os::unix::fs::symlink(python, folder.join("duck")).unwrap();
        let shown = run(&typed[1..]);
        assert!(shown.contains("10.77.0.1"), "{shown}");
    } else {
        println!("left out: what DuckDB says (it is not installed: scripts/setup kernels)");
    }
}

#[test]
fn a_count_that_is_wrong_is_found() {
    if !require_root("a_count_that_is_wrong_is_found") {
        return;
    }
    let demo = Demo::new();
    let finished = demo.run(&demo.liar(), &[]);
    assert_eq!(finished.status.code(), Some(1), "{:#?} {}", finished.lines, finished.stderr);
    let wrong: Vec<&String> = finished.lines.iter().filter(|line| line.contains("  NO: ")).collect();
    assert_eq!(wrong.len(), 1, "{:#?}", finished.lines);
    assert!(wrong[0].contains("together"), "{wrong:?}");
}

#[test]
fn a_demo_that_is_interrupted_leaves_nothing() {
    if !require_root("a_demo_that_is_interrupted_leaves_nothing") {
        return;
    }
    let demo = Demo::new();
    for (signal, status) in [(Signal::Interrupt, 130), (Signal::Terminate, 143)] {
        // A flood of a minute, so that it is still running when the signal arrives.
        let child = demo.start(&wirelane_binary().unwrap(), &["--packets", "60000", "--rate", "1000"]);
        let pid = child.pid();
        loop {
            match child.next_line(LIMIT).unwrap() {
                Some(line) if line.contains("a second") => break,
                Some(_) => {}
                None => panic!("the demo ended by itself: {}", child.finish(LIMIT).unwrap().stderr),
            }
        }
        std::thread::sleep(Duration::from_secs(1));
        child.signal(signal).unwrap();
        let finished = child.finish(Duration::from_secs(20)).unwrap();
        assert_eq!(finished.status.code(), Some(status), "{}", finished.stderr);
        demo.assert_nothing_is_left(pid, &finished);
    }
}
