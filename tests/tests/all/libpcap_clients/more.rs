//! Suricata; and devices that belong to programs (tun and tap).

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use wirelane_tests::libpcap::{Library, compile, start};
use wirelane_tests::numbers::{LIMIT, finish};
use wirelane_tests::{Lab, Signal, require_root};

use super::{ACCEPTED, Beside, CASES};

/// A minimal configuration.
const SURICATA: &str = "%YAML 1.1
---
vars:
  address-groups: {HOME_NET: any, EXTERNAL_NET: any}
stats: {enabled: yes, interval: 1}
outputs:
  - eve-log: {enabled: yes, filetype: regular, filename: eve.json, types: [flow, stats]}
pcap:
  - interface: default
    checksum-checks: no
logging:
  default-log-level: notice
  outputs:
    - console: {enabled: no}
    - file: {enabled: yes, filename: PLACE/suricata.log}
pid-file: PLACE/pid
unix-command: {enabled: no}
";

/// Battery: L1
#[test]
fn suricata_sees_exactly_what_was_sent() {
    if !require_root("suricata_sees_exactly_what_was_sent") {
        return;
    }
    if Command::new("suricata").arg("-V").output().is_err() {
        println!(
            "left out: suricata_sees_exactly_what_was_sent (no suricata; Debian 12 has it in backports)"
        );
        return;
    }
    let beside = Beside::new();
    let device = beside.lab.receiver().device.as_str();
    for (filter, count) in CASES {
        let folder = beside.path(&format!("suricata-{count}"));
        std::fs::create_dir(&folder).unwrap();
        let config = beside.path(&format!("suricata-{count}.yaml"));
        std::fs::write(&config, SURICATA.replace("PLACE", &folder)).unwrap();
        let interface = format!("--pcap={device}");
        let mut words = vec![
            "suricata",
            "-c",
            &config,
            "-l",
            &folder,
            "-S",
            "/dev/null",
            &interface,
            "--runmode",
            "single",
        ];
        words.extend(filter.split(' ').filter(|word| !word.is_empty()));
        let mut child = start(&beside.lab, Library::DropIn, beside.folder.path(), &words).unwrap();
        // Suricata opens the device more than once.
        let log = Path::new(&folder).join("suricata.log");
        let end = Instant::now() + LIMIT;
        while !std::fs::read_to_string(&log).unwrap_or_default().contains("Engine started") {
            assert!(child.is_running().unwrap() && Instant::now() < end, "{:?}", child.terminate(LIMIT));
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        beside.send();
        let events = || -> Vec<serde_json::Value> {
            let log = std::fs::read_to_string(Path::new(&folder).join("eve.json")).unwrap_or_default();
            // The last line may be incomplete.
            log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
        };
        // Suricata reports its decoder counts once a second, and libpcap's only at its end.
        let end = Instant::now() + LIMIT;
        loop {
            let events = events();
            let stats = events.iter().rfind(|event| event["event_type"] == "stats");
            let stats = stats.map_or(&serde_json::Value::Null, |event| &event["stats"]);
            let pkts = &stats["decoder"]["pkts"];
            if *pkts == count {
                break;
            }
            assert!(Instant::now() < end, "{pkts}");
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        child.terminate(LIMIT).unwrap();
        let said = std::fs::read_to_string(&log).unwrap();
        assert!(said.contains(&format!("packets: {count}, drops: 0 (")), "{said}");
        let events = events();
        let flows: Vec<_> = events.iter().filter(|event| event["event_type"] == "flow").collect();
        let packets: u64 =
            flows.iter().map(|event| event["flow"]["pkts_toserver"].as_u64().unwrap_or_default()).sum();
        assert_eq!((flows.len(), packets), (if count == ACCEPTED { 2 } else { 16 }, count));
    }
    finish(beside.holder).unwrap();
}

/// A program with a tap and a tun device, as of virtual machines and VPNs: once FILE exists, it sends 64 packets from
/// ports 1000 to 1015 by each.
const TUNNELS: &str = "import fcntl, os, struct, sys, time
def device(name, kind):
    fd = os.open('/dev/net/tun', os.O_RDWR)
    fcntl.ioctl(fd, 0x400454ca, struct.pack('16sH22x', name, kind | 0x1000))
    return fd
tap, tun = device(b'tap9', 2), device(b'tun9', 1)
os.system('ip link set tap9 up; ip link set tun9 up')
print('ready', flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
for number in range(64):
    udp = struct.pack('!HHHH', 1000 + number % 16, 9, 30, 0) + bytes(22)
    ip = struct.pack('!BBHHHBBH4s4s', 0x45, 0, 20 + len(udp), 0, 0, 64, 17, 0, bytes([10, 9, 0, 1]), bytes([10, 9, 0, 2]))
    os.write(tap, bytes([2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]) + ip + udp)
    os.write(tun, ip + udp)
time.sleep(60)";

/// Battery: L1
#[test]
fn tap_and_tun_devices_are_captured() {
    if !require_root("tap_and_tun_devices_are_captured") {
        return;
    }
    if !Path::new("/dev/net/tun").exists() {
        println!("left out: tap_and_tun_devices_are_captured (no /dev/net/tun)");
        return;
    }
    let (lab, folder) = (Lab::new(1).unwrap(), tempfile::tempdir().unwrap());
    let go = folder.path().join("go");
    let words = ["/usr/bin/python3", "-c", TUNNELS, go.to_str().unwrap()];
    let tunnels = lab.spawn(&lab.receiver().namespace, &words).unwrap();
    assert_eq!(tunnels.next_line(LIMIT).unwrap().as_deref(), Some("ready"));
    let program = compile("behave", folder.path(), &[]).unwrap();
    let filter = "udp src port 1003 or udp src port 1011";
    let cases = [("tap9", "64", ""), ("tap9", "8", filter), ("tun9", "64", ""), ("tun9", "8", filter)];
    let begin = |library, (device, count, filter): (&str, &str, &str)| {
        let words = [program.to_str().unwrap(), "loop", device, count, filter];
        let child = start(&lab, library, folder.path(), &words).unwrap();
        assert_eq!(child.next_line(LIMIT).unwrap().as_deref(), Some("ready"), "{device}");
        child
    };
    // All programs run concurrently and see the same packets.
    let children = cases.map(|case| [Library::System, Library::DropIn].map(|library| begin(library, case)));
    std::fs::write(&go, "").unwrap();
    for (children, case) in children.into_iter().zip(cases) {
        let [system, ours] = children.map(|child| child.finish(LIMIT).unwrap());
        assert_eq!(system.lines, ours.lines, "{case:?}: {system:?} {ours:?}");
        assert!(ours.lines[0].starts_with(&format!("loop: 0, {} packets", case.1)), "{case:?}: {ours:?}");
    }
    tunnels.signal(Signal::Kill).unwrap();
    tunnels.finish(LIMIT).unwrap();
}
