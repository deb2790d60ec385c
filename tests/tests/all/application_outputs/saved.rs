//! A capture file for each call, and streams as IPFIX, as read by tshark and others.

use std::fs;
use std::io::Write as _;
use std::net::UdpSocket;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use wirelane_tests::calls::{Scene, voip};
use wirelane_tests::numbers::column;
use wirelane_tests::wirelane_binary;

use super::scenes::{scene, sorted};

/// Output lines of tshark: these fields of each packet in a file that matches the filter.
fn tshark(file: &Path, filter: &str, fields: &[&str]) -> Option<Vec<String>> {
    let fields = fields.iter().flat_map(|field| ["-e", field]);
    let output = Command::new("tshark")
        .args(["-n", "-r", file.to_str().unwrap(), "-Y", filter, "-d", "udp.port==7000,rtp", "-T", "fields"])
        .args(fields)
        .output();
    let Ok(output) = output else {
        println!("left out: what tshark reads of saved calls (it is not installed: scripts/setup)");
        return None;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect())
}

fn names(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    sorted(names)
}

/// Battery: I10
#[test]
fn a_saved_call_has_its_own_packets_and_audio_where_that_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let file = scene(folder.path());
    let others = ["given-up@example.com", "late@example.com", "refused@example.com"];
    for (with_audio, packets) in [(false, 13), (true, 13 + 990 + 1)] {
        let saved = folder.path().join(format!("saved-{with_audio}"));
        let mut words = vec!["--save-calls", saved.to_str().unwrap()];
        words.extend(with_audio.then_some("--with-audio"));
        let last = voip(&file, &words).last;
        let counts = &last["saved_calls"];
        assert_eq!((column(counts, "calls"), column(counts, "packets")), (4, packets), "{counts}");
        let found = names(&saved);
        let bytes: u64 = found.iter().map(|name| saved.join(name).metadata().unwrap().len()).sum();
        assert_eq!((column(counts, "bytes"), column(counts, "unsaved")), (bytes, 0));
        let named = |id: &str| {
            let name = found.iter().find(|name| name.ends_with(&format!("-{id}.pcapng")));
            saved.join(name.unwrap_or_else(|| panic!("{id}: {found:?}")))
        };
        assert_eq!(found.len(), 4);
        assert!(found.iter().all(|name| name.starts_with("19700101T0")), "{found:?}");
        for (id, call_id, lines) in [
            (
                "answered_.._@example.com",
                "answered/../@example.com",
                &["INVITE|", "|180", "|200", "ACK|", "BYE|", "|200"][..],
            ),
            (others[0], others[0], &["INVITE|", "|180", "CANCEL|"]),
            (others[1], others[1], &["INVITE|", "|486"]),
            (others[2], others[2], &["INVITE|", "|486"]),
        ] {
            let path = named(id);
            let fields = ["sip.Method", "sip.Status-Code", "sip.Call-ID", "_ws.expert.message"];
            let Some(found) = tshark(&path, "sip", &fields) else { return };
            let expected: Vec<String> =
                lines.iter().map(|line| format!("{}\t{call_id}\t", line.replace('|', "\t"))).collect();
            assert_eq!(found, expected, "{}", path.display());
            let rtp = if with_audio && id.starts_with("answered") { 990 } else { 0 };
            assert_eq!(tshark(&path, "rtp", &["rtp.ssrc"]).unwrap().len(), rtp, "{}", path.display());
            assert_eq!(tshark(&path, "rtcp", &["rtcp.pt"]).unwrap().len(), usize::from(rtp > 0));
            // No packet is malformed, and there are no packets of other protocols.
            let broken = "_ws.malformed or ip.checksum.status == 0 or tcp.checksum.status == 0 or !(sip or rtp or rtcp)";
            assert_eq!(tshark(&path, broken, &["frame.number"]).unwrap(), Vec::<String>::new());
        }
        // The saved file yields the same call when it is read.
        let again = voip(&named("answered_.._@example.com"), &[]);
        let (first, second) = (voip(&file, &[]), again);
        let [one, two] = [&first, &second].map(|results| results.call("answered/../@example.com").clone());
        for name in ["start", "end", "state", "talk_ms", "post_dial_delay_ms", "messages"] {
            assert_eq!(one[name], two[name], "{name}");
        }
        assert_eq!(one["streams"] == two["streams"], with_audio);
    }
}

#[test]
fn only_chosen_calls_are_saved_and_what_cannot_be_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let file = scene(folder.path());
    let saved = folder.path().join("saved");
    let words =
        ["--call-id", "given-up@example.com", "--with-audio", "--save-calls", saved.to_str().unwrap()];
    for round in 1..=2 {
        let counts = &voip(&file, &words).last["saved_calls"];
        assert_eq!((column(counts, "calls"), column(counts, "packets")), (1, 3), "{counts}");
        // An existing file is never overwritten.
        assert_eq!(names(&saved).len(), round);
    }
    assert!(names(&saved)[0].ends_with("-given-up@example.com-2.pcapng"), "{:?}", names(&saved));
    for (words, message) in
        [(&["--with-audio"][..], "--save-calls"), (&["--save-calls", "/proc/nowhere"], "/proc/nowhere")]
    {
        let output = Command::new(wirelane_binary().unwrap())
            .args(["voip", "-r", file.to_str().unwrap()])
            .args(words)
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains(message), "{error}");
    }
}

/// Battery: F4
#[test]
fn what_a_killed_process_left_of_calls_goes_and_what_a_living_one_has_stays() {
    let folder = tempfile::tempdir().unwrap();
    let (file, saved) = (scene(folder.path()), folder.path().join("saved"));
    let bytes = fs::read(&file).unwrap();
    let hidden = || -> Vec<String> {
        let names = if saved.exists() { names(&saved) } else { Vec::new() };
        names.into_iter().filter(|name| name.ends_with(".part")).collect()
    };
    // Half of the file, and then nothing more: the answered call is still active.
    let begin = || {
        let mut command = Command::new(wirelane_binary().unwrap());
        command.args(["voip", "-r", "-", "--json", "--with-audio", "--save-calls"]).arg(&saved);
        let before = hidden();
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut pipe = child.stdin.take().unwrap();
        pipe.write_all(&bytes[..bytes.len() / 2]).unwrap();
        let end = Instant::now() + Duration::from_secs(20);
        while hidden().iter().all(|name| before.contains(name)) {
            assert!(Instant::now() < end, "nothing is written of a call that goes on");
            std::thread::sleep(Duration::from_millis(10));
        }
        (child, pipe)
    };
    let (mut killed, _pipe) = begin();
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert_eq!(hidden().len(), 1);
    // The next process removes that file; its own file stays when one more process starts.
    let (living, pipe) = begin();
    let of_living = hidden();
    assert_eq!(of_living.len(), 1);
    let counts = &voip(&file, &["--with-audio", "--save-calls", saved.to_str().unwrap()]).last["saved_calls"];
    assert_eq!((column(counts, "calls"), column(counts, "cleared_files")), (4, 0), "{counts}");
    assert_eq!(hidden(), of_living);
    drop(pipe);
    let told = String::from_utf8(living.wait_with_output().unwrap().stdout).unwrap();
    let last: serde_json::Value = serde_json::from_str(told.lines().last().unwrap()).unwrap();
    assert_eq!(column(&last["saved_calls"], "cleared_files"), 1, "{last}");
    assert!(names(&saved).iter().all(|name| !name.starts_with('.')), "{:?}", names(&saved));
}

/// Battery: I10
#[test]
fn streams_are_ipfix_that_others_read() {
    let folder = tempfile::tempdir().unwrap();
    let (calls, ipfix) = (scene(folder.path()), folder.path().join("streams.ipfix"));
    let collector = UdpSocket::bind("127.0.0.1:0").unwrap();
    collector.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let targets =
        [format!("ipfix://{}", collector.local_addr().unwrap()), format!("file:{}", ipfix.display())];
    let words = ["--heuristic", "--hep-agent", "7", "--export", &targets[0], "--export", &targets[1]];
    let results = voip(&calls, &words);
    let mut expected: Vec<String> = results
        .all_streams()
        .iter()
        .map(|stream| {
            let jitter = stream["jitter_ms"].as_f64().unwrap();
            let [from, to, packets] = ["src_port", "dst_port", "packets"].map(|name| column(stream, name));
            format!("{} {from} {to} {packets} {jitter:.3}", stream["src"].as_str().unwrap())
        })
        .collect();
    expected.sort();
    assert_eq!(expected.len(), 3);
    let (mut scene, mut buffer, mut messages) = (Scene::new(), vec![0; 2000], 0);
    while let Ok(length) = collector.recv(&mut buffer) {
        scene.udp(messages, "192.0.2.1:4739", "192.0.2.2:4739", &buffer[..length]);
        messages += 1;
    }
    let exports = results.last["exports"].as_array().unwrap();
    for (export, sent) in exports.iter().zip([messages, 1]) {
        assert_eq!((column(export, "messages"), column(export, "unsent")), (sent, 0), "{export}");
    }
    let received = folder.path().join("received.pcap");
    scene.write(&received).unwrap();
    let names = ["srcaddr", "srcport", "dstport", "packets", "rfc3550_jitter_nanoseconds"]
        .map(|name| format!("cflow.{name}"));
    let Some(lines) = tshark(&received, "cflow", &names.each_ref().map(String::as_str)) else { return };
    let mut found = Vec::new();
    for line in &lines {
        let columns: Vec<Vec<&str>> = line.split('\t').map(|column| column.split(',').collect()).collect();
        // The message of templates has no such value.
        let jitters = columns[4].iter().filter(|jitter| !jitter.is_empty());
        for (at, jitter) in jitters.enumerate() {
            let jitter = (jitter.parse::<f64>().unwrap() / 1e3).round() / 1e3;
            let [src, from, to, packets] = [0, 1, 2, 3].map(|column: usize| columns[column][at]);
            found.push(format!("{src} {from} {to} {packets} {jitter:.3}"));
        }
    }
    found.sort();
    assert_eq!(found, expected);
    let Ok(output) = Command::new("ipfixDump").arg("--in").arg(&ipfix).output() else {
        println!("left out: what ipfixDump reads of streams (it is not installed: scripts/setup)");
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout);
    let of = |name: &str| text.lines().filter(|line| line.contains(name) && line.contains(" : ")).count();
    assert_eq!((of("rfc3550JitterNanoseconds"), of("packetDeltaCount")), (3, 3), "{text}");
}
