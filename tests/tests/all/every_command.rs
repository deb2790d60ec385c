//! Properties of every command that captures: no thread keeps rights, an attacker in the process reaches nothing, and
//! the device sends nothing.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;

use wirelane_tests::commands::{capturing, reading};
use wirelane_tests::numbers::{LIMIT, capture, column, finish, last_of, send, wirelane};
use wirelane_tests::recordings::{NOON_NS, write_header, write_packet};
#[cfg(target_arch = "x86_64")]
use wirelane_tests::seccomp::Filters;
use wirelane_tests::{Child, End, Lab, require_root, wirelane_binary};

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

/// Asserts that the filters of this process kill it on each call that an attacker would want, and on no call of its work.
#[cfg(target_arch = "x86_64")]
fn assert_filtered(words: &[String], pid: u32) {
    const KILL: u32 = libc::SECCOMP_RET_KILL_PROCESS;
    let filters = Filters::of(pid).unwrap();
    assert!(filters.len() >= 2, "{words:?}: {} filters", filters.len());
    let action = |call, first: libc::c_int, second: libc::c_int| {
        let arguments = [first, second, 0, 0, 0, 0].map(|argument| u64::from(argument.cast_unsigned()));
        filters.action(call, arguments).unwrap()
    };
    for call in [libc::SYS_read, libc::SYS_write, libc::SYS_futex, libc::SYS_exit_group] {
        assert_eq!(action(call, 0, 0), libc::SECCOMP_RET_ALLOW, "{words:?}: call {call}");
    }
    for call in [
        libc::SYS_execve,
        libc::SYS_execveat,
        libc::SYS_fork,
        libc::SYS_vfork,
        libc::SYS_clone,
        libc::SYS_ptrace,
        libc::SYS_process_vm_writev,
        libc::SYS_seccomp,
        libc::SYS_setuid,
        libc::SYS_mount,
    ] {
        assert_eq!(action(call, 0, 0), KILL, "{words:?}: call {call}");
    }
    for family in
        [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK, libc::AF_PACKET, libc::AF_XDP]
    {
        for kind in [libc::SOCK_DGRAM, libc::SOCK_RAW] {
            assert_eq!(action(libc::SYS_socket, family, kind), KILL, "{words:?}: socket({family}, {kind})");
        }
    }
    // BPF_MAP_CREATE, BPF_PROG_LOAD, BPF_OBJ_PIN, BPF_PROG_ATTACH, BPF_PROG_GET_FD_BY_ID, BPF_RAW_TRACEPOINT_OPEN,
    // BPF_LINK_CREATE.
    for command in [0, 5, 6, 8, 13, 17, 28] {
        assert_eq!(action(libc::SYS_bpf, command, 0), KILL, "{words:?}: bpf({command})");
    }
}

/// The filters themselves are evaluated, so that every call is tried in every command: those that capture, those that
/// read a file, and the sender.
/// Battery: S2
#[test]
#[cfg(target_arch = "x86_64")]
fn the_filters_of_every_command_kill_on_execve_socket_ptrace_and_bpf() {
    if !require_root("the_filters_of_every_command_kill_on_execve_socket_ptrace_and_bpf") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    for words in capturing(folder.path()).unwrap() {
        let child = start(&lab, &words, &[]);
        assert_filtered(&words, child.pid());
        finish(child).unwrap();
    }
    let end = lab.sender();
    let words = ["send", "-i", &end.device, "--rate", "1000", "--interval", "0.1", "--json"];
    let sender = wirelane(&lab, &end.namespace, &words).unwrap();
    sender.next_json(LIMIT).unwrap().unwrap();
    assert_filtered(&["send".to_owned()], sender.pid());
    assert!(sender.terminate(LIMIT).unwrap().status.success());
    // A pipe that stays open keeps a command waiting for more input.
    let pipe = folder.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
    for words in reading(folder.path()).unwrap() {
        let mut command = Command::new(wirelane_binary().unwrap());
        let mut child = Child::spawn(command.args(&words).args(["--json", "-r"]).arg(&pipe)).unwrap();
        let mut input = File::options().write(true).open(&pipe).unwrap();
        write_header(&mut input).unwrap();
        write_packet(&mut input, NOON_NS, &[0; 60]).unwrap();
        input.flush().unwrap();
        child.wait_ready(LIMIT).unwrap();
        assert_filtered(&words, child.pid());
        drop(input);
        assert_eq!(column(&last_of(&child.finish(LIMIT).unwrap()).unwrap(), "analysed"), 1, "{words:?}");
    }
}
