//! The limit of `--memory` holds for a live capture with two workers under a flood, its end by a signal included.

use wirelane_tests::calls::{Scene, description, message};
use wirelane_tests::frames::replay_stream;
use wirelane_tests::numbers::{LIMIT, column};
use wirelane_tests::recordings::{NOON_NS, write_header, write_packet};
use wirelane_tests::{Child, ControlGroup, Finished, Lab, require_root, wirelane_binary};

/// Packets of a flood, 100,000 a second.
const PACKETS: u32 = 300_000;
const STEP_NS: u64 = 10_000;

/// A frame of a flood, by its number.
type Flood = fn(u32) -> Vec<u8>;

fn first(scene: Scene) -> Vec<u8> {
    scene.into_frames().swap_remove(0)
}

fn client(number: u32) -> String {
    let [a, b, c] = [number / 40_000 / 256, number / 40_000 % 256, number % 40_000 + 10_000];
    format!("11.{a}.{b}.9:{c}")
}

/// Each packet is a new flow.
fn datagram(number: u32) -> Vec<u8> {
    let mut scene = Scene::new();
    scene.udp(0, &client(number), "10.0.0.2:9", b"flood");
    first(scene)
}

/// Each packet is a request of a new connection, with a head of 400 bytes.
fn request(number: u32) -> Vec<u8> {
    let text = format!("GET /x HTTP/1.1\r\nHost: h\r\nX: {}\r\n\r\n", "y".repeat(400));
    let mut scene = Scene::new();
    scene.segment(&client(number), "10.0.0.2:80", 0x18, (1, 1), text.as_bytes());
    first(scene)
}

/// Each packet is a new call.
fn invite(number: u32) -> Vec<u8> {
    let id = format!("Call-ID: flood-{number}");
    let lines = ["From: <sip:a@a>;tag=1", "To: <sip:b@b>", &id, "CSeq: 1 INVITE"];
    let text = message("INVITE sip:b@10.0.0.2 SIP/2.0", &lines, &description("10.0.0.1", 6000));
    let mut scene = Scene::new();
    scene.udp(0, &client(number), "10.0.0.2:5060", &text);
    first(scene)
}

/// Captures in a control group, under `flood` or without traffic.
fn run(lab: &Lab, group: &ControlGroup, words: &[&str], flood: Option<Flood>) -> Finished {
    let end = lab.receiver();
    // Into the group first: in the namespace, another /sys hides it.
    let mut command = group.command("ip");
    command.args(["netns", "exec", &end.namespace]).arg(wirelane_binary().unwrap()).args(words);
    command.args(["-i", &end.device, "--json", "--quiet", "--direction", "rx", "--ring-size", "1"]);
    let mut child = Child::spawn(&mut command).unwrap();
    child.wait_ready(LIMIT).unwrap();
    if let Some(frame) = flood {
        replay_stream(lab, "recorded", |output| {
            write_header(output)?;
            for number in 0..PACKETS {
                write_packet(output, NOON_NS + u64::from(number) * STEP_NS, &frame(number))?;
            }
            Ok(())
        })
        .unwrap();
    }
    let finished = child.terminate(LIMIT).unwrap();
    assert_eq!(group.killed(), 0, "{words:?}: killed");
    assert!(finished.status.success(), "{words:?}: {}", finished.stderr);
    finished
}

/// Battery: F8, L6
#[test]
fn a_live_flood_stays_within_the_bound() {
    const NAME: &str = "a_live_flood_stays_within_the_bound";
    if !require_root(NAME) {
        return;
    }
    let cases: [(&[&str], u64, Flood); 4] = [
        (&["flows", "--workers", "2"], 16, datagram),
        (&["flows", "--workers", "2", "--cache", "kernel"], 16, datagram),
        (&["http", "--workers", "2"], 16, request),
        (&["voip"], 96, invite),
    ];
    for (words, budget, flood) in cases {
        let lab = Lab::new(2).unwrap();
        let memory = budget.to_string();
        let words = [words, &["--memory", &memory]].concat();
        // The first run pays for the pages of the program's file.
        let Some(warm) = ControlGroup::limited(NAME, 1 << 30) else { return };
        run(&lab, &warm, &words, None);
        let Some(idle) = ControlGroup::limited(NAME, 1 << 30) else { return };
        run(&lab, &idle, &words, None);
        let base = idle.peak().unwrap_or(96 << 20);
        let limit = (base + (budget << 20)) * 11 / 10;
        let Some(bounded) = ControlGroup::limited(NAME, limit) else { return };
        let last = run(&lab, &bounded, &words, Some(flood)).last_json().unwrap();
        let peak = bounded.peak().unwrap_or(0) >> 10;
        println!("{words:?}: base {} KiB, peak {peak} KiB of {}: {last}", base >> 10, limit >> 10);
        assert_eq!(column(&last, "seen"), u64::from(PACKETS), "{words:?}: {last}");
        // In the kernel's cache, packets are absorbed.
        let handled = column(&last, "analysed") + column(&last, "absorbed");
        assert!(handled > u64::from(PACKETS) / 10, "{words:?}: {last}");
    }
}
