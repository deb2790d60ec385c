//! Missing rights and limits of the process: a capture is exact, or refused with the name of the limit, or done by
//! packet sockets if '--engine auto' allows that, and leaves nothing behind.

use std::time::Duration;

use wirelane_tests::numbers::{LIMIT, column, finish, send};
use wirelane_tests::{
    Child, ControlGroup, Finished, Lab, LabOptions, require_root, settled_bpf_objects, wait_for_bpf_objects,
    wirelane_binary,
};

const SENT: u64 = 3000;

/// A lab without others beside it: these tests compare the machine's BPF objects before and after.
fn alone() -> Lab {
    Lab::with(&LabOptions { queues: 2, alone: true, ..LabOptions::default() }).unwrap()
}

/// `wirelane count` on the lab's receiver, started by a program that limits it.
fn limited(lab: &Lab, prefix: &[&str], options: &[&str]) -> Child {
    let binary = wirelane_binary().unwrap();
    let end = lab.receiver();
    let command = [binary.to_str().unwrap(), "count", "-i", &end.device, "--json"];
    lab.spawn(&end.namespace, &[prefix, &command[..], options].concat()).unwrap()
}

/// `wirelane count` under a limit of the shell's `ulimit`, hard and soft, as in "-n 20".
fn under(lab: &Lab, limit: &str, options: &[&str]) -> Child {
    limited(lab, &["sh", "-c", &format!("ulimit {limit} && exec \"$0\" \"$@\"")], options)
}

/// Asserts a refusal with exit status 1, without a ready line. Returns standard error.
fn refused(case: &str, child: Child) -> String {
    let finished: Finished = child.finish(LIMIT).unwrap();
    assert_eq!(finished.status.code(), Some(1), "{case}: {}", finished.stderr);
    assert!(finished.json().unwrap().is_empty(), "{case}: it was ready and then failed");
    finished.stderr
}

/// Asserts that the program is ready and counts each packet.
fn exact(case: &str, lab: &Lab, mut child: Child) {
    child.wait_ready(LIMIT).unwrap();
    send(lab, SENT, &[]).unwrap();
    let last = finish(child).unwrap();
    let counts = ["seen", "analysed", "lost"].map(|name| column(&last, name));
    assert_eq!(counts, [SENT, SENT, 0], "{case}");
}

/// Asserts that engine packet captures each packet in place of ring, and that the command reports why.
fn replaced(case: &str, lab: &Lab, child: Child, why: &[&str]) {
    let ready = child.next_json(LIMIT).unwrap().unwrap();
    assert_eq!((&ready["ready"], &ready["engine"]), (&true.into(), &"packet".into()), "{case}: {ready}");
    send(lab, SENT, &["--rate", "50k"]).unwrap();
    let finished = child.terminate(LIMIT).unwrap();
    assert!(finished.status.success(), "{case}: {}", finished.stderr);
    let last = finished.last_json().unwrap();
    let counts = ["seen", "analysed", "lost"].map(|name| column(&last, name));
    assert_eq!(counts, [SENT, SENT, 0], "{case}");
    for part in why.iter().chain(&["engine packet"]) {
        assert!(finished.stderr.contains(part), "{case}: no {part} in {}", finished.stderr);
    }
}

/// Battery: F8
#[test]
fn no_locked_memory_is_needed() {
    if !require_root("no_locked_memory_is_needed") {
        return;
    }
    // Since Linux 5.11 BPF memory is charged to the cgroup, not to RLIMIT_MEMLOCK. Root has CAP_SYS_RESOURCE, which
    // would raise the limit again: it is taken away here.
    let lab = alone();
    let before = settled_bpf_objects();
    let prefix =
        ["prlimit", "--memlock=0:0", "setpriv", "--bounding-set=-sys_resource", "--inh-caps=-sys_resource"];
    exact("memlock 0", &lab, limited(&lab, &prefix, &[]));
    assert_eq!(wait_for_bpf_objects(&before, Duration::from_secs(5)), before);
}

/// Battery: F8
#[test]
fn too_few_descriptors_are_refused_with_the_limit() {
    if !require_root("too_few_descriptors_are_refused_with_the_limit") {
        return;
    }
    let lab = alone();
    let before = settled_bpf_objects();
    // From too few descriptors for almost everything to enough: every step of the set-up hits the limit once.
    let (mut refusals, mut captures) = (0, 0);
    for files in [8, 12, 16, 20, 24, 28, 32, 40, 48, 128] {
        let case = format!("{files} descriptors");
        let mut child = under(&lab, &format!("-n {files}"), &[]);
        match child.wait_ready(LIMIT) {
            Ok(()) => {
                send(&lab, SENT, &[]).unwrap();
                let last = finish(child).unwrap();
                assert_eq!((column(&last, "analysed"), column(&last, "lost")), (SENT, 0), "{case}");
                captures += 1;
            }
            // The error has what was on standard error.
            Err(error) => {
                let error = error.to_string();
                assert!(
                    error.contains("ulimit -n") && error.contains(&format!("{files} ")),
                    "{case}: {error}"
                );
                assert_eq!(child.finish(LIMIT).unwrap().status.code(), Some(1), "{case}: {error}");
                refusals += 1;
            }
        }
        assert_eq!(wait_for_bpf_objects(&before, Duration::from_secs(5)), before, "{case}");
    }
    assert!(refusals > 2 && captures > 0, "{refusals} refused, {captures} captured");
}

/// Battery: F8
#[test]
fn too_little_address_space_is_refused_with_what_was_asked_for() {
    if !require_root("too_little_address_space_is_refused_with_what_was_asked_for") {
        return;
    }
    let lab = alone();
    let before = settled_bpf_objects();
    // The program's own address space depends on the build.
    let mut child = limited(&lab, &["env"], &["--ring-size", "1"]);
    child.wait_ready(LIMIT).unwrap();
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.pid())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmPeak:")?.split_whitespace().next());
    let peak: u64 = peak.unwrap().parse().unwrap();
    finish(child).unwrap();
    let limit = format!("-v {}", peak + (32 << 10));
    assert_eq!(wait_for_bpf_objects(&before, Duration::from_secs(5)), before);
    // Two rings of 128 MiB where rings of 1 MiB and 32 MiB more would fit.
    let error = refused(&limit, under(&lab, &limit, &["--ring-size", "128"]));
    // Each MiB of ring is followed by its slack, so the map is larger than the rings.
    assert!(error.contains(" MiB for 2 rings of 128 MiB"), "{error}");
    assert!(error.contains("ulimit -v") && error.contains("--ring-size"), "{error}");
    assert_eq!(wait_for_bpf_objects(&before, Duration::from_secs(5)), before);
    // Smaller rings fit.
    exact("rings of 1 MiB", &lab, under(&lab, &limit, &["--ring-size", "1"]));
    assert_eq!(wait_for_bpf_objects(&before, Duration::from_secs(5)), before);
}

/// Battery: F9
#[test]
fn without_bpf_the_missing_capability_is_named() {
    if !require_root("without_bpf_the_missing_capability_is_named") {
        return;
    }
    let lab = alone();
    let before = settled_bpf_objects();
    for (taken, named) in
        [("-bpf,-sys_admin", "CAP_BPF"), ("-net_admin", "CAP_NET_ADMIN"), ("-all", "CAP_NET_ADMIN")]
    {
        let (bounding, inherited) = (format!("--bounding-set={taken}"), format!("--inh-caps={taken}"));
        let prefix = ["setpriv", &bounding, &inherited];
        let error = refused(taken, limited(&lab, &prefix, &["--engine", "ring"]));
        assert!(error.contains("missing") && error.contains(named), "{taken}: {error}");
        assert_eq!(wait_for_bpf_objects(&before, Duration::from_secs(5)), before, "{taken}");
        let child = limited(&lab, &prefix, &["--engine", "auto"]);
        if taken == "-all" {
            // Packet sockets need CAP_NET_RAW. The error names the capability that the better engine lacks.
            let error = refused(taken, child);
            assert!(error.contains("missing") && error.contains(named), "{taken}, auto: {error}");
        } else {
            replaced(taken, &lab, child, &["missing", named]);
        }
        assert_eq!(wait_for_bpf_objects(&before, Duration::from_secs(5)), before, "{taken}, auto");
    }
}

/// Battery: F9
#[test]
fn a_user_namespace_is_said_to_be_in_the_way() {
    if !require_root("a_user_namespace_is_said_to_be_in_the_way") {
        return;
    }
    let lab = alone();
    let before = settled_bpf_objects();
    // The process seems to have every capability there, and the kernel does not accept them for BPF.
    let error = refused("user namespace", limited(&lab, &["unshare", "--user", "--map-root-user"], &[]));
    assert!(error.contains("CAP_BPF") && error.contains("user namespace"), "{error}");
    assert_eq!(wait_for_bpf_objects(&before, Duration::from_secs(5)), before);
}

/// Rings are allocated before the first packet, within the limit: rings that do not fit are refused and the process is
/// not killed, and rings that fit work under load.
/// Battery: F8
#[test]
fn a_control_group_refuses_rings_and_kills_nobody() {
    const NAME: &str = "a_control_group_refuses_rings_and_kills_nobody";
    if !require_root(NAME) {
        return;
    }
    let lab = alone();
    let before = settled_bpf_objects();
    let Some(group) = ControlGroup::limited(NAME, 64 << 20) else { return };
    let inside = |ring: &str| {
        let end = lab.receiver();
        // Before `ip netns exec`, which mounts another /sys for the program.
        let mut command = group.command("ip");
        command.args(["netns", "exec", &end.namespace]).arg(wirelane_binary().unwrap());
        command.args(["count", "-i", &end.device, "--json", "--ring-size", ring]);
        Child::spawn(&mut command).unwrap()
    };
    let error = refused("64 MiB, rings of 128 MiB", inside("128"));
    assert!(error.contains(" MiB for 2 rings of 128 MiB") && error.contains("control group"), "{error}");
    assert!(error.contains("--ring-size"), "{error}");
    assert_eq!(wait_for_bpf_objects(&before, Duration::from_secs(5)), before);
    exact("64 MiB, rings of 4 MiB", &lab, inside("4"));
    assert_eq!(group.killed(), 0);
    assert_eq!(wait_for_bpf_objects(&before, Duration::from_secs(5)), before);
}

/// A seccomp filter that forbids bpf(2), as in containers and services, and a kernel without bpf(2).
/// Battery: F9
#[test]
fn a_forbidden_bpf_call_is_said_to_be_that() {
    if !require_root("a_forbidden_bpf_call_is_said_to_be_that") {
        return;
    }
    let lab = alone();
    let before = settled_bpf_objects();
    let helper = wirelane_binary().unwrap().with_file_name("without-bpf");
    let helper = helper.to_str().unwrap();
    for (answer, parts) in
        [("EPERM", ["seccomp", "SystemCallFilter="]), ("ENOSYS", ["no bpf(2)", "CONFIG_BPF_SYSCALL"])]
    {
        replaced(answer, &lab, limited(&lab, &[helper, answer], &[]), &parts);
        // Also with '--engine auto', if a hook is named that packet sockets do not have.
        for (engine, hook) in [("ring", "auto"), ("ring", "generic"), ("auto", "generic"), ("auto", "tc")] {
            let case = format!("{answer}, {engine}, {hook}");
            let options = ["--engine", engine, "--hook", hook];
            let error = refused(&case, limited(&lab, &[helper, answer], &options));
            assert!(parts.iter().all(|part| error.contains(part)), "{case}: {error}");
            assert!(error.contains("-r"), "{case}: what still works is not named: {error}");
        }
    }
    assert_eq!(wait_for_bpf_objects(&before, Duration::from_secs(5)), before);
}

/// A kernel that was built without BTF: simulated by a mount namespace in which BTF is hidden.
/// Battery: F9
#[test]
fn a_kernel_without_type_information_is_refused_by_name() {
    if !require_root("a_kernel_without_type_information_is_refused_by_name") {
        return;
    }
    let lab = alone();
    let before = settled_bpf_objects();
    let hide = "mount -t tmpfs none /sys/kernel/btf && exec \"$0\" \"$@\"";
    let prefix = ["unshare", "--mount", "sh", "-c", hide];
    replaced("auto", &lab, limited(&lab, &prefix, &[]), &["BTF", "CONFIG_DEBUG_INFO_BTF"]);
    for (engine, hook) in [("ring", "auto"), ("ring", "generic"), ("auto", "generic"), ("auto", "tc")] {
        let options = ["--engine", engine, "--hook", hook];
        let error = refused(hook, limited(&lab, &prefix, &options));
        assert!(error.contains("BTF") && error.contains("CONFIG_DEBUG_INFO_BTF"), "{hook}: {error}");
        assert!(!error.contains("libbpf"), "{hook}: libbpf speaks to the user: {error}");
    }
    assert_eq!(wait_for_bpf_objects(&before, Duration::from_secs(5)), before);
}
