//! Rounds of mixed traffic through a lab, and what the peers have counted of it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::BufWriter;
use std::net::{SocketAddr, TcpStream};
use std::ops::AddAssign;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde_json::Value;
use wirelane::{FileOptions, FileSource, LinkType};
use wirelane_tests::numbers::{LIMIT, column, last_of, wirelane};
use wirelane_tests::recordings::{NOON_NS, write_header, write_packet};
use wirelane_tests::{Capture, Child, End, Lab, Signal};

/// Packets of the corpus in a round, and the time between two of them.
const REPLAYED: u64 = 12_000;
const GAP_NS: u64 = 400_000;
/// Requests and calls of a round.
const REQUESTS: u32 = 60;
const CALLS: u64 = 8;
const WEB: u16 = 8081;
const SIP: u16 = 5060;
const IPERF: u16 = 5201;

/// True if the programs are installed that speak with each other; otherwise a message says that `test` is skipped.
pub fn are_there(test: &str) -> bool {
    let missing = ["nginx", "curl", "sipp", "iperf3"].into_iter().find(|program| {
        let look = format!("PATH=$PATH:/usr/sbin command -v {program}");
        !Command::new("sh").args(["-c", &look]).output().unwrap().status.success()
    });
    if let Some(program) = missing {
        println!("left out: {test} (no {program}: scripts/setup)");
    }
    missing.is_none()
}

/// Has TCP make packets as they would be on a wire, also for tc: a recording counts an aggregate as one.
pub fn without_aggregates(lab: &Lab) {
    for end in [lab.sender(), lab.receiver()] {
        lab.exec(&end.namespace, &["ip", "link", "set", &end.device, "gso_max_segs", "1"]).unwrap();
    }
}

/// Counts of the peers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Peers {
    /// Packets of the corpus that were sent.
    pub replayed: u64,
    /// Responses that curl has received.
    pub responses: u64,
    /// Calls that sipp has completed.
    pub calls: u64,
    /// Datagrams that iperf3 has sent.
    pub datagrams: u64,
    /// Tests of iperf3 with datagrams; each begins with one more.
    pub tests: u64,
}

impl AddAssign for Peers {
    fn add_assign(&mut self, other: Peers) {
        self.replayed += other.replayed;
        self.responses += other.responses;
        self.calls += other.calls;
        self.datagrams += other.datagrams;
        self.tests += other.tests;
    }
}

/// Servers and phones on the receiver's side, which end on drop.
pub struct Traffic<'a> {
    lab: &'a Lab,
    folder: PathBuf,
    /// Packets of the file that is replayed.
    packets: u64,
    /// Locked, because rounds of several threads share this value.
    servers: Mutex<Vec<Child>>,
}

impl Traffic<'_> {
    /// Starts the servers, and makes the file to be replayed.
    pub fn start<'a>(lab: &'a Lab, folder: &Path, corpus: &Path) -> Traffic<'a> {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
        let packets = mix(corpus, &folder.join("corpus.pcap"));
        let site = folder.join("site");
        fs::create_dir(&site).unwrap();
        fs::write(site.join("small.txt"), "small\n".repeat(20)).unwrap();
        fs::write(site.join("large.bin"), vec![b'L'; 200_000]).unwrap();
        std::os::unix::fs::symlink("/usr/share/sip-tester", folder.join("pcap")).unwrap();
        let here = folder.display();
        // All addresses: those of a device go with it.
        let conf = format!(
            "daemon off;\nuser root;\nworker_processes 1;\npid {here}/nginx.pid;\nerror_log {here}/nginx-error.log;\n\
             events {{ }}\nhttp {{\n  access_log {here}/nginx.log combined;\n  client_body_temp_path {here}/body; \
             proxy_temp_path {here}/proxy; fastcgi_temp_path {here}/fastcgi;\n  uwsgi_temp_path {here}/uwsgi; \
             scgi_temp_path {here}/scgi;\n  server {{ listen 0.0.0.0:{WEB}; root {here}/site; }}\n}}\n"
        );
        fs::write(folder.join("nginx.conf"), conf).unwrap();
        without_aggregates(lab);
        let receiver = lab.receiver();
        let spawn = |words: &[&str]| {
            let mut command = lab.command(&receiver.namespace, words[0]);
            Child::spawn(command.args(&words[1..]).current_dir(folder)).unwrap()
        };
        let port = SIP.to_string();
        let conf = folder.join("nginx.conf").display().to_string();
        let servers = vec![
            spawn(&["/usr/sbin/nginx", "-c", &conf, "-p", &folder.display().to_string()]),
            spawn(&["sipp", "-sn", "uas", "-i", &receiver.address.to_string(), "-p", &port, "-nostdin"]),
            spawn(&["iperf3", "-s", "-p", &IPERF.to_string()]),
        ];
        // Over the loopback device, which is not captured.
        for port in [WEB, IPERF] {
            let end = Instant::now() + LIMIT;
            let up = || {
                TcpStream::connect_timeout(&SocketAddr::from(([127, 0, 0, 1], port)), Duration::from_secs(1))
                    .is_ok()
            };
            while !lab.enter(&receiver.namespace, up).unwrap() {
                assert!(Instant::now() < end, "port {port} does not answer");
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        Traffic { lab, folder: folder.to_owned(), packets, servers: Mutex::new(servers) }
    }

    /// One round of everything at a time.
    pub fn round(&self, number: u32) -> Peers {
        std::thread::scope(|scope| {
            let replayed = scope.spawn(|| self.replay());
            let calls = scope.spawn(|| self.call());
            let datagrams = scope.spawn(|| self.load());
            let responses = self.browse(number);
            Peers {
                replayed: replayed.join().unwrap(),
                responses,
                calls: calls.join().unwrap(),
                datagrams: datagrams.join().unwrap(),
                tests: 1,
            }
        })
    }

    fn replay(&self) -> u64 {
        let sender = self.lab.sender();
        let file = self.folder.join("corpus.pcap");
        let words = ["send", "-i", &sender.device, "--replay", file.to_str().unwrap(), "--json"];
        let finished = wirelane(self.lab, &sender.namespace, &words).unwrap().finish(LIMIT).unwrap();
        let sent = column(&last_of(&finished).unwrap(), "sent");
        assert_eq!(sent, self.packets, "{}", finished.stderr);
        sent
    }

    /// Requests over a few connections at a time, one in twenty for something that does not exist.
    fn browse(&self, round: u32) -> u64 {
        let at = format!("http://{}:{WEB}", self.lab.receiver().address);
        let mut words: Vec<String> =
            ["-s", "-S", "--parallel", "--parallel-max", "4", "--max-time", "120", "-w", "%{http_code}\n"]
                .map(str::to_owned)
                .to_vec();
        for number in 0..REQUESTS {
            let path = match number % 20 {
                0 => format!("gone?{round}-{number}"),
                1..=6 => format!("large.bin?{round}-{number}"),
                _ => format!("small.txt?{round}-{number}"),
            };
            words.extend([format!("{at}/{path}"), "-o".to_owned(), "/dev/null".to_owned()]);
        }
        let mut command = self.lab.command(&self.lab.sender().namespace, "curl");
        let output = command.args(words).env_remove("http_proxy").output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let codes = String::from_utf8(output.stdout).unwrap();
        assert!(codes.lines().all(|code| code == "200" || code == "404"), "{codes}");
        codes.lines().count() as u64
    }

    /// Calls with media, all of which are answered.
    fn call(&self) -> u64 {
        let End { namespace, address, .. } = self.lab.sender();
        let (target, number) = (format!("{}:{SIP}", self.lab.receiver().address), CALLS.to_string());
        let statistics = self.folder.join("calls.csv");
        let _ = fs::remove_file(&statistics);
        let status = self
            .lab
            .command(namespace, "sipp")
            .args(["-sn", "uac_pcap", &target, "-i", &address.to_string(), "-p", "5070", "-mp", "20000"])
            .args(["-m", &number, "-r", &number, "-l", &number, "-nostdin", "-timeout", "120"])
            .args(["-trace_stat", "-fd", "1", "-stf", statistics.to_str().unwrap()])
            .current_dir(&self.folder)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .unwrap();
        assert!(status.success(), "sipp: {status}");
        let text = fs::read_to_string(&statistics).unwrap();
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split(';').collect()).collect();
        let at = |name: &str| rows[0].iter().position(|known| *known == name).unwrap();
        let of = |name: &str| rows.last().unwrap()[at(name)].parse::<u64>().unwrap();
        assert_eq!((of("SuccessfulCall(C)"), of("FailedCall(C)")), (CALLS, 0));
        CALLS
    }

    /// Datagrams, then a stream; both paced. Returns the number of datagrams.
    fn load(&self) -> u64 {
        let target = self.lab.receiver().address.to_string();
        let run = |words: &[&str]| -> Value {
            let mut command = self.lab.command(&self.lab.sender().namespace, "iperf3");
            let output =
                command.args(["-c", &target, "-p", &IPERF.to_string(), "-J"]).args(words).output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
            serde_json::from_slice(&output.stdout).unwrap()
        };
        let sent = column(&run(&["-u", "-b", "4M", "-l", "1000", "-t", "4"])["end"]["sum"], "packets");
        run(&["-b", "10M", "-t", "3"]);
        sent
    }

    /// Compares the store and the log of transactions in `logs` with the counts of the peers.
    pub fn compare(&self, peers: &Peers, ask: &dyn Fn(&str) -> Vec<Value>, logs: &Path) {
        let (client, server) = (self.lab.sender().address, self.lab.receiver().address);
        let number = |sql: String| column(&ask(&sql)[0], "n");
        // Lines of the server, of the log and rows of the store, with how often each occurs.
        let theirs = counted(&self.folder.join("nginx.log"), |line| line.starts_with(&format!("{client} ")));
        assert_eq!(theirs.values().sum::<u64>(), peers.responses, "curl and nginx");
        let mut ours = BTreeMap::new();
        for name in ["access.log.1", "access.log"] {
            for (line, count) in counted(&logs.join(name), |line| line.starts_with(&format!("{client} "))) {
                *ours.entry(line).or_default() += count;
            }
        }
        assert!(!fs::read(logs.join("access.log.1")).unwrap().is_empty(), "nothing before the rotation");
        assert_eq!(ours, theirs, "the log and that of nginx");
        let rows = ask(&format!(
            "SELECT method, uri, status, response_body AS body, count(*) AS n FROM transactions WHERE server = '{server}' \
             AND server_port = {WEB} GROUP BY method, uri, status, response_body"
        ));
        let mut stored = BTreeMap::new();
        for row in rows {
            let request = format!("{} {}", row["method"].as_str().unwrap(), row["uri"].as_str().unwrap());
            stored.insert((request, column(&row, "status"), column(&row, "body")), column(&row, "n"));
        }
        let mut served = BTreeMap::new();
        for (line, count) in &theirs {
            // 10.77.0.1 - - [] "GET /small.txt?0-7 HTTP/1.1" 200 120 "-" "curl/7.88.1"
            let parts: Vec<&str> = line.split('"').collect();
            let request = parts[1].rsplit_once(' ').unwrap().0.to_owned();
            let mut numbers = parts[2].split_whitespace().map(|word| word.parse::<u64>().unwrap());
            let key = (request, numbers.next().unwrap(), numbers.next().unwrap());
            *served.entry(key).or_default() += count;
        }
        assert_eq!(stored, served, "the store and the log of nginx");

        let calls = number(format!(
            "SELECT count(*) AS n FROM calls WHERE caller = '{client}' AND callee = '{server}' AND callee_port = {SIP} \
             AND state = 'completed'"
        ));
        assert_eq!(calls, peers.calls, "completed calls");
        let others = number(format!(
            "SELECT count(*) AS n FROM calls WHERE callee = '{server}' AND callee_port = {SIP} AND state <> 'completed'"
        ));
        assert_eq!(others, 0, "other calls of sipp");
        let datagrams = number(format!(
            "SELECT coalesce(sum(packets), 0) AS n FROM flows WHERE src = '{client}' AND dst = '{server}' AND protocol = 17 \
             AND dst_port = {IPERF}"
        ));
        // A test begins with a datagram that makes the connection known.
        assert_eq!(datagrams, peers.datagrams + peers.tests, "datagrams of iperf3");
    }
}

impl Drop for Traffic<'_> {
    fn drop(&mut self) {
        for server in self.servers.lock().unwrap().iter() {
            let _ = server.signal(Signal::Terminate);
        }
    }
}

/// Lines without their times, and how often each occurs.
fn counted(file: &Path, wanted: impl Fn(&str) -> bool) -> BTreeMap<String, u64> {
    let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let mut lines = BTreeMap::new();
    for line in text.lines().filter(|line| wanted(line)) {
        let (before, rest) = line.split_once('[').unwrap();
        let (_, after) = rest.split_once(']').unwrap();
        *lines.entry(format!("{before}[]{after}")).or_default() += 1;
    }
    lines
}

/// Writes packets of real captures, from all kinds of the corpus, with even times. Returns their number.
fn mix(corpus: &Path, output: &Path) -> u64 {
    let kinds = ["apps", "http", "voip", "encap", "decode", "mixed"];
    let mut captures = Capture::all(corpus).unwrap();
    captures.retain(|capture| kinds.contains(&capture.category.as_str()));
    // Something of each kind before the large files.
    captures.sort_by_key(|capture| (capture.packets, capture.id.clone()));
    let folder = tempfile::tempdir().unwrap();
    let mut file = BufWriter::new(File::create(output).unwrap());
    write_header(&mut file).unwrap();
    let mut packets = 0;
    for capture in captures {
        let one = folder.path().join("one");
        fs::write(&one, capture.bytes().unwrap()).unwrap();
        let Ok(mut source) = FileSource::open(&one, FileOptions::as_written()) else { continue };
        while packets < REPLAYED {
            let Ok(Some(batch)) = source.next_batch(Duration::ZERO) else { break };
            for record in batch {
                // What the device can send: Ethernet frames of its MTU.
                if record.link_type() == LinkType::Ethernet
                    && !record.is_snapped()
                    && (14..=1514).contains(&record.data().len())
                {
                    write_packet(&mut file, NOON_NS + packets * GAP_NS, record.data()).unwrap();
                    packets += 1;
                }
            }
        }
    }
    packets
}
