//! Runs the commands of the guide to other tools as printed there.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use wirelane_tests::libpcap::{built, wait_for_groups, wait_for_handler};
use wirelane_tests::numbers::{LIMIT, in_file, send};
use wirelane_tests::recordings::count_packets;
use wirelane_tests::{Child, Finished, Lab, repository, require_root, wirelane_binary};

use super::{PACKETS, SENT, number_before};

/// The guide's device, and the network of its collector.
const DEVICE: &str = "eth1";
const COLLECTORS: &str = "192.0.2.0/24";

/// The guide's commands, without the `&` that sends them to the background.
fn commands() -> Vec<String> {
    let guide = std::fs::read_to_string(repository().join("docs/guides/other-tools.md")).unwrap();
    let blocks = guide.split("```").skip(1).step_by(2);
    let lines = blocks.flat_map(str::lines).filter(|line| line.starts_with("sudo "));
    lines.map(|line| line.trim_end_matches(" &").to_owned()).collect()
}

/// Creates stand-ins for a user's environment: ours on the PATH, sudo without effect, and Wireshark's extcap folder
/// with the script that `make install` puts there.
fn tools(folder: &Path) {
    built("libwirelane_libpcap_preload.so").unwrap();
    let binary = wirelane_binary().unwrap();
    symlink(&binary, folder.join("wirelane")).unwrap();
    std::fs::create_dir(folder.join("extcap")).unwrap();
    let extcap = format!("exec {} extcap \"$@\"", binary.display());
    for (name, does) in [("sudo", "exec \"$@\""), ("extcap/wirelane", &extcap)] {
        let path = folder.join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{does}\n")).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    }
}

/// A running command in a folder of its own.
struct Running {
    line: String,
    folder: PathBuf,
    child: Child,
}

impl Running {
    fn start(lab: &Lab, tools: &Path, number: usize, line: String) -> Running {
        let folder = tools.join(number.to_string());
        std::fs::create_dir(&folder).unwrap();
        // Some programs write as another user.
        std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o777)).unwrap();
        // Output is line-buffered as on a terminal. The folder replaces Wireshark's in the mount namespace that 'ip
        // netns exec' makes.
        let script = format!(
            "cd {} && PATH={}:$PATH && place=$(tshark -G folders 2>/dev/null | \
             sed -n 's/^Extcap path:[[:space:]]*//p') && mount --bind {}/extcap $place && exec stdbuf -oL {line}",
            folder.display(),
            tools.display(),
            tools.display()
        );
        let mut child = lab.spawn(&lab.receiver().namespace, &["sh", "-c", &script]).unwrap();
        let pid = child.pid();
        // Wireshark makes dumpcap start our extcap program.
        let its = |owner: &str, group: u32| {
            if line.contains("tshark") { owner == "wirelane" } else { group == pid }
        };
        if let Err(error) = wait_for_groups(lab, &mut child, |group| its(&group.owner, group.pid)) {
            panic!("{line}: {error}: {:?}", child.terminate(LIMIT));
        }
        if line.contains("tcpdump") {
            wait_for_handler(&child).unwrap();
        }
        Running { line, folder, child }
    }

    fn end(self) -> Ended {
        let Running { line, folder, child } = self;
        Ended { line, folder, finished: child.terminate(LIMIT).unwrap() }
    }
}

struct Ended {
    line: String,
    folder: PathBuf,
    finished: Finished,
}

/// One connection to the receiver's port 80, with a request and its response.
fn browse(lab: &Lab) {
    let address = SocketAddr::from((lab.receiver().address, 80));
    let listener = lab.enter(&lab.receiver().namespace, || TcpListener::bind(address)).unwrap().unwrap();
    let mut client = lab.enter(&lab.sender().namespace, || TcpStream::connect(address)).unwrap().unwrap();
    let (mut server, _) = listener.accept().unwrap();
    client.write_all(b"GET /readme HTTP/1.0\r\n\r\n").unwrap();
    let mut asked = [0; 24];
    server.read_exact(&mut asked).unwrap();
    server.write_all(b"HTTP/1.0 204 No Content\r\n\r\n").unwrap();
    drop(server);
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.0 204"), "{answer}");
}

/// Packets that softflowd has processed; its control socket has the default path.
fn processed() -> u64 {
    let output = std::process::Command::new("softflowctl").arg("statistics").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find_map(|line| line.strip_prefix("Packets processed: "));
    line.unwrap_or_else(|| panic!("{text}")).trim().parse().unwrap()
}

/// Battery: L1
#[test]
fn the_commands_of_the_guide_work() {
    if !require_root("the_commands_of_the_guide_work") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    tools(folder.path());
    let mut lab = Lab::new(4).unwrap();
    let (receiver, sender) = (lab.receiver().clone(), lab.sender().clone());
    let mac = sender.mac.map(|byte| format!("{byte:02x}")).join(":");
    let address = sender.address.to_string();
    for words in [
        &["ip", "link", "set", &receiver.device, "down"][..],
        &["ip", "link", "set", &receiver.device, "name", DEVICE],
        &["ip", "link", "set", DEVICE, "up"],
        &["ip", "neigh", "replace", &address, "lladdr", &mac, "dev", DEVICE, "nud", "permanent"],
        &["ip", "route", "add", COLLECTORS, "via", &address],
    ] {
        lab.exec(&receiver.namespace, words).unwrap();
    }
    DEVICE.clone_into(&mut lab.links[0].receiver.device);
    let commands = commands();
    let start = |(number, line): (usize, &String)| Running::start(&lab, folder.path(), number, line.clone());
    // A command with `--exclusive` keeps packets from the host, which has to respond here, so it runs later.
    let takes = |(_, line): &(usize, &String)| line.contains("--exclusive");
    let running: Vec<Running> = commands.iter().enumerate().filter(|each| !takes(each)).map(start).collect();

    browse(&lab);
    send(&lab, SENT, &PACKETS).unwrap();
    // softflowd has all packets when its count has not changed for a while.
    let mut counted = 0;
    let end = Instant::now() + LIMIT;
    loop {
        std::thread::sleep(Duration::from_millis(500));
        let now = processed();
        if now == counted && now > SENT {
            break;
        }
        assert!(Instant::now() < end, "softflowd has {now} packets");
        counted = now;
    }
    // The other programs may still wait for more packets: tcpdump's time-out is a second.
    std::thread::sleep(Duration::from_millis(1500));
    let mut ended: Vec<Ended> = running.into_iter().map(Running::end).collect();
    let mut of = |words: &str| {
        let at = ended.iter().position(|ended| ended.line.contains(words));
        ended.remove(at.unwrap_or_else(|| panic!("no '{words}' among {commands:?}")))
    };

    let file = of("-w eth1.pcap udp");
    assert_eq!(in_file(&file.folder.join("eth1.pcap")).unwrap().len() as u64, SENT);
    // One RX queue, captured by two programs: the same number of packets, one per line.
    let queue = of("tcpdump -n -i eth1@2").finished;
    let shown = queue.lines.iter().filter(|line| line.contains(" IP ")).count() as u64;
    assert!(shown > 0 && shown < SENT, "{queue:?}");
    assert_eq!(number_before(&queue.stderr, " packets captured"), shown, "{queue:?}");
    let shark = of("tshark -i eth1@2").finished;
    assert_eq!(shark.lines.iter().filter(|line| line.contains(" → ")).count() as u64, shown, "{shark:?}");
    let found = of("ngrep").finished;
    assert!(found.lines.iter().any(|line| line.contains("GET /readme HTTP")), "{found:?}");
    let streams = of("tcpflow").folder.join("streams");
    let halves = std::fs::read_dir(&streams).unwrap().map(|entry| entry.unwrap().path());
    let halves: Vec<_> = halves.filter_map(|path| std::fs::read(path).ok()).collect();
    for half in ["GET /readme HTTP/1.0\r\n\r\n", "HTTP/1.0 204 No Content\r\n\r\n"] {
        assert!(halves.iter().any(|bytes| bytes == half.as_bytes()), "{half}");
    }
    let finger = of("p0f").finished;
    assert!(finger.lines.iter().any(|line| line.contains("(syn) ]-")), "{finger:?}");
    // All packets, received and sent: divided between two programs, and all of them counted by softflowd.
    of("softflowd");
    let shares = ["one.pcap", "two.pcap"].map(|name| count_packets(&of(name).folder.join(name)).unwrap());
    assert_eq!(shares.iter().sum::<u64>(), counted, "{shares:?}");
    assert!(shares.iter().all(|share| *share > 0), "{shares:?}");

    let [taking] =
        commands.iter().enumerate().filter(takes).map(start).collect::<Vec<_>>().try_into().ok().unwrap();
    send(&lab, SENT, &PACKETS).unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    let file = taking.folder.join("mirror.pcap");
    let taken = taking.end().finished;
    assert_eq!(number_before(&taken.stderr, " packets captured"), SENT, "{taken:?}");
    assert_eq!(in_file(&file).unwrap(), (0..SENT).collect::<Vec<_>>());
    let more: Vec<&String> = ended.iter().map(|ended| &ended.line).collect();
    assert!(more.is_empty(), "nothing is known of {more:?}");
}
