//! Web traffic: responses of nginx to wrk, recorded once per process and replayed at any rate.
//!
//! ```text
//!   wrk -- veth -- nginx      in a topology of their own; tcpdump on nginx's side
//!    |               '- its log: so many lines as requests were made
//!    '- asks so often, then waits until all is answered, so that nothing is cut
//!   the recording, once for each client address it is given, a packet a microsecond  -> a file to replay
//! ```
//!
//! Copies are connections of other clients, since a replay within a finished connection would not be a new transaction.
//! The Ethernet addresses are unused ones: packets arrive as from a mirror port, and the host's stack ignores them.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;
use wirelane::{FileOptions, FileSource};

use crate::calls::Capture;
use crate::child::Child;
use crate::holder::{Holder, output};
use crate::process;
use crate::roles::{Host as _, Sent};
use crate::suite::Napi;
use crate::topology::{Plan, Topology};

/// Number of requests in a recording.
pub const REQUESTS: u64 = 1000;
/// Requests at full speed, per second of the requested duration.
pub const FULL_SPEED: f64 = 20_000.0;
/// Figure of a sensor with the number of lost packets, since its counts are of requests.
pub const LOST: &str = "packets lost";
/// Number of concurrent connections of wrk; nginx closes each after this many requests, and wrk opens a new one.
const CONNECTIONS: u32 = 16;
const PER_CONNECTION: u32 = 50;
/// Pages: names, bytes, and share of ten requests. A response has 11 kB on average.
const PAGES: [(&str, usize, usize); 4] =
    [("1k", 1 << 10, 4), ("4k", 4 << 10, 3), ("16k", 16 << 10, 2), ("64k", 64 << 10, 1)];
/// Address of nginx, and the client's address.
const SERVER: &str = "10.77.0.2";
const CLIENT: [u8; 4] = [10, 77, 0, 1];
const PORT: u16 = 8080;
/// Interval between packets of a replay at speed 1, and time of the first one.
const STEP_NS: u64 = 1000;
const NOON_NS: u64 = 1_700_000_000_000_000_000;
/// Maximum duration of any step.
const LIMIT: Duration = Duration::from_secs(30);

/// Offsets of an IPv4 packet and its addresses in an Ethernet frame.
const IP: usize = 14;
const SOURCE: usize = IP + 12;
const DESTINATION: usize = IP + 16;

/// Packets of [`REQUESTS`] requests, according to the server's log.
#[derive(Debug)]
pub struct Recording {
    frames: Vec<Vec<u8>>,
}

static RECORDING: OnceLock<Recording> = OnceLock::new();

/// Recording of this process, which is created at the first call. `wirelane` is the program.
pub fn recording(wirelane: &Path) -> Result<&'static Recording> {
    if let Some(recording) = RECORDING.get() {
        return Ok(recording);
    }
    let made = Recording::make(wirelane).context("recording web traffic")?;
    Ok(RECORDING.get_or_init(|| made))
}

/// Number of packets in the recording for each request.
pub fn packets_per_request() -> Result<f64> {
    let recording = RECORDING.get().context("no web traffic is recorded yet")?;
    Ok(recording.frames.len() as f64 / REQUESTS as f64)
}

/// Speed of a replay, as for `--speed`, for this many requests per second.
pub fn speed(rps: f64) -> Result<String> {
    Ok(format!("{:.9}x", rps * packets_per_request()? * STEP_NS as f64 / 1e9))
}

/// Converts sent packets to requests; lost packets are assumed to be distributed evenly over them.
pub fn requests(sent: Sent) -> Result<Sent> {
    let per_request = packets_per_request()?;
    let of = |packets: u64| (packets as f64 / per_request).round() as u64;
    Ok(Sent { offered: of(sent.offered), sent: of(sent.sent), ..sent })
}

impl Recording {
    fn make(wirelane: &Path) -> Result<Recording> {
        let plan = Plan {
            devices: 1,
            queues: 1,
            mtu: 1500,
            napi: Napi::Inline,
            nice: 0,
            merges: true,
            receiver: false,
        };
        let topology = Topology::new(&plan)?;
        let (client, server) = (topology.sender(), topology.sensor());
        let device = topology.device().to_owned();
        let here = |holder: &Holder, words: &str| output(holder.inside().args(words.split_whitespace()));
        here(
            client,
            &format!("ip addr add {}/24 dev {}", std::net::Ipv4Addr::from(CLIENT), topology.sending()[0]),
        )?;
        here(server, &format!("ip addr add {SERVER}/24 dev {device}"))?;
        let folder = server.folder("web")?;
        let path = |name: &str| folder.inside.join(name).display().to_string();
        fs::create_dir(folder.outside.join("site"))?;
        for (name, bytes, _) in PAGES {
            fs::write(folder.outside.join("site").join(name), vec![b'w'; bytes])?;
        }
        fs::write(folder.outside.join("nginx.conf"), nginx_conf(&path(""), &format!("{SERVER}:{PORT}")))?;
        let asking = client.folder("web")?;
        fs::write(asking.outside.join("ask.lua"), ask_lua())?;
        let start = |name: &str, holder: &Holder, line: &str| {
            Child::spawn(name, holder.inside().args(line.split_whitespace()))
        };
        let nginx = start("nginx", server, &format!("nginx -c {} -p {}", path("nginx.conf"), path("")))?;
        wait_until("nginx listens", || {
            Ok(here(server, "cat /proc/net/tcp")?.contains(&format!(":{PORT:04X} 00000000:0000 0A")))
        })?;
        let file = folder.outside.join("recording.pcap");
        // Immediate mode, as tcpdump does not write the packets that libpcap has buffered when it ends.
        let words = "tcpdump -n -s 2048 --immediate-mode -B 65536 -Z root";
        let line = format!("{words} -i {device} -w {} tcp", path("recording.pcap"));
        let recorder = start("tcpdump", server, &line)?;
        process::wait_for_packet_socket(recorder.pid(), LIMIT).context("tcpdump did not start")?;
        process::wait_until_idle(recorder.pid(), Duration::from_millis(100), Duration::from_secs(5))?;
        let script = asking.inside.join("ask.lua");
        let line =
            format!("wrk -t 1 -c {CONNECTIONS} -d 60s -s {} http://{SERVER}:{PORT}/", script.display());
        let wrk = start("wrk", client, &line)?;
        let lines = || -> Result<u64> {
            let log = fs::read(folder.outside.join("access.log"))?;
            Ok(log.iter().filter(|byte| **byte == b'\n').count() as u64)
        };
        wait_until("wrk has asked", || Ok(lines()? >= REQUESTS))?;
        // wrk's output may still be in transit.
        std::thread::sleep(Duration::from_millis(200));
        process::signal(Signal::SIGINT, wrk.pid())?;
        wrk.finish(LIMIT)?;
        // Wait for the ends of connections, too.
        std::thread::sleep(Duration::from_millis(300));
        process::signal(Signal::SIGTERM, recorder.pid())?;
        let recorded = recorder.finish(LIMIT)?.said;
        process::signal(Signal::SIGTERM, nginx.pid())?;
        nginx.finish(LIMIT)?;
        ensure!(recorded.contains("\n0 packets dropped by kernel"), "tcpdump has lost packets: {recorded}");
        let requests = lines()?;
        ensure!(requests == REQUESTS, "nginx has logged {requests} requests of {REQUESTS}");
        is_whole(wirelane, &file)?;
        Ok(Recording { frames: frames(&file)? })
    }

    /// Writes a file with this traffic of this many clients, one after the other.
    pub fn write(&self, path: &Path, clients: u64) -> Result<()> {
        let mut output = Capture::create(path)?;
        let mut ts_ns = NOON_NS;
        for client in 0..clients {
            let number = u32::try_from(client + 1).context("too many clients")?.to_be_bytes();
            let client = [10, 80 + number[1], number[2], number[3]];
            for frame in &self.frames {
                output.packet(ts_ns, &of_client(frame, CLIENT, client))?;
                ts_ns += STEP_NS;
            }
        }
        output.finish()
    }
}

/// A frame with another client address, as on a mirror port.
fn of_client(frame: &[u8], old: [u8; 4], new: [u8; 4]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
    for at in [SOURCE, DESTINATION] {
        if frame[at..at + 4] == old {
            frame[at..at + 4].copy_from_slice(&new);
        }
    }
    let header = usize::from(frame[IP] & 15) * 4;
    // Checksums of the IPv4 header, and of TCP with its pseudo header (RFC 1624).
    for sum in [IP + 10, IP + header + 16] {
        let words = old.chunks(2).zip(new.chunks(2)).flat_map(|(old, new)| {
            [
                u32::from(!u16::from_be_bytes([old[0], old[1]])),
                u32::from(u16::from_be_bytes([new[0], new[1]])),
            ]
        });
        let mut total = u32::from(!u16::from_be_bytes([frame[sum], frame[sum + 1]])) + words.sum::<u32>();
        while total >> 16 != 0 {
            total = (total & 0xffff) + (total >> 16);
        }
        frame[sum..sum + 2].copy_from_slice(&(!(total as u16)).to_be_bytes());
    }
    frame
}

fn wait_until(what: &str, is_so: impl Fn() -> Result<bool>) -> Result<()> {
    let end = Instant::now() + LIMIT;
    while !is_so().unwrap_or(false) {
        ensure!(Instant::now() < end, "{what}: not within {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

fn frames(file: &Path) -> Result<Vec<Vec<u8>>> {
    let mut source = FileSource::open(file, FileOptions::as_written())?;
    let mut frames = Vec::new();
    while let Some(batch) = source.next_batch(Duration::ZERO)? {
        frames.extend(batch.map(|record| record.data().to_vec()));
    }
    let is_tcp = |frame: &Vec<u8>| frame.len() >= IP + 40 && frame[12..14] == [8, 0] && frame[IP + 9] == 6;
    ensure!(frames.iter().all(is_tcp), "the recording has something else than TCP in it");
    Ok(frames)
}

/// Checks that every request in the server's log is a transaction in ours, without any marks.
fn is_whole(wirelane: &Path, file: &Path) -> Result<()> {
    let text = output(Command::new(wirelane).args(["http", "--json", "--quiet", "-r"]).arg(file))?;
    let last: Value =
        serde_json::from_str(text.lines().last().unwrap_or_default()).context("wirelane http --json")?;
    let all =
        ["transactions", "responses", "requests"].iter().all(|name| last[*name].as_u64() == Some(REQUESTS));
    ensure!(
        all && last["marks"].as_object().is_some_and(serde_json::Map::is_empty),
        "the recording is not what the server has logged, {REQUESTS} requests: {last}"
    );
    Ok(())
}

fn nginx_conf(folder: &str, listen: &str) -> String {
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|kind| format!("  {kind}_temp_path {folder}{kind};\n"))
        .collect();
    format!(
        "daemon off;\nuser root;\nworker_processes 1;\npid {folder}nginx.pid;\nerror_log {folder}error.log;\n\
         events {{ }}\nhttp {{\n  access_log {folder}access.log;\n{temporary}  keepalive_requests {PER_CONNECTION};\n  \
         server {{ listen {listen}; root {folder}site; }}\n}}\n"
    )
}

/// Script of wrk: requests the pages in turn, this many times, and then waits.
fn ask_lua() -> String {
    let names: String =
        PAGES.iter().map(|(name, _, weight)| format!("\"/{name}\", ").repeat(*weight)).collect();
    format!(
        "local pages = {{ {names}}}\nlocal asked = 0\nfunction delay()\n  asked = asked + 1\n  \
         if asked > {REQUESTS} then return 3600000 end\n  return 0\nend\nlocal number = 0\nfunction request()\n  \
         number = number + 1\n  return wrk.format(\"GET\", pages[number * 7 % #pages + 1])\nend\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One's complement sum of all words: 0xffff if it includes a correct checksum.
    fn sum(bytes: &[u8], start: u32) -> u32 {
        let words = bytes
            .chunks(2)
            .map(|pair| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u32::from(*low)));
        let mut total = start + words.sum::<u32>();
        while total >> 16 != 0 {
            total = (total & 0xffff) + (total >> 16);
        }
        total
    }

    fn is_right(frame: &[u8]) -> bool {
        let tcp = &frame[IP + 20..];
        let pseudo = sum(&frame[SOURCE..SOURCE + 8], 6 + tcp.len() as u32);
        sum(&frame[IP..IP + 20], 0) == 0xffff && sum(tcp, pseudo) == 0xffff
    }

    #[test]
    fn another_client_has_another_address_and_checksums_are_right() {
        let mut frame = vec![9; 12];
        frame.extend([8, 0, 0x45, 0, 0, 45, 0, 0, 0, 0, 64, 6, 0, 0, 10, 77, 0, 1, 10, 77, 0, 2]);
        frame.extend([0x80, 1, 0x1f, 0x90, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x18, 1, 0, 0, 0, 0, 0]);
        frame.extend(b"hello");
        let checksum = !(sum(&frame[IP..IP + 20], 0) as u16);
        frame[IP + 10..IP + 12].copy_from_slice(&checksum.to_be_bytes());
        let tcp = sum(&frame[SOURCE..SOURCE + 8], 6 + 25);
        let checksum = !(sum(&frame[IP + 20..], tcp) as u16);
        frame[IP + 36..IP + 38].copy_from_slice(&checksum.to_be_bytes());
        assert!(is_right(&frame));
        for client in [[10, 80, 0, 1], [10, 81, 255, 254], [255, 255, 255, 255]] {
            let other = of_client(&frame, [10, 77, 0, 1], client);
            assert!(is_right(&other), "{client:?}");
            assert_eq!((&other[SOURCE..SOURCE + 4], &other[54..]), (&client[..], &b"hello"[..]));
            assert_eq!(other[DESTINATION..DESTINATION + 4], [10, 77, 0, 2]);
            // Convert back.
            assert_eq!(of_client(&other, client, [10, 77, 0, 1])[IP..], frame[IP..]);
        }
    }
}
