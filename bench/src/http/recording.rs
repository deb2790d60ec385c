//! Web traffic that is recorded once, and sent again at any rate: nginx's answers to wrk.
//!
//! ```text
//!   wrk -- veth -- nginx      in a lab of their own; tcpdump on nginx's side
//!    |               '- its log: so many lines as requests were made
//!    '- asks so often, then waits until all is answered, so that nothing is cut
//!   the recording, once for each client address it is given, a packet a microsecond  -> a file to replay
//! ```
//!
//! Copies are connections of other clients, as what is sent again in one that is over is no new transaction. Addresses of
//! Ethernet are nobody's on the bed: packets come as from a mirror port, and the host's stack leaves them alone.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use wirelane::{FileOptions, FileSource};
use wirelane_tests::recordings::{NOON_NS, write_header, write_packet};
use wirelane_tests::{Child, Lab, Signal};

use crate::process;
use crate::receiver::tcpdump;
use crate::trial::Tools;

/// Requests of a recording.
pub const REQUESTS: u64 = 1000;
/// Connections of wrk that are open at a time; nginx closes each after so many requests, and another one is opened.
const CONNECTIONS: u32 = 16;
const PER_CONNECTION: u32 = 50;
/// Pages: names, bytes, and how many of ten requests ask for them. A response has 11 kB in the mean.
const PAGES: [(&str, usize, usize); 4] =
    [("1k", 1 << 10, 4), ("4k", 4 << 10, 3), ("16k", 16 << 10, 2), ("64k", 64 << 10, 1)];
const PORT: u16 = 8080;
/// From one packet of a replay to the next at speed 1.
pub const STEP_NS: u64 = 1000;
/// How long anything here may take.
const LIMIT: Duration = Duration::from_secs(30);

/// Where an IPv4 packet and its addresses begin in an Ethernet frame.
const IP: usize = 14;
const SOURCE: usize = IP + 12;
const DESTINATION: usize = IP + 16;

/// Packets, and what the server has logged of them.
#[derive(Debug)]
pub struct Recording {
    frames: Vec<Vec<u8>>,
    client: [u8; 4],
    /// Lines of the server's log.
    pub requests: u64,
}

impl Recording {
    /// Records anew.
    ///
    /// # Errors
    /// Where a program does not do as it should, or our log of the recording is not the server's.
    pub fn make(tools: &Tools) -> Result<Recording> {
        let lab = Lab::new(1)?;
        let folder = tempfile::tempdir()?;
        let path = |name: &str| folder.path().join(name).display().to_string();
        // nginx's workers are nobody in particular.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777))?;
        fs::create_dir(folder.path().join("site"))?;
        for (name, bytes, _) in PAGES {
            fs::write(folder.path().join("site").join(name), vec![b'w'; bytes])?;
        }
        let address = lab.receiver().address;
        fs::write(folder.path().join("nginx.conf"), nginx_conf(&path(""), &format!("{address}:{PORT}")))?;
        fs::write(folder.path().join("ask.lua"), ask_lua())?;
        let receiver = &lab.receiver().namespace;
        let server = lab.spawn(receiver, &["nginx", "-c", &path("nginx.conf"), "-p", &path("")])?;
        wait_until("nginx listens", || {
            let listening = lab.exec(receiver, &["cat", "/proc/net/tcp"])?;
            Ok(listening.contains(&format!(":{PORT:04X} 00000000:0000 0A")))
        })?;
        let file = folder.path().join("recording.pcap");
        let device = &lab.receiver().device;
        let saved = path("recording.pcap");
        // At once, as what libpcap collects is not written when it ends.
        let words = "tcpdump -n -s 2048 --immediate-mode -B 65536 -i";
        let words: Vec<&str> = words.split(' ').chain([&**device, "-w", &saved, "tcp"]).collect();
        let recorder = lab.spawn(receiver, &words)?;
        process::wait_for_packet_socket(recorder.pid(), LIMIT).context("tcpdump did not start")?;
        process::wait_until_idle(recorder.pid(), Duration::from_millis(100), Duration::from_secs(5))?;
        let (connections, url) = (CONNECTIONS.to_string(), format!("http://{address}:{PORT}/"));
        let words = ["wrk", "-t", "1", "-c", &connections, "-d", "60s", "-s", &path("ask.lua"), &url];
        let client = lab.spawn(&lab.sender().namespace, &words)?;
        let lines = || -> Result<u64> {
            let log = fs::read(folder.path().join("access.log"))?;
            Ok(log.iter().filter(|byte| **byte == b'\n').count() as u64)
        };
        wait_until("wrk has asked", || Ok(lines()? >= REQUESTS))?;
        // What it has logged is on its way.
        std::thread::sleep(Duration::from_millis(200));
        client.signal(Signal::Interrupt)?;
        client.finish(LIMIT)?;
        // Ends of connections, too.
        std::thread::sleep(Duration::from_millis(300));
        let recorded = recorder.terminate(LIMIT)?;
        server.terminate(LIMIT)?;
        let counts = tcpdump(&recorded.stderr)
            .with_context(|| format!("tcpdump said something unexpected: {}", recorded.stderr))?;
        ensure!(counts.lost == 0, "tcpdump has lost packets: {}", recorded.stderr);
        let requests = lines()?;
        ensure!(requests == REQUESTS, "nginx has logged {requests} requests of {REQUESTS}");
        is_whole(tools, &file, requests)?;
        let frames = frames(&file)?;
        ensure!(frames.len() as u64 == counts.received, "tcpdump has recorded {}", counts.received);
        Ok(Recording { frames, client: lab.sender().address.octets(), requests })
    }

    /// Packets.
    pub fn packets(&self) -> u64 {
        self.frames.len() as u64
    }

    /// Bytes on the wire.
    pub fn bytes(&self) -> u64 {
        self.frames.iter().map(|frame| frame.len() as u64).sum()
    }

    /// Writes a file with this traffic of so many clients, one after the other.
    ///
    /// # Errors
    /// Where it cannot be written.
    pub fn write(&self, path: &Path, copies: u64) -> Result<()> {
        let mut output = BufWriter::with_capacity(1 << 20, File::create(path)?);
        write_header(&mut output)?;
        let mut ts_ns = NOON_NS;
        for copy in 0..copies {
            let number = u32::try_from(copy + 1).context("too many copies")?.to_be_bytes();
            let client = [10, 80 + number[1], number[2], number[3]];
            for frame in &self.frames {
                write_packet(&mut output, ts_ns, &of_client(frame, self.client, client))?;
                ts_ns += STEP_NS;
            }
        }
        Ok(output.flush()?)
    }
}

/// A frame as another client's, on a mirror port.
fn of_client(frame: &[u8], old: [u8; 4], new: [u8; 4]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
    for at in [SOURCE, DESTINATION] {
        if frame[at..at + 4] == old {
            frame[at..at + 4].copy_from_slice(&new);
        }
    }
    let header = usize::from(frame[IP] & 15) * 4;
    // Of IPv4's header, and of TCP's pseudo header (RFC 1624).
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

/// Every request that the server has logged is a transaction of ours, and nothing is wrong with any.
fn is_whole(tools: &Tools, file: &Path, requests: u64) -> Result<()> {
    let file = file.to_str().context("a path that is UTF-8")?;
    let words = ["http", "-r", file, "--json", "--quiet"];
    let finished = Child::spawn(Command::new(&tools.wirelane).args(words))?.finish(LIMIT)?;
    ensure!(finished.status.success(), "wirelane http: {}", finished.stderr);
    let last = finished.last_json()?;
    let of = |name: &str| last[name].as_u64();
    ensure!(
        of("transactions") == Some(requests)
            && of("responses") == Some(requests)
            && of("requests") == Some(requests)
            && last["marks"].as_object().is_some_and(serde_json::Map::is_empty),
        "the recording is not what the server has logged, {requests} requests: {last}"
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

/// What wrk does: asks for pages in turn, so often, and then waits.
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

    /// One's complement sum of all words: 0xffff where a checksum within is right.
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
            // And back.
            assert_eq!(of_client(&other, client, [10, 77, 0, 1])[IP..], frame[IP..]);
        }
    }
}
