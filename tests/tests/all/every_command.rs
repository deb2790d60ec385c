//! Properties of every command that captures: no thread keeps rights, an attacker in the process reaches nothing, and
//! the device sends nothing.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::ExitStatusExt as _;

use wirelane_tests::commands::capturing;
use wirelane_tests::numbers::{LIMIT, capture, column, finish, send};
use wirelane_tests::{Child, End, Lab, require_root};

/// Starts a command on the lab's receiver.
fn start(lab: &Lab, words: &[String], options: &[&str]) -> Child {
    let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
    words.extend(["-i", &lab.receiver().device, "--json"]);
    words.extend(options);
    let child = capture(lab, &words).unwrap_or_else(|error| panic!("{words:?}: {error:#}"));
    // Only the start of threads follows 'ready'.
    std::thread::sleep(std::time::Duration::from_millis(200));
    child
}

/// Asserts that every thread runs as another user than root, without capabilities except the one to write into a folder
/// of root's if there is one, and behind seccomp.
fn assert_confined(words: &[String], pid: u32) {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let mut threads = 0;
    for task in tasks {
        // A thread may end meanwhile.
        let Ok(status) = fs::read_to_string(task.unwrap().path().join("status")) else { continue };
        let lines: BTreeMap<&str, &str> = status
            .lines()
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name, value.trim()))
            .collect();
        assert!(lines["Uid"].split_whitespace().all(|id| id != "0"), "{words:?}: {status}");
        for set in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
            // CAP_DAC_OVERRIDE, bounded by Landlock, if files go into a folder of root's.
            let set = u64::from_str_radix(lines[set], 16).unwrap();
            assert_eq!(set & !(1 << 1), 0, "{words:?}: {status}");
        }
        assert_eq!((lines["NoNewPrivs"], lines["Seccomp"]), ("1", "2"), "{words:?}: {status}");
        threads += 1;
    }
    assert!(threads >= 2, "{words:?}: {threads} threads");
}

/// Packets received and transmitted, as the device counts them.
fn counters(lab: &Lab, end: &End) -> (u64, u64) {
    let text = lab.exec(&end.namespace, &["ip", "-s", "-json", "link", "show", &end.device]).unwrap();
    let link: serde_json::Value = serde_json::from_str(&text).unwrap();
    let stats = &link[0]["stats64"];
    (column(&stats["rx"], "packets"), column(&stats["tx"], "packets"))
}

/// From before the start to after the end no packet leaves the device; the packets have addresses without a host.
/// Battery: S1, S9
#[test]
fn no_command_keeps_rights_or_sends_anything() {
    if !require_root("no_command_keeps_rights_or_sends_anything") {
        return;
    }
    let lab = Lab::new(2).unwrap();
    let folder = tempfile::tempdir().unwrap();
    for words in capturing(folder.path()).unwrap() {
        let before = (counters(&lab, lab.sender()), counters(&lab, lab.receiver()));
        let child = start(&lab, &words, &[]);
        assert_confined(&words, child.pid());
        send(&lab, 2048, &["--flows", "2048", "--pattern", "sources"]).unwrap();
        let last = finish(child).unwrap();
        assert_eq!(column(&last, "seen"), 2048, "{words:?}");
        let after = (counters(&lab, lab.sender()), counters(&lab, lab.receiver()));
        assert_eq!((after.1.1 - before.1.1, after.0.0 - before.0.0), (0, 0), "{words:?} sent something");
        assert_eq!(after.1.0 - before.1.0, 2048, "{words:?}");
    }
}

/// Makes a thread that waits in the kernel issue another system call when it resumes, as an attacker in control of it
/// would.
#[cfg(target_arch = "x86_64")]
fn inject(pid: u32, number: libc::c_long) {
    use nix::sys::ptrace;
    use nix::sys::wait::{WaitStatus, waitpid};
    let pid = nix::unistd::Pid::from_raw(pid.cast_signed());
    ptrace::attach(pid).unwrap();
    let stopped = waitpid(pid, None).unwrap();
    assert!(matches!(stopped, WaitStatus::Stopped(..)), "{stopped:?}");
    let mut registers = ptrace::getregs(pid).unwrap();
    // Back to the instruction that entered the kernel, without a restart of the interrupted call.
    registers.rip -= 2;
    registers.orig_rax = u64::MAX;
    registers.rax = number.cast_unsigned();
    (registers.rdi, registers.rsi, registers.rdx, registers.r10) = (0, 0, 0, 0);
    ptrace::setregs(pid, registers).unwrap();
    ptrace::detach(pid, None).unwrap();
}

/// Calls that no allow list contains, in every command that captures.
/// Battery: S2
#[test]
#[cfg(target_arch = "x86_64")]
fn no_command_survives_a_forbidden_call() {
    if !require_root("no_command_survives_a_forbidden_call") {
        return;
    }
    let calls = [
        ("execve", libc::SYS_execve),
        ("ptrace", libc::SYS_ptrace),
        ("mount", libc::SYS_mount),
        ("setuid", libc::SYS_setuid),
        ("init_module", libc::SYS_init_module),
    ];
    let lab = Lab::new(1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    // Another call for each command, so that each call is made a few times.
    for (number, words) in capturing(folder.path()).unwrap().iter().enumerate() {
        let (name, call) = calls[number % calls.len()];
        let child = start(&lab, words, &[]);
        inject(child.pid(), call);
        let finished = child.finish(LIMIT).unwrap();
        assert_eq!(finished.status.signal(), Some(libc::SIGSYS), "{words:?}, {name}: {}", finished.stderr);
    }
}
