//! Symbolic links that another user has placed at the path of an output.

use std::fs;
use std::os::unix::fs::{PermissionsExt, lchown, symlink};
use std::path::Path;
use std::process::{Command, Output};

use wirelane_tests::calls::{Scene, message};
use wirelane_tests::wirelane_binary;

fn run(folder: &Path, words: &[&str]) -> Output {
    Command::new(wirelane_binary().unwrap()).current_dir(folder).args(words).output().unwrap()
}

/// Runs a command that must fail; returns its error.
fn refused(folder: &Path, words: &[&str]) -> String {
    let output = run(folder, words);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{words:?}: {said}");
    said
}

/// Battery: S4
#[test]
fn nothing_is_written_behind_a_planted_link() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    // The command writes without root's rights.
    fs::set_permissions(here, fs::Permissions::from_mode(0o777)).unwrap();
    let lines = ["From: <sip:a@b>;tag=1", "To: <sip:c@d>", "Call-ID: x", "CSeq: 1 INVITE"];
    let mut scene = Scene::new();
    scene.udp(0, "192.0.2.1:5060", "192.0.2.2:5060", &message("INVITE sip:c@d SIP/2.0", &lines, ""));
    scene.write(&here.join("in.pcap")).unwrap();
    for name in ["victim", "own"] {
        fs::create_dir(here.join(name)).unwrap();
        fs::set_permissions(here.join(name), fs::Permissions::from_mode(0o777)).unwrap();
    }
    symlink("victim", here.join("planted")).unwrap();
    lchown(here.join("planted"), Some(4711), Some(4711)).unwrap();
    symlink("own", here.join("link")).unwrap();
    for option in ["--store", "--save-calls"] {
        for place in ["planted", "planted/deeper"] {
            let said = refused(here, &["voip", "-r", "in.pcap", option, place]);
            assert!(said.contains("planted is a symbolic link of user 4711"), "{option}: {said}");
        }
        assert_eq!(fs::read_dir(here.join("victim")).unwrap().count(), 0, "{option}");
        let output = run(here, &["voip", "-r", "in.pcap", option, "link"]);
        assert!(output.status.success(), "{option}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(fs::read_dir(here.join("own")).unwrap().count() > 0, "{option}");
    }
    // A report is readable by its owner only, and its path is never followed through a link.
    let report = |path: &'static str| ["report", "--store", "own", "--html", path];
    assert!(run(here, &report("r.html")).status.success());
    assert_eq!(fs::metadata(here.join("r.html")).unwrap().permissions().mode() & 0o777, 0o600);
    symlink("victim.html", here.join("l.html")).unwrap();
    let said = refused(here, &[&report("l.html")[..], &["--overwrite"]].concat());
    assert!(said.contains("l.html is a symbolic link"), "{said}");
    refused(here, &report("l.html"));
    assert!(!here.join("victim.html").exists());
}
