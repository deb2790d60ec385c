//! Invalid steering programs are refused with the reason; running captures are not disturbed.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use object::{Object as _, ObjectSection as _};
use wirelane_tests::numbers::{column, last_of, send, wirelane};
use wirelane_tests::{
    Child, Lab, LabOptions, program_file, program_object, require_root, settled_bpf_objects,
};
use wirelane_tests::{Finished, wait_for_bpf_objects};

/// An emulated machine's verifier is a hundred times slower than a real one's.
const LIMIT: Duration = Duration::from_secs(240);
const PACKETS: u64 = 1000;

fn start(lab: &Lab, program: &Path, options: &[&str]) -> Child {
    let end = lab.receiver();
    let words = ["count", "-i", &end.device, "--json", "--steering-program", program.to_str().unwrap()];
    wirelane(lab, &end.namespace, &[&words, options].concat()).unwrap()
}

/// Starts a capture with a program, or without one, which runs while others are refused.
fn running(lab: &Lab, program: Option<&Path>) -> Child {
    let end = lab.receiver();
    let mut words =
        vec!["count", "-i", &end.device, "--hook", "native", "--direction", "rx", "--json", "--workers", "2"];
    if let Some(program) = program {
        words.extend(["--steering-program", program.to_str().unwrap()]);
    }
    let mut child = wirelane(lab, &end.namespace, &words).unwrap();
    child.wait_ready(LIMIT).unwrap();
    child
}

/// Starts a capture that must be refused, with all of `parts` in the message; returns the message.
#[track_caller]
fn assert_refused(lab: &Lab, program: &Path, options: &[&str], parts: &[&str]) -> String {
    let Finished { status, stderr, .. } = start(lab, program, options).finish(LIMIT).unwrap();
    let name = program.display();
    // An unreadable file is a failure, everything else is a usage error, of this option or of another.
    let code = if stderr.contains("wirelane: --") { 2 } else { 1 };
    assert_eq!(status.code(), Some(code), "{name}: {stderr}");
    for part in parts {
        assert!(stderr.contains(part), "{name}: no '{part}' in: {stderr}");
    }
    assert!(!stderr.contains("panicked"), "{name}: {stderr}");
    stderr
}

/// The id of the XDP program on the receiver's device.
fn attached(lab: &Lab) -> String {
    let end = lab.receiver();
    let shown = lab.exec(&end.namespace, &["ip", "-d", "link", "show", &end.device]).unwrap();
    let id = shown.split("prog/xdp id ").nth(1).and_then(|rest| rest.split_whitespace().next());
    id.unwrap_or_else(|| panic!("no XDP program: {shown}")).to_owned()
}

/// Ends the captures of [`running`]: with a program that steers by number, and without one.
fn assert_undisturbed(lab: &Lab, by_number: Child, plain: Child) {
    send(lab, PACKETS, &["--rate", "20k"]).unwrap();
    for (child, exactly) in [(by_number, true), (plain, false)] {
        let last = last_of(&child.terminate(LIMIT).unwrap()).unwrap();
        let columns = ["seen", "analysed", "filtered", "lost"].map(|name| column(&last, name));
        assert_eq!(columns, [PACKETS, PACKETS, 0, 0], "{last}");
        if exactly {
            let workers = last["workers"].as_array().unwrap();
            let workers: Vec<u64> = workers.iter().map(|line| column(line, "analysed")).collect();
            assert_eq!(workers, [PACKETS / 2, PACKETS / 2]);
        }
    }
}

fn write(folder: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, bytes).unwrap();
    path
}

/// Battery: S12
#[test]
fn what_is_no_steering_program_is_refused_with_the_reason() {
    if !require_root("what_is_no_steering_program_is_refused_with_the_reason") {
        return;
    }
    let lab = Lab::with(&LabOptions { alone: true, ..LabOptions::default() }).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let number = program_file(folder, "number").unwrap();
    let (by_number, plain) = (running(&lab, Some(&number)), running(&lab, None));
    let (objects, before) = (settled_bpf_objects(), attached(&lab));

    let compile = "clang -O2 -g -target bpf -c";
    for (name, parts) in [
        ("map", ["has a map 'turns' of another kind", "STATE_HASH()"].as_slice()),
        ("state", &["variables that can be written", ".bss"]),
        ("licence", &["names a licence", "leave that out"]),
        ("nothing", &["has no steering program", "STEERING_PROGRAM()"]),
        ("version", &["version 2 of <wirelane/steer.h>", "this Wirelane has 1"]),
        ("visible", &["'helper' is visible", "make it static"]),
        ("loop", &["calls bpf_loop()"]),
        ("signature", &["cannot be linked", "incompatible number of func_proto params"]),
        ("undefined", &["uses 'elsewhere'", "not in it"]),
        ("without_types", &["no type information", compile, "-g"]),
        ("other_byte_order", &["byte order", compile]),
        ("other_machine", &["not of BPF", compile]),
    ] {
        let path = program_file(folder, name).unwrap();
        let said = assert_refused(
            &lab,
            &path,
            &[],
            &[&["--steering-program", path.to_str().unwrap()], parts].concat(),
        );
        assert!(said.lines().count() == 1, "{name}: {said}");
    }

    let object = program_object("number").unwrap();
    let text = write(folder, "source.bpf.c", b"#include <wirelane/steer.h>\n");
    assert_refused(&lab, &text, &[], &["not a BPF object file", compile]);
    let empty = write(folder, "empty.bpf.o", b"");
    assert_refused(&lab, &empty, &[], &["not a BPF object file"]);
    let large = write(folder, "large.bpf.o", &vec![0; (1 << 20) + 1]);
    assert_refused(&lab, &large, &[], &["more than 1024 KiB"]);
    assert_refused(&lab, &folder.join("nowhere.bpf.o"), &[], &["nowhere.bpf.o", "No such file"]);
    assert_refused(&lab, folder, &[], &[folder.to_str().unwrap(), "directory"]);
    let types = object::File::parse(object).unwrap().section_by_name(".BTF").unwrap().file_range().unwrap();
    let mut torn = object.to_vec();
    torn[types.0 as usize..][..2].fill(0);
    let torn = write(folder, "torn.bpf.o", &torn);
    assert_refused(&lab, &torn, &[], &["torn.bpf.o", "cannot be linked", "BTF"]);
    // Truncated at any point: an object's section table is at its end.
    for part in 1..16 {
        let cut = write(folder, "cut.bpf.o", &object[..object.len() * part / 16]);
        assert_refused(&lab, &cut, &[], &["cut.bpf.o"]);
    }

    assert_eq!(attached(&lab), before, "the program on the device was replaced");
    assert_eq!(wait_for_bpf_objects(&objects, Duration::from_secs(10)), objects);
    assert_undisturbed(&lab, by_number, plain);
}

#[test]
fn what_the_verifier_refuses_is_said_with_its_words() {
    if !require_root("what_the_verifier_refuses_is_said_with_its_words") {
        return;
    }
    let lab = Lab::with(&LabOptions { alone: true, ..LabOptions::default() }).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let number = program_file(folder.path(), "number").unwrap();
    let (by_number, plain) = (running(&lab, Some(&number)), running(&lab, None));
    let (objects, before) = (settled_bpf_objects(), attached(&lab));
    for (name, words) in [
        ("wild", ["invalid access to memory", "min value", "unbounded memory", "outside of"].as_slice()),
        ("endless", &["infinite loop detected", "back-edge"]),
        ("complex", &["too large. Processed", "too complex"]),
        ("stack", &["combined stack size", "stack"]),
    ] {
        let path = program_file(folder.path(), name).unwrap();
        let parts = [path.to_str().unwrap(), "the kernel's verifier refuses it", "WIRELANE_LOG=debug"];
        let said = assert_refused(&lab, &path, &[], &parts);
        let log: Vec<&str> = said.lines().skip(1).collect();
        assert!(
            (1..=10).contains(&log.len()) && log.iter().all(|line| line.starts_with("  ")),
            "{name}: {said}"
        );
        assert!(words.iter().any(|word| log.iter().any(|line| line.contains(word))), "{name}: {said}");
    }
    assert_eq!(attached(&lab), before, "the program on the device was replaced");
    assert_eq!(wait_for_bpf_objects(&objects, Duration::from_secs(10)), objects);
    assert_undisturbed(&lab, by_number, plain);
}

/// A refused first capture of a device leaves nothing on it.
/// Battery: S12
#[test]
fn a_refused_program_leaves_nothing_behind() {
    if !require_root("a_refused_program_leaves_nothing_behind") {
        return;
    }
    let lab = Lab::with(&LabOptions { alone: true, ..LabOptions::default() }).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let before = settled_bpf_objects();
    for (name, reason) in
        [("endless", "verifier refuses it"), ("undefined", "elsewhere"), ("map", "has a map 'turns'")]
    {
        let path = program_file(folder.path(), name).unwrap();
        for hook in ["native", "generic", "tc", "clsact"] {
            assert_refused(&lab, &path, &["--hook", hook], &[reason]);
            assert_eq!(wait_for_bpf_objects(&before, Duration::from_secs(10)), before, "{name}, {hook}");
        }
    }
}

/// File names and their contents are untrusted: they must not have an effect on a terminal.
#[test]
fn names_are_written_out_and_not_acted_on() {
    if !require_root("names_are_written_out_and_not_acted_on") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    // A section whose name is an escape sequence.
    let (from, to) = (b"_[31mxdp", b"\x1b[31mxdp");
    let mut object = program_object("section").unwrap().to_vec();
    let places: Vec<usize> =
        (0..object.len() - from.len()).filter(|at| object[*at..].starts_with(from)).collect();
    assert!(!places.is_empty());
    for at in places {
        object[at..at + to.len()].copy_from_slice(to);
    }
    let path = write(folder.path(), "\x1b[2Jclear\n.bpf.o", &object);
    let name = format!("{}/\\u{{1b}}[2Jclear\\n.bpf.o", folder.path().display());
    let said = assert_refused(&lab, &path, &[], &[&name, "\\u{1b}[31mxdp", "a program of its own"]);
    assert_eq!(said.lines().count(), 1, "{said}");
    // The name of an undefined function.
    let mut object = program_object("undefined").unwrap().to_vec();
    let from = b"elsewhere\0";
    for at in 0..object.len() - from.len() {
        if object[at..].starts_with(from) {
            object[at..at + 4].copy_from_slice(b"\x1b[2J");
        }
    }
    let path = write(folder.path(), "undefined.bpf.o", &object);
    assert_refused(&lab, &path, &[], &["uses '\\u{1b}[2Jwhere'"]);
    for path in [path, folder.path().join("\x1b[2Jclear\n.bpf.o"), folder.path().join("\x1b[2Jnowhere")] {
        let said = start(&lab, &path, &[]).finish(LIMIT).unwrap().stderr;
        // The program's own colours are not used when standard error is not a terminal.
        assert!(!said.contains('\x1b'), "{said:?}");
    }
}

#[test]
fn other_engines_and_other_steering_refuse_a_program() {
    if !require_root("other_engines_and_other_steering_refuse_a_program") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let program = program_file(folder.path(), "number").unwrap();
    for options in [["--engine", "packet"].as_slice(), &["--engine", "xsk", "--exclusive"]] {
        let parts = ["--steering-program", &format!("engine {}", options[1]), "--engine ring"];
        assert_refused(&lab, &program, options, &parts);
    }
    assert_refused(&lab, &program, &["--workers", "2", "--balance", "adaptive"], &["--balance", "'static'"]);

    let end = lab.receiver();
    let program = program.to_str().unwrap();
    let refused = |words: &[&str]| {
        let words = [&["count", "--steering-program", program], words].concat();
        wirelane(&lab, &end.namespace, &words).unwrap().finish(LIMIT).unwrap()
    };
    let steering = refused(&["-i", &end.device, "--steering", "vlan"]);
    assert_eq!(steering.status.code(), Some(2), "{}", steering.stderr);
    assert!(steering.stderr.contains("--steering"), "{}", steering.stderr);
    let file = write(folder.path(), "empty.pcap", b"");
    let file = refused(&["-r", file.to_str().unwrap()]);
    assert_eq!(file.status.code(), Some(2), "{}", file.stderr);
    for part in ["--steering-program", "for devices, not for files"] {
        assert!(file.stderr.contains(part), "{}", file.stderr);
    }
}
