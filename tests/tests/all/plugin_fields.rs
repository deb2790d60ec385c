//! Fields of HTTP, SIP and RTP in plug-ins (`wirelane/fields.h`), compared with those of the library
//! (`Record::application`) for the same bytes: on random messages, and on the corpus.

use std::path::Path;
use std::time::Duration;

use wirelane::application::{Application, Start};
use wirelane::{Capture, Record};
use wirelane_testing::Dice;
use wirelane_tests::calls::Scene;
use wirelane_tests::frames::replay;
use wirelane_tests::numbers::{LIMIT, column, last_of, wirelane};
use wirelane_tests::ruled::{KERNEL, open, rules};
use wirelane_tests::{Lab, corpus, merged, program_file, require_root};

/// Bytes of a packet that a plug-in gets.
const SHOWN: usize = 256;

/// The fields of a packet, in the order of `struct packet_fields`: protocol, bytes of the method, status, head, body, SDP,
/// media, payload type, marker, sequence, timestamp, SSRC; offset and length of Host, From, To, Via, Call-ID.
type Fields = ([u32; 12], [(u16, u16); 5]);

/// The record of `tests/programs/plugin_fields.bpf.c`.
fn of_plugin(bytes: &[u8]) -> Fields {
    assert_eq!(bytes.len(), 56);
    let u16_at = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
    let u32_at = |at: usize| u32::from(u16_at(at)) | u32::from(u16_at(at + 2)) << 16;
    let word = |at: usize| u32::from(u16_at(at));
    let all = [
        bytes[0].into(),
        bytes[1].into(),
        word(2),
        word(4),
        word(6),
        word(8),
        word(10),
        bytes[12].into(),
        bytes[13].into(),
        word(14),
        u32_at(16),
        u32_at(20),
    ];
    // HTTP has fields with the names of those of SIP, which the library leaves out, and the other way round.
    let ours = |number: usize| matches!((bytes[0], number), (1, 0) | (2, 1..));
    let field = |number: usize| match (ours(number), u16_at(28 + 4 * number), u16_at(30 + 4 * number)) {
        (false, ..) => (0, 0),
        // An empty value may be said to be anywhere.
        (true, at, 0) => (u16::from(at > 0), 0),
        (true, at, length) => (at, length),
    };
    (all, std::array::from_fn(field))
}

/// The same by the library.
fn of_library(application: Option<Application<'_>>) -> Fields {
    let field = |range: Option<std::ops::Range<usize>>| match range {
        Some(range) if range.is_empty() => (1, 0),
        Some(range) => (range.start as u16, range.len() as u16),
        None => (0, 0),
    };
    let start = |start: Start<'_>| match start {
        Start::Method(method) => (method.len() as u32, 0),
        Start::Status(status) => (0, status.into()),
    };
    let offset = |at: Option<usize>| at.unwrap_or(0) as u32;
    let (mut all, mut fields) = ([0; 12], [(0, 0); 5]);
    match application {
        Some(Application::Http(http)) => {
            let (method, status) = start(http.start);
            all[..5].copy_from_slice(&[1, method, status, http.head as u32, offset(http.body)]);
            fields[0] = field(http.host);
        }
        Some(Application::Sip(sip)) => {
            let (method, status) = start(sip.start);
            all[..4].copy_from_slice(&[2, method, status, sip.head as u32]);
            all[5] = offset(sip.sdp);
            fields[1..].copy_from_slice(&[sip.from, sip.to, sip.via, sip.call_id].map(field));
        }
        Some(Application::Rtp(rtp)) => {
            all = [3, 0, 0, 0, 0, 0, rtp.payload as u32, rtp.payload_type.into(), rtp.marker.into(), 0, 0, 0];
            all[9..].copy_from_slice(&[rtp.sequence.into(), rtp.timestamp, rtp.ssrc]);
        }
        _ => {}
    }
    (all, fields)
}

/// Counts of packets, and of those of HTTP, SIP and RTP.
type Counts = [u64; 4];

/// Compares what the plug-in has said of each packet with the library, until `sent` packets have come.
fn compare(capture: &mut Capture, sent: u64) -> Counts {
    let mut worker = capture.workers().remove(0);
    let (mut counts, mut told) = ([0; 4], None);
    let mut each = |record: &Record<'_>| match record.plugin() {
        Some((_, bytes)) => told = Some(of_plugin(bytes)),
        None => {
            let (mut theirs, ours) =
                (told.take().expect("a record before each packet"), record.application());
            let expected = of_library(ours);
            if expected.0[0] == 3 {
                // The plug-in has the head of RTP, too, which the library does not give.
                theirs.0[3] = 0;
            }
            if expected.0[0] == 2 {
                // The body of SIP is given only if it is SDP.
                theirs.0[4] = 0;
            }
            let shown = String::from_utf8_lossy(record.data());
            assert_eq!(theirs, expected, "{:?}: {shown:?}", record.data());
            counts[0] += 1;
            counts[expected.0[0] as usize] += u64::from(expected.0[0] > 0);
        }
    };
    while capture.ledger().unwrap().total.analysed < sent {
        let batch = worker.next_batch(Duration::from_millis(20)).unwrap().expect("it goes on");
        batch.for_each(|record| each(&record));
    }
    counts
}

fn start(lab: &Lab, folder: &Path) -> Capture {
    let object = program_file(folder, "plugin_fields").unwrap();
    let text = "[[rule]]\nid = 1\nplugin = \"fields\"\naction = \"none\"\n";
    open(lab, KERNEL[0], |builder| {
        let builder = builder.plugin("fields", object).plugin_budget(1_000_000_000).plugin_records(true);
        builder.snap_len(SHOWN).ring_size(64 << 20).rules(rules(text))
    })
    .unwrap()
}

/// A message with some of the parts that the fields depend on, in random order, and damaged.
fn random_message(random: &mut Dice) -> Vec<u8> {
    const STARTS: [&str; 18] = [
        "INVITE sip:b SIP/2.0",
        "SIP/2.0 180 Ringing",
        "SIP/2.0 780 No",
        "SIP/2.0 99",
        "GET / HTTP/1.1",
        "HTTP/1.1 404 No",
        "HTTP/1.0 600 No",
        "OPTIONS * HTTP/1.1",
        "CONNECT a:1 HTTP/1.1",
        "GET http://a/ HTTP/1.1",
        "-A- tel:1",
        "GET a",
        "GET  /",
        "get /",
        "HTTP/1.1 ",
        "REGISTER sips:a SIP/2.0",
        "M-SEARCH /",
        "PRI",
    ];
    const NAMES: [&str; 26] = [
        "Host",
        "hOST",
        "From",
        "f",
        "To",
        "T",
        "Via",
        "v",
        "Call-ID",
        "I",
        "Content-Type",
        "c",
        "Content-typf",
        "X-Host",
        "To ",
        "Via\t",
        " To",
        "T o",
        "",
        "ho",
        "Content-Length",
        "From\r\n ",
        "\rTo",
        "i\u{c}",
        "call-id\r",
        "Contest-Type",
    ];
    const VALUES: [&str; 14] = [
        "a",
        " b ",
        "",
        "  ",
        " application/sdp",
        "Application/SDP;x",
        "application/sd",
        " x\r\n y",
        "\r\n\tz ",
        ":",
        "a:b",
        "\u{c}q\u{c}",
        "sip:a@b;tag=1",
        "c\r",
    ];
    const ENDS: [&str; 4] = ["\r\n", "\r\n", "\n", "\r\r\n"];
    let mut pick = |of: &[&'static str]| of[random.below(of.len())];
    let mut text = pick(&STARTS).to_owned() + pick(&ENDS);
    loop {
        match pick(&["field", "field", "field", "field", "field", "line", "end", "stop"]) {
            "field" => {
                text += pick(&NAMES);
                text += pick(&[":", ":", ":", "", " :"]);
                text += pick(&VALUES);
                text += pick(&ENDS);
            }
            "line" => text += pick(&["x\r\n", " \r\n", "\r", "\n ", "::\n"]),
            "end" => text += pick(&["\r\n", "\n", "\r\nv=0\r\n", "\r\nTo: x\r\n\r\nb"]),
            _ => break,
        }
    }
    let mut bytes: Vec<u8> = text.chars().map(|letter| letter as u8).collect();
    if random.below(4) == 0 {
        let at = random.below(bytes.len());
        bytes[at] = b" :\r\nA/"[random.below(6)];
    }
    bytes
}

/// A payload that may be RTP.
fn random_rtp(random: &mut Dice) -> Vec<u8> {
    let first = [0x80, 0x80, 0x90, 0xa0, 0xb0, 0x83, 0x9f, 0xc0][random.below(8)];
    let mut payload = vec![first, random.below(256) as u8];
    payload
        .extend((0..random.below(60)).map(|_| if random.below(3) == 0 { random.below(40) as u8 } else { 0 }));
    payload
}

#[test]
fn fields_in_a_plug_in_are_those_of_the_library() {
    if !require_root("fields_in_a_plug_in_are_those_of_the_library") {
        return;
    }
    const PACKETS: usize = 6000;
    let mut random = Dice(seed());
    let mut scene = Scene::new();
    for number in 0..PACKETS {
        let payload = if number % 5 == 0 { random_rtp(&mut random) } else { random_message(&mut random) };
        let port = [5060, 80, 1023, 1024, 40000][random.below(5)];
        let from = format!("192.0.2.1:{port}");
        match random.below(2) {
            0 => scene.udp(number as u64, &from, "192.0.2.2:5060", &payload),
            _ => scene.tcp(number as u64, &from, "192.0.2.2:80", 1, &payload),
        }
    }
    let (lab, folder) = (Lab::new(1).unwrap(), tempfile::tempdir().unwrap());
    let mut capture = start(&lab, folder.path());
    let frames = scene.into_frames();
    let sent = frames.len() as u64;
    replay(&lab, folder.path(), &frames, 1).unwrap();
    let [packets, http, sip, rtp] = compare(&mut capture, sent);
    assert_eq!(packets, sent);
    assert!(http > 300 && sip > 300 && rtp > 100, "{http} of HTTP, {sip} of SIP, {rtp} of RTP");
    let plugins = &capture.rule_stats().unwrap().unwrap().plugins;
    println!("{} ns a packet", plugins[0].mean_ns());
    assert_eq!((plugins[0].asked, plugins[0].unwritten), (sent, 0));
}

#[test]
fn fields_of_the_corpus_in_a_plug_in_are_those_of_the_library() {
    if !require_root("fields_of_the_corpus_in_a_plug_in_are_those_of_the_library") {
        return;
    }
    let Some(corpus) = corpus("fields_of_the_corpus_in_a_plug_in_are_those_of_the_library") else { return };
    let (lab, folder) = (Lab::new(1).unwrap(), tempfile::tempdir().unwrap());
    let all = merged(&corpus, folder.path(), &["http", "voip"]).unwrap();
    let mut capture = start(&lab, folder.path());
    let end = lab.sender();
    let words = ["send", "-i", &end.device, "--replay", all.to_str().unwrap(), "--speed", "max", "--json"];
    let sent = wirelane(&lab, &end.namespace, &words).unwrap().finish(LIMIT).unwrap();
    let sent = column(&last_of(&sent).unwrap(), "sent");
    let counts = compare(&mut capture, sent);
    println!("{counts:?}");
    assert!(counts[1] > 900 && counts[2] > 400 && counts[3] > 10_000, "{counts:?}");
}

/// The seed of random cases, as of the other tests.
fn seed() -> u64 {
    let seed = std::env::var("WIRELANE_SEED").map_or(1, |seed| seed.parse().unwrap());
    println!("WIRELANE_SEED={seed}");
    seed
}
