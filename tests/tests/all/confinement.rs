//! Rights are given up once a command is set up: the user and capabilities of each thread, and attacks by a compromised
//! process.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use wirelane_tests::numbers::{LIMIT, capture, column, finish, send, wirelane};
use wirelane_tests::{Child, Lab, Signal, corpus, require_root, wirelane_binary};

const NOBODY: &str = "65534";
/// Mask of the capability with bit 1 (linux/capability.h).
const DAC_OVERRIDE: u64 = 1 << 1;

/// `/proc/PID/task/TID/status` of each thread, as its lines by name.
fn threads(pid: u32) -> Vec<BTreeMap<String, String>> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let status = |task: std::io::Result<std::fs::DirEntry>| {
        // A thread may end meanwhile.
        std::fs::read_to_string(task.ok()?.path().join("status")).ok()
    };
    let lines = |text: String| {
        let line = |line: &str| line.split_once(':').map(|(name, value)| (name.into(), value.trim().into()));
        text.lines().filter_map(line).collect()
    };
    tasks.filter_map(status).map(lines).collect()
}

/// Every thread has this user (all four of its ids), exactly these capabilities, and all restrictions.
fn assert_confined(pid: u32, uid: &str, gid: &str, capabilities: u64, at_least: usize) {
    let threads = threads(pid);
    assert!(threads.len() >= at_least, "{} threads", threads.len());
    for thread in threads {
        let of = |name: &str| thread.get(name).unwrap_or_else(|| panic!("no {name} in {thread:?}")).as_str();
        let same = |name: &str, id: &str| assert!(of(name).split_whitespace().all(|i| i == id), "{thread:?}");
        same("Uid", uid);
        same("Gid", gid);
        let set = |name: &str| u64::from_str_radix(of(name), 16).unwrap();
        assert_eq!((set("CapEff"), set("CapPrm")), (capabilities, capabilities), "{thread:?}");
        assert_eq!((set("CapInh"), set("CapAmb")), (0, 0), "{thread:?}");
        assert_eq!((of("NoNewPrivs"), of("Seccomp")), ("1", "2"), "{thread:?}");
    }
}

/// Battery: S1
#[test]
fn every_thread_of_a_capture_has_no_rights() {
    if !require_root("every_thread_of_a_capture_has_no_rights") {
        return;
    }
    let lab = Lab::new(2).unwrap();
    let device = lab.receiver().device.as_str();
    let roots = tempfile::tempdir().unwrap();
    let theirs = tempfile::tempdir().unwrap();
    chown(theirs.path(), Some(65534), Some(65534)).unwrap();
    let path = |folder: &Path| folder.join("out.pcapng").to_str().unwrap().to_owned();
    let (in_roots, in_theirs) = (path(roots.path()), path(theirs.path()));
    let count = ["count", "-i", device, "--json"];
    let record = ["record", "-i", device, "--json", "-w"];
    let files = format!("{}/many.pcapng", theirs.path().display());
    let flows_file = format!("file:{}/flows.json", roots.path().display());
    let cases: [(Vec<&str>, u64); 10] = [
        ([&count[..], &["--workers", "2"]].concat(), 0),
        ([&count[..], &["--direction", "both"]].concat(), 0),
        ([&count[..], &["--hook", "generic"]].concat(), 0),
        ([&count[..], &["--hook", "clsact"]].concat(), 0),
        ([&count[..], &["--workers", "2", "--balance", "adaptive"]].concat(), 0),
        ([&record[..], &[&in_theirs]].concat(), 0),
        // Writers, a finisher, and one that receives commands from the helper.
        (
            [
                &record[..],
                &[
                    &files,
                    "--workers",
                    "2",
                    "--rotate-packets",
                    "20",
                    "--compress",
                    "zstd",
                    "--keep-files",
                    "4",
                ],
                &["--post-rotate", "true"],
            ]
            .concat(),
            0,
        ),
        ([&record[..], &[&in_roots]].concat(), DAC_OVERRIDE),
        ([&record[..], &["/dev/null"]].concat(), 0),
        // The file is open by then, wherever it is; connections are made later, by the exporting thread.
        (
            vec![
                "flows",
                "-i",
                device,
                "--json",
                "--export",
                &flows_file,
                "--export",
                "ipfix://127.0.0.1:4739?transport=tcp",
                "--export-wait",
                "0.1",
            ],
            0,
        ),
    ];
    for (words, capabilities) in cases {
        let child = capture(&lab, &words).unwrap();
        // Only the start of threads follows 'ready'.
        std::thread::sleep(Duration::from_millis(200));
        // The main thread, the maintenance thread, the signal thread, and a worker.
        assert_confined(child.pid(), NOBODY, NOBODY, capabilities, 4);
        send(&lab, 100, &[]).unwrap();
        // Leaving the instance and reading the counters at the end do not need rights either.
        assert_eq!(column(&finish(child).unwrap(), "analysed"), 100, "{words:?}");
    }
    for file in [&in_theirs, &in_roots] {
        let metadata = std::fs::metadata(file).unwrap();
        assert_eq!((metadata.uid(), metadata.permissions().mode() & 0o777), (65534, 0o600), "{file}");
    }
}

/// Battery: S1
#[test]
fn reading_a_file_is_done_as_nobody() {
    if !require_root("reading_a_file_is_done_as_nobody") {
        return;
    }
    let Some(corpus) = corpus("reading_a_file_is_done_as_nobody") else { return };
    // A pipe that stays open keeps the command waiting for more input.
    let capture = std::fs::read(corpus.join("captures/apps/arkime--dns-flags0000.pcap")).unwrap();
    for words in [&["count", "-r", "-", "--json"][..], &["record", "-r", "-", "-w", "/dev/null", "--json"]] {
        let mut command = Command::new(wirelane_binary().unwrap());
        command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut pipe = child.stdin.take().unwrap();
        pipe.write_all(&capture).unwrap();
        let mut ready = String::new();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        lines.read_line(&mut ready).unwrap();
        assert!(ready.contains("\"ready\":true"), "{ready}");
        assert_confined(child.id(), NOBODY, NOBODY, 0, 2);
        drop(pipe);
        let last = lines.lines().last().unwrap().unwrap();
        assert_eq!(column(&serde_json::from_str(&last).unwrap(), "analysed"), 2);
        assert!(child.wait().unwrap().success());
    }
}

/// Battery: S1
#[test]
fn sending_has_no_rights_either() {
    if !require_root("sending_has_no_rights_either") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    // A device accepts frames from inside the kernel if its peer has an XDP program. The kernel's generator needs
    // native XDP at the other end.
    let words = ["count", "-i", &lab.receiver().device, "--hook", "native", "--json"];
    let receiver = capture(&lab, &words).unwrap();
    let mut sent = 0;
    for method in ["socket", "kernel"] {
        let sender = lab.sender();
        let words = [
            "send",
            "-i",
            &sender.device,
            "--method",
            method,
            "--rate",
            "1000",
            "--interval",
            "0.1",
            "--json",
        ];
        let child: Child = wirelane(&lab, &sender.namespace, &words).unwrap();
        child.next_json(LIMIT).unwrap().unwrap();
        assert_confined(child.pid(), NOBODY, NOBODY, 0, 2);
        let finished = child.terminate(LIMIT).unwrap();
        assert!(finished.status.success(), "{method}: {}", finished.stderr);
        let last = finished.last_json().unwrap();
        assert_eq!(column(&last, "offered"), column(&last, "sent"), "{method}");
        sent += column(&last, "sent");
    }
    assert_eq!(column(&finish(receiver).unwrap(), "seen"), sent);
}

#[test]
fn whom_to_become_is_the_callers_choice() {
    if !require_root("whom_to_become_is_the_callers_choice") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let end = lab.receiver();
    let words = ["count", "-i", &end.device, "--json"];
    let with = |more: &[&str], environment: &[(&str, &str)]| {
        let mut command = lab.command(&end.namespace, wirelane_binary().unwrap());
        command.args(words).args(more).envs(environment.iter().copied());
        let mut child = Child::spawn(&mut command).unwrap();
        child.wait_ready(LIMIT).unwrap();
        child
    };
    let sudo = [("SUDO_UID", "12345"), ("SUDO_GID", "23456")];
    for (more, environment, uid, gid) in [
        (&["--user", "root"][..], &[][..], "0", "0"),
        (&["--user", "nobody"], &sudo, NOBODY, NOBODY),
        (&[], &sudo, "12345", "23456"),
        (&[], &[("SUDO_UID", "0"), ("SUDO_GID", "0")], NOBODY, NOBODY),
    ] {
        let child = with(more, environment);
        assert_confined(child.pid(), uid, gid, 0, 3);
        finish(child).unwrap();
    }
    let kept = with(&["--keep-rights"], &sudo);
    assert!(threads(kept.pid()).iter().all(|thread| thread["Seccomp"] == "0"));
    finish(kept).unwrap();

    let unknown =
        wirelane(&lab, &end.namespace, &[&words[..], &["--user", "no-such-user"]].concat()).unwrap();
    let unknown = unknown.finish(LIMIT).unwrap();
    assert_eq!(unknown.status.code(), Some(2), "{}", unknown.stderr);
    assert!(unknown.stderr.contains("no user 'no-such-user'"), "{}", unknown.stderr);

    // A write right below the root folder would be a right to everything.
    let file = "/wirelane-confinement-test.pcapng";
    let words = ["record", "-i", &end.device, "-c", "0", "-w", file];
    let refused = wirelane(&lab, &end.namespace, &words).unwrap().finish(LIMIT).unwrap();
    assert_eq!(refused.status.code(), Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("nobody may not write to /"), "{}", refused.stderr);
    assert!(!Path::new(file).exists());
}

/// Runs a process that gives up its rights and then tries the action `name`.
fn attempt(name: &str, folder: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_try-confined")).arg(name).arg(folder).output().unwrap()
}

/// Battery: S2, S3
#[test]
fn a_process_that_was_taken_over_reaches_nothing() {
    if !require_root("a_process_that_was_taken_over_reaches_nothing") {
        return;
    }
    // The user nobody has no right to the folder itself, so the process keeps CAP_DAC_OVERRIDE: the worst case.
    let folder = tempfile::tempdir().unwrap();
    for name in ["execve", "fork", "socket", "ptrace", "bpf", "setuid"] {
        let output = attempt(name, folder.path());
        assert_eq!(output.status.signal(), Some(libc::SIGSYS), "{name}: {output:?}");
    }
    std::fs::write(folder.path().join("other.pcapng"), b"recorded before").unwrap();
    for name in ["shadow", "passwd", "outside", "other"] {
        let output = attempt(name, folder.path());
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(said.contains("Permission denied"), "{name}: {output:?}");
    }
    for name in ["nothing", "inside", "thread"] {
        let output = attempt(name, folder.path());
        assert_eq!(String::from_utf8_lossy(&output.stdout), "allowed\n", "{name}: {output:?}");
    }
    assert_eq!(std::fs::read(folder.path().join("out.pcapng")).unwrap(), b"inside");
    let output = attempt("threads", folder.path());
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("2 threads run already"), "{output:?}");
}

#[test]
fn a_capability_that_is_asked_for_is_kept_and_no_other() {
    if !require_root("a_capability_that_is_asked_for_is_kept_and_no_other") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_try-confined"));
    let mut child =
        command.arg("keep").arg(folder.path()).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    const NET_RAW: u64 = 1 << 13;
    assert_confined(child.id(), NOBODY, NOBODY, NET_RAW | DAC_OVERRIDE, 1);
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}

/// Root without capabilities is not root; missing capabilities are reported before anything is attached.
/// Battery: F9, S5
#[test]
fn without_capabilities_nothing_is_attached() {
    if !require_root("without_capabilities_nothing_is_attached") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let end = lab.receiver();
    let binary = wirelane_binary().unwrap();
    let binary = binary.to_str().unwrap();
    let output = format!("{}/out.pcapng", tempfile::tempdir().unwrap().path().display());
    // With CAP_NET_RAW, 'auto' would be engine packet (tests/engine_choice.rs).
    for (dropped, missing, engine) in [
        ("-all", "CAP_BPF, CAP_NET_ADMIN, CAP_NET_RAW", "ring"),
        ("-all", "CAP_BPF, CAP_NET_ADMIN, CAP_NET_RAW", "auto"),
        ("-net_admin", "CAP_NET_ADMIN", "ring"),
        ("-net_raw", "CAP_NET_RAW", "ring"),
        ("-net_raw", "CAP_NET_RAW", "auto"),
    ] {
        for command in [&["count"][..], &["record", "-w", &output]] {
            let bounding = format!("--bounding-set={dropped}");
            let words = ["setpriv", &bounding, "--inh-caps=-all", binary];
            let options = ["-i", &end.device, "--engine", engine, "--duration", "1", "--json"];
            let words = [&words[..], command, &options].concat();
            let finished = lab.spawn(&end.namespace, &words).unwrap().finish(LIMIT).unwrap();
            assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
            assert!(finished.stderr.contains(missing), "{dropped}, {engine}: {}", finished.stderr);
            assert!(finished.lines.is_empty(), "{:?}", finished.lines);
            let link = lab.exec(&end.namespace, &["ip", "-d", "link", "show", &end.device]).unwrap();
            assert!(!link.contains("xdp") && !link.contains("PROMISC"), "{link}");
            assert!(!Path::new(&output).exists());
        }
    }
}

/// A confined capture clears the slot of a killed process, which needs socketpair(2) and bpf(2).
#[test]
fn a_confined_capture_clears_up_after_others_and_leaves_nothing() {
    if !require_root("a_confined_capture_clears_up_after_others_and_leaves_nothing") {
        return;
    }
    let lab = Lab::new(2).unwrap();
    let words = ["count", "-i", &lab.receiver().device, "--json", "--workers", "2"];
    let survivor = capture(&lab, &words).unwrap();
    let victim = capture(&lab, &words).unwrap();
    victim.signal(Signal::Kill).unwrap();
    victim.finish(LIMIT).unwrap();
    std::thread::sleep(Duration::from_millis(700));
    send(&lab, 500, &[]).unwrap();
    let finished = survivor.terminate(LIMIT).unwrap();
    assert!(finished.status.success() && !finished.stderr.contains("WARN"), "{}", finished.stderr);
    assert_eq!(column(&finished.last_json().unwrap(), "analysed"), 500);
}
