//! A monitor beside faults of its surroundings: devices that are not there yet, ports in use, sockets that are flooded,
//! certificates that are renewed, workers that hang.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use wirelane_tests::numbers::{LIMIT, capture, column, last_of, send, wirelane};
use wirelane_tests::{Finished, Lab, require_root, wirelane_binary};

/// A folder that the user to whom the program drops its privileges may write to.
fn open_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    folder
}

fn write(folder: &Path, text: &str) -> String {
    let file = folder.join("site.toml");
    fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}

/// Runs a command on the receiver's side of the lab.
fn run(lab: &Lab, words: &[&str]) -> Finished {
    wirelane(lab, &lab.receiver().namespace, words).unwrap().finish(LIMIT).unwrap()
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < LIMIT, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A service manager, and the environment variable with its socket.
fn manager(folder: &Path) -> (UnixDatagram, String) {
    let path = folder.join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
    (socket, format!("NOTIFY_SOCKET={}", path.display()))
}

fn told(manager: &UnixDatagram) -> String {
    let mut bytes = [0; 4096];
    let length = manager.recv(&mut bytes).unwrap();
    String::from_utf8(bytes[..length].to_vec()).unwrap()
}

/// A monitor waits for a device that does not exist, tells the service manager so, and captures when it comes. When the
/// device goes the monitor ends with its ledger; started again, as the unit does, it waits for the device again.
/// Battery: F1
#[test]
fn a_monitor_waits_for_its_device() {
    if !require_root("a_monitor_waits_for_its_device") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let folder = open_folder();
    let (manager, environment) = manager(folder.path());
    let out = folder.path().join("flows.json");
    let text = format!(
        "[capture]\ninterface = \"late0\"\ninterval = 0.1\n[flows]\nexport = \"file:{}\"\n",
        out.display()
    );
    let file = write(folder.path(), &text);
    let here = &lab.receiver().namespace;
    let ip = |words: &[&str]| {
        let output = lab.command(here, "ip").args(words).output().unwrap();
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    let program = wirelane_binary().unwrap();
    for _ in 0..2 {
        let words = ["env", &environment, program.to_str().unwrap(), "monitor", &file, "--json"];
        let mut monitor = lab.spawn(here, &words).unwrap();
        assert_eq!(told(&manager), "STATUS=waiting for late0\nEXTEND_TIMEOUT_USEC=20000000\n");
        ip(&["link", "add", "late0", "type", "veth", "peer", "name", "late1"]);
        ip(&["link", "set", "late0", "up"]);
        ip(&["link", "set", "late1", "up"]);
        monitor.wait_ready(LIMIT).unwrap();
        while told(&manager) != "READY=1\nSTATUS=capturing\n" {}
        let sent = wirelane(&lab, here, &["send", "-i", "late1", "--packets", "100", "--json"]).unwrap();
        assert_eq!(column(&last_of(&sent.finish(LIMIT).unwrap()).unwrap(), "sent"), 100);
        ip(&["link", "del", "late0"]);
        let ended = monitor.finish(LIMIT).unwrap();
        assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
        assert!(ended.stderr.contains("waiting for late0: no such device"), "{}", ended.stderr);
        assert!(ended.stderr.contains("device late0 disappeared"), "{}", ended.stderr);
        let last = ended.last_json().unwrap();
        assert!(column(&last, "analysed") >= 100, "{last}");
        assert_eq!(column(&last["analyses"]["flows"], "flow_packets"), column(&last, "analysed"), "{last}");
        // Nothing of this round is left for the next one.
        let mut bytes = [0; 4096];
        manager.set_nonblocking(true).unwrap();
        while manager.recv(&mut bytes).is_ok() {}
        manager.set_nonblocking(false).unwrap();
    }
}

/// A port that another process has, and a socket path that another process or file has, are refused with the place in the
/// file before anything is captured.
#[test]
fn ports_and_sockets_in_use_are_refused_with_their_places() {
    if !require_root("ports_and_sockets_in_use_are_refused_with_their_places") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let folder = open_folder();
    let device = &lab.receiver().device;
    let taken = lab.enter(&lab.receiver().namespace, || std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    let taken = taken.unwrap();
    let address = taken.local_addr().unwrap();
    let site = |rest: &str| {
        write(folder.path(), &format!("[capture]\ninterface = \"{device}\"\ninterval = 0.1\n[flows]\n{rest}"))
    };
    let file = site(&format!("[metrics]\naddress = \"{address}\"\n"));
    let refused = run(&lab, &["monitor", &file, "--json"]);
    assert_eq!(refused.status.code(), Some(2), "{}", refused.stderr);
    let expected = format!("site.toml:6:11: address: {address}: Address already in use");
    assert!(refused.stderr.contains(&expected), "{}", refused.stderr);

    let socket = folder.path().join("control");
    let control = |path: &Path| site(&format!("[control]\nsocket = \"{}\"\n", path.display()));
    fs::write(&socket, "somebody's").unwrap();
    let refused = run(&lab, &["monitor", &control(&socket), "--json"]);
    assert_eq!(refused.status.code(), Some(1), "{}", refused.stderr);
    assert!(refused.stderr.contains("another file is there"), "{}", refused.stderr);
    assert_eq!(fs::read_to_string(&socket).unwrap(), "somebody's");
    fs::remove_file(&socket).unwrap();
    // A socket that a killed process has left is replaced.
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let monitor = capture(&lab, &["monitor", &control(&socket), "--json"]).unwrap();
    let refused = run(&lab, &["monitor", &control(&socket), "--json"]);
    assert!(refused.stderr.contains("another process answers there"), "{}", refused.stderr);
    let status = run(&lab, &["status", socket.to_str().unwrap(), "--json"]);
    assert_eq!(status.last_json().unwrap()["pid"], u64::from(monitor.pid()), "{}", status.stderr);
    last_of(&monitor.terminate(LIMIT).unwrap()).unwrap();
    assert!(!socket.exists(), "the socket is left behind");
}

/// Mistakes of [control] and [export] are found by the check.
#[test]
fn mistakes_of_control_and_export_are_printed() {
    let folder = tempfile::tempdir().unwrap();
    let check = |rest: &str, expected: &str| {
        let file = write(folder.path(), &format!("[capture]\ninterface = \"eth1\"\n[flows]\n{rest}"));
        let output = Command::new(wirelane_binary().unwrap()).args(["check", &file]).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{rest}: {errors}");
        assert_eq!(errors, format!("wirelane: {file}:{expected}\n"), "{rest}");
    };
    check("[control]\ngroup = \"root\"\n", "5:9: group: expected socket = \"PATH\" beside it");
    check("[control]\nmode = \"0660\"\n", "5:8: mode: expected socket = \"PATH\" beside it");
    check("[control]\nsocket = \"x\"\n", "5:10: socket: expected a path that begins with /");
    check(
        "[control]\nsocket = \"/run/x\"\nmode = \"0777\"\n",
        "6:8: mode: expected octal digits, as in \"0600\", \"0660\" or \"0666\"",
    );
    check("[control]\nsocket = \"/run/x\"\ngroup = \"no such\"\n", "6:9: group: there is no group 'no such'");
    check(
        "[export]\nflows = \"ipfix://192.0.2.1:4739\"\n",
        "4:2: there is no section 'export': collectors and files are keys of their analysis, as in [flows] export = \
         [\"ipfix://192.0.2.1:4739\"]",
    );
}

/// Members of the group of [control] reach a monitor, others do not.
#[test]
fn the_group_of_the_control_socket_may_ask() {
    if !require_root("the_group_of_the_control_socket_may_ask") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let folder = open_folder();
    let socket = folder.path().join("control");
    let program = folder.path().join("wirelane");
    fs::copy(wirelane_binary().unwrap(), &program).unwrap();
    let text = format!(
        "[capture]\ninterface = \"{}\"\ninterval = 0.1\n[flows]\n[control]\nsocket = \"{}\"\ngroup = \"65531\"\n",
        lab.receiver().device,
        socket.display()
    );
    let monitor = capture(&lab, &["monitor", &write(folder.path(), &text), "--json"]).unwrap();
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o660);
    let ask = |group: &str| {
        let (user, group) = ("--reuid=65532", format!("--regid={group}"));
        let words = ["setpriv", user, &group, "--clear-groups", program.to_str().unwrap(), "status"];
        let words = [&words[..], &[socket.to_str().unwrap(), "--json"]].concat();
        lab.spawn(&lab.receiver().namespace, &words).unwrap().finish(LIMIT).unwrap()
    };
    let member = ask("65531");
    assert_eq!(member.last_json().unwrap()["pid"], u64::from(monitor.pid()), "{}", member.stderr);
    let other = ask("65530");
    assert!(other.stderr.contains("access denied"), "{}", other.stderr);
    last_of(&monitor.terminate(LIMIT).unwrap()).unwrap();
}

/// Resident memory of a process in KiB.
fn resident(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Clients that connect, send long lines and requests without end, and read nothing: the monitor goes on counting every
/// packet, answers others meanwhile, and neither its memory nor its descriptors grow beyond the bound of its connections.
/// Battery: S8
#[test]
fn a_flooded_control_socket_costs_no_packet_and_little_memory() {
    if !require_root("a_flooded_control_socket_costs_no_packet_and_little_memory") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let folder = open_folder();
    let socket = folder.path().join("control");
    let text = format!(
        "[capture]\ninterface = \"{}\"\ndirection = \"rx\"\nring-size = 32\ninterval = 0.1\n[flows]\n[control]\nsocket = \"{}\"\n",
        lab.receiver().device,
        socket.display()
    );
    let monitor = capture(&lab, &["monitor", &write(folder.path(), &text), "--json"]).unwrap();
    let before = resident(monitor.pid());
    const PACKETS: u64 = 40_000;
    let sending =
        ["send", "-i", &lab.sender().device, "--packets", &PACKETS.to_string(), "--rate", "10000", "--json"]
            .map(str::to_owned);
    let words: Vec<&str> = sending.iter().map(String::as_str).collect();
    let sender = wirelane(&lab, &lab.sender().namespace, &words).unwrap();
    let ask = b"{\"version\":1,\"ask\":{\"program\":\"status\"}}\n";
    let flood: [Vec<u8>; 4] = [
        ask.repeat(2000),
        vec![b'x'; 2 << 20],
        vec![b'\n'; 100_000],
        b"{\"version\":1,\"ask\":".repeat(5000),
    ];
    let mut silent = Vec::new();
    let mut most = 0;
    for round in 0..200 {
        let Ok(mut stream) = UnixStream::connect(&socket) else { continue };
        stream.set_write_timeout(Some(Duration::from_millis(10))).unwrap();
        // The monitor may close the connection, or read no more of it.
        let _ = stream.write_all(&flood[round % 4]);
        silent.push(stream);
        if round % 40 == 39 {
            most = most.max(resident(monitor.pid()));
            let status = run(&lab, &["status", &lab.receiver().device, "--json"]);
            assert!(status.status.success(), "{}", status.stderr);
        }
    }
    let descriptors = fs::read_dir(format!("/proc/{}/fd", monitor.pid())).unwrap().count();
    for stream in &mut silent[..100] {
        stream.set_nonblocking(true).unwrap();
        let _ = stream.read(&mut [0; 1 << 16]);
    }
    drop(silent);
    assert_eq!(column(&last_of(&sender.finish(LIMIT).unwrap()).unwrap(), "sent"), PACKETS);
    let finished = monitor.terminate(LIMIT).unwrap();
    let last = last_of(&finished).unwrap();
    let counts = ["seen", "analysed", "lost"].map(|name| column(&last, name));
    assert_eq!(counts, [PACKETS, PACKETS, 0], "{last}");
    // 16 connections hold at most 2 MiB each, and an answer.
    assert!(most < before + (48 << 10), "{before} KiB before, {most} KiB during the flood");
    assert!(descriptors < 150, "{descriptors} open files");
}

/// A worker that makes no progress, since an output blocks it, is reported, and the watchdog is not fed while it hangs.
/// Battery: F5
#[test]
fn the_watchdog_is_not_fed_while_a_worker_hangs() {
    if !require_root("the_watchdog_is_not_fed_while_a_worker_hangs") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let folder = open_folder();
    let (manager, environment) = manager(folder.path());
    let text = format!(
        "[capture]\ninterface = \"{}\"\ndirection = \"rx\"\ninterval = 0.2\n[flows]\n",
        lab.receiver().device
    );
    let file = write(folder.path(), &text);
    let program = wirelane_binary().unwrap();
    let words = [
        "env",
        &environment,
        "WATCHDOG_USEC=60000000",
        program.to_str().unwrap(),
        "monitor",
        &file,
        "--json",
    ];
    let mut monitor = lab.spawn(&lab.receiver().namespace, &words).unwrap();
    monitor.wait_ready(LIMIT).unwrap();
    while told(&manager) != "READY=1\nSTATUS=capturing\n" {}
    assert!(told(&manager).ends_with("WATCHDOG=1\n"));
    // The worker's thread stops; the others run.
    let worker = worker(monitor.pid());
    let freezer = Frozen::new(&worker);
    let mut states = Vec::new();
    until("no state without the watchdog", || {
        states.push(told(&manager));
        states.last().is_some_and(|state| state.contains("a worker makes no progress"))
    });
    assert!(!states.last().unwrap().contains("WATCHDOG=1"), "{states:?}");
    assert!(!told(&manager).contains("WATCHDOG=1"));
    send(&lab, 100, &[]).unwrap();
    // Five intervals.
    std::thread::sleep(Duration::from_secs(1));
    drop(freezer);
    until("the watchdog is not fed again", || told(&manager).ends_with("WATCHDOG=1\n"));
    let finished = monitor.terminate(LIMIT).unwrap();
    let last = last_of(&finished).unwrap();
    assert_eq!(["seen", "analysed", "lost"].map(|name| column(&last, name)), [100, 100, 0], "{last}");
    // The manager might have ended the process: the ledger was in the log before, also that of the packets in the ring.
    for expected in [
        "a worker makes no progress; the ledger so far: seen 0, filtered 0, absorbed 0, shed 0, lost 0, delivered 0, analysed 0",
        "a worker makes no progress; the ledger so far: seen 100, filtered 0, absorbed 0, shed 0, lost 0, delivered 100, analysed 0",
        "all workers make progress again",
    ] {
        assert!(finished.stderr.contains(expected), "{expected}: {}", finished.stderr);
    }
}

/// The thread of the first worker.
pub(crate) fn worker(pid: u32) -> PathBuf {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap().map(|task| task.unwrap().path());
    let is_worker =
        |task: &PathBuf| fs::read_to_string(task.join("comm")).unwrap().starts_with("wl-worker-0");
    let mut tasks = tasks;
    tasks.find(is_worker).expect("no worker")
}

/// A thread that is stopped by ptrace(2), alone, until drop.
pub(crate) struct Frozen(std::process::Child);

impl Frozen {
    pub(crate) fn new(task: &Path) -> Frozen {
        let tracer = "import ctypes, os, sys\n\
                      call, thread = ctypes.CDLL(None, use_errno=True).ptrace, int(sys.argv[1])\n\
                      assert call(16, thread, 0, 0) == 0, os.strerror(ctypes.get_errno())\n\
                      os.waitpid(thread, 0x40000000)\n\
                      print('stopped', flush=True)\n\
                      sys.stdin.read()\n\
                      call(17, thread, 0, 0)\n";
        let pipe = std::process::Stdio::piped;
        let mut child = Command::new("python3")
            .args(["-c", tracer])
            .arg(task.file_name().unwrap())
            .stdin(pipe())
            .stdout(pipe())
            .spawn()
            .unwrap();
        let mut said = [0; 8];
        child.stdout.as_mut().unwrap().read_exact(&mut said).unwrap();
        assert_eq!(&said, b"stopped\n");
        Frozen(child)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// Where standard error is the journal, each line begins with its priority; elsewhere none does.
#[test]
fn messages_in_the_journal_have_their_priority() {
    use std::os::unix::fs::MetadataExt as _;
    let folder = tempfile::tempdir().unwrap();
    let file = write(folder.path(), "[capture]\ninterfac = \"eth1\"\n[flows]\nbiflow = 3\n");
    let run = |journal: bool, other: u64| {
        let out = fs::File::create(folder.path().join("stderr")).unwrap();
        let meta = out.metadata().unwrap();
        let stream = format!("{}:{}", meta.dev(), meta.ino() + other);
        let mut command = Command::new(wirelane_binary().unwrap());
        command.args(["check", &file]).stderr(out).env_remove("JOURNAL_STREAM");
        if journal {
            command.env("JOURNAL_STREAM", stream);
        }
        assert_eq!(command.status().unwrap().code(), Some(2));
        fs::read_to_string(folder.path().join("stderr")).unwrap()
    };
    let plain = run(false, 0);
    assert!(plain.starts_with("wirelane: ") && plain.lines().count() == 3, "{plain}");
    let expected: String = plain.split_inclusive('\n').map(|line| format!("<3>{line}")).collect();
    assert_eq!(run(true, 0), expected);
    assert_eq!(run(true, 1), plain, "the stream is another");
}
