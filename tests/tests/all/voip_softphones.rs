//! `wirelane voip` on a call of two baresip telephones, whose own summary, from their RTCP reports, must report the
//! same, as must tshark's table of streams.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use wirelane_tests::numbers::{LIMIT, capture, column, last_of};
use wirelane_tests::{End, Lab, require_root};

const TEST: &str = "a_call_of_two_telephones_is_what_they_say_of_it";
/// Seconds of the call: RTCP reports are sent every five.
const TALK: &str = "7";

/// Folder of the telephone's modules, in Debian's and in other packages.
fn modules() -> Option<PathBuf> {
    let places = ["/usr/lib/baresip/modules", "/usr/lib64/baresip/modules", "/usr/local/lib/baresip/modules"];
    places.iter().map(PathBuf::from).find(|place| place.join("rtcpsummary.so").exists())
}

/// A telephone that plays a tone, and prints its RTCP statistics when it hangs up.
fn telephone(lab: &Lab, end: &End, folder: &Path, modules: &Path, name: &str, words: &[&str]) -> Child {
    let home = folder.join(name);
    std::fs::create_dir(&home).unwrap();
    let (modules, address, device) = (modules.display(), end.address, &end.device);
    let config = format!(
        "poll_method epoll\nsip_listen {address}:5060\nnet_interface {device}\naudio_source ausine,440\n\
         audio_alert ausine,440\nausrc_srate 48000\nausrc_channels 2\nmodule_path {modules}\nmodule g711.so\n\
         module ausine.so\nmodule rtcpsummary.so\nmodule_tmp account.so\nmodule_app menu.so\nrtp_ports 10000-20000\n"
    );
    std::fs::write(home.join("config"), config).unwrap();
    std::fs::write(home.join("accounts"), format!("<sip:{name}@{address}>;regint=0;answermode=auto\n"))
        .unwrap();
    std::fs::write(home.join("contacts"), "").unwrap();
    let said = std::fs::File::create(folder.join(format!("{name}.log"))).unwrap();
    lab.command(&end.namespace, "baresip")
        .args(["-f", home.to_str().unwrap()])
        .args(words)
        .stdin(Stdio::null())
        .stdout(said)
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Fields of the summary that a telephone has printed: packets received and sent, losses, jitters.
fn summary(folder: &Path, name: &str) -> BTreeMap<String, String> {
    let text = std::fs::read_to_string(folder.join(format!("{name}.log"))).unwrap();
    let line = text.lines().find(|line| line.starts_with("EX=BareSip;CS="));
    let line = line.unwrap_or_else(|| panic!("{name} has no RTCP statistics: {text}"));
    let pairs = line.split(';').filter_map(|pair| pair.split_once('='));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Packets and losses of each stream by SSRC, from tshark.
fn tshark(file: &Path) -> BTreeMap<String, (u64, u64)> {
    let output =
        Command::new("tshark").args(["-n", "-q", "-z", "rtp,streams", "-r"]).arg(file).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let rows = text.lines().filter(|line| line.contains(" 0x"));
    rows.map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let ssrc = words.iter().find(|word| word.starts_with("0x")).unwrap();
        let percent = words.iter().position(|word| word.starts_with('(')).unwrap();
        (ssrc.to_lowercase(), (words[percent - 2].parse().unwrap(), words[percent - 1].parse().unwrap()))
    })
    .collect()
}

#[test]
fn a_call_of_two_telephones_is_what_they_say_of_it() {
    if !require_root(TEST) {
        return;
    }
    let Some(modules) = modules() else {
        println!("left out: {TEST} (no baresip: scripts/setup)");
        return;
    };
    let lab = Lab::new(1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (alice, bob) = (lab.sender().clone(), lab.receiver().clone());
    let listen = |analysis: &str| {
        let words = [
            "voip",
            "-i",
            &bob.device,
            "--direction",
            "both",
            "--json",
            "--linger",
            "1",
            "--analysis",
            analysis,
        ];
        capture(&lab, &words).unwrap()
    };
    let listeners = [listen("kernel"), listen("user")];
    let file = folder.path().join("call.pcap");
    let mut tcpdump = lab
        .command(&bob.namespace, "tcpdump")
        .args(["-i", &bob.device, "-U", "-w", file.to_str().unwrap(), "udp"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let end = Instant::now() + LIMIT;
    while std::fs::metadata(&file).map_or(0, |file| file.len()) < 24 {
        assert!(Instant::now() < end, "tcpdump writes nothing");
        std::thread::sleep(Duration::from_millis(20));
    }

    let mut answers = telephone(&lab, &bob, folder.path(), &modules, "bob", &[]);
    let end = Instant::now() + LIMIT;
    while !std::fs::read_to_string(folder.path().join("bob.log")).unwrap().contains("baresip is ready") {
        assert!(Instant::now() < end && answers.try_wait().unwrap().is_none(), "bob is not ready");
        std::thread::sleep(Duration::from_millis(20));
    }
    let dial = format!("/dial sip:bob@{}", bob.address);
    // The caller hangs up at the end of its time.
    let asked = telephone(&lab, &alice, folder.path(), &modules, "alice", &["-e", &dial, "-t", TALK]).wait();
    assert!(asked.unwrap().success());
    let end = Instant::now() + LIMIT;
    while !std::fs::read_to_string(folder.path().join("bob.log")).unwrap().contains("EX=BareSip") {
        assert!(Instant::now() < end, "bob says nothing of the call");
        std::thread::sleep(Duration::from_millis(50));
    }
    // tcpdump wakes up once a second to write its packets.
    let length = || std::fs::metadata(&file).unwrap().len();
    let mut before = 0;
    while before != length() {
        before = length();
        std::thread::sleep(Duration::from_millis(1500));
    }
    // Our own processes, by id.
    for child in [&mut answers, &mut tcpdump] {
        Command::new("kill").arg(child.id().to_string()).status().unwrap();
        child.wait().unwrap();
    }

    let theirs = tshark(&file);
    let said = summary(folder.path(), "bob");
    let pair = |name: &str| -> Vec<f64> { said[name].split(',').map(|one| one.parse().unwrap()).collect() };
    assert_eq!(pair("PL"), [0.0, 0.0], "{said:?}");
    for listener in listeners {
        let finished = listener.terminate(LIMIT).unwrap();
        let last = last_of(&finished).unwrap();
        assert_eq!((column(&last, "lost"), column(&last["call_states"], "completed")), (0, 1), "{last}");
        let calls = finished.lines.iter().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let calls: Vec<Value> = calls.filter(|line| line.get("call_id").is_some()).collect();
        let [call] = &calls[..] else { panic!("{} calls", calls.len()) };
        assert_eq!((&call["hung_up"], column(call, "status")), (&"caller".into(), 200), "{call}");
        assert!(call["from_uri"].as_str().unwrap().starts_with("sip:alice@"), "{call}");
        assert!(call["callee_agent"].as_str().unwrap().starts_with("baresip"), "{call}");
        let streams = call["streams"].as_array().unwrap();
        let counts = streams.iter().map(|stream| {
            let ssrc = stream["ssrc"].as_str().unwrap().to_owned();
            (ssrc, (column(stream, "packets"), column(stream, "lost")))
        });
        assert_eq!(counts.collect::<BTreeMap<_, _>>(), theirs);
        let toward = |end: &str| {
            streams.iter().find(|stream| stream["toward"] == end).unwrap_or_else(|| panic!("{call}"))
        };
        // Alice's report to Bob: her sent packets, and the jitter of her received ones, in tenths, with the rest
        // truncated by the telephone. Bob's first jitter is his own, at the arrival of that report.
        let (sent, received) = (toward("caller"), toward("callee"));
        assert_eq!((&sent["codec"], &received["codec"]), (&"PCMU".into(), &"PCMU".into()));
        assert_eq!(column(&received["rtcp"], "packets_sent").to_string(), said["PR"], "{received}");
        for stream in [sent, received] {
            assert_eq!((column(&stream["rtcp"], "sender_reports"), column(&stream["rtcp"], "lost")), (1, 0));
        }
        let jitter = |stream: &Value| (stream["rtcp"]["jitter_ms"].as_f64().unwrap() * 10.0).floor() / 10.0;
        assert_eq!(jitter(sent), pair("JI")[1], "{said:?}");
    }
}
