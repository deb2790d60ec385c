//! Collectors that are away, appear, vanish and come back: the capture goes on, TCP delivers the queued messages, and
//! the counts show the rest. All of it after the rights were given up.

use std::collections::HashMap;
use std::io::{ErrorKind, Read};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use serde_json::Value;
use wirelane_tests::numbers::{LIMIT, capture, column, last_of, send};
use wirelane_tests::{Child, Lab, require_root};

/// Reads lines until the ended flows have so many packets; returns the number of flows by then.
fn until_packets(child: &Child, flows: &mut Vec<Value>, packets: u64) -> u64 {
    while flows.iter().map(|flow| column(flow, "packets")).sum::<u64>() < packets {
        let line = child.next_json(LIMIT).unwrap().expect("it goes on");
        if line.get("flow").is_some() {
            flows.push(line);
        }
    }
    flows.len() as u64
}

/// Reads flows until so many intervals have ended: messages wait for a second at most.
fn until_intervals(child: &Child, flows: &mut Vec<Value>, mut number: u32) {
    while number > 0 {
        let line = child.next_json(LIMIT).unwrap().expect("it goes on");
        if line.get("flow").is_some() {
            flows.push(line);
        } else {
            number -= 1;
        }
    }
}

/// Format of a record.
struct Template {
    /// Bytes of each field; all ones for variable length.
    sizes: Vec<u16>,
    is_of_flows: bool,
}

/// A collector's side of one connection.
#[derive(Default)]
struct Connection {
    bytes: Vec<u8>,
    templates: HashMap<u16, Template>,
    flows: u64,
    records: u32,
}

impl Connection {
    /// Reads until so many flows have arrived, or the peer has closed the connection.
    fn read(&mut self, stream: &mut TcpStream, flows: u64) {
        let end = Instant::now() + LIMIT;
        let mut buffer = [0; 65536];
        while self.flows < flows {
            assert!(Instant::now() < end, "{} of {flows} flows came", self.flows);
            match stream.read(&mut buffer) {
                Ok(0) => return,
                Ok(read) => self.bytes.extend_from_slice(&buffer[..read]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(error) => panic!("{error}"),
            }
            while self.message() {}
        }
    }

    /// Takes a complete message from the bytes read and checks that its sequence number continues and its sets have
    /// known templates. False if no message is complete.
    fn message(&mut self) -> bool {
        let half = |bytes: &[u8], at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        if self.bytes.len() < 16 || self.bytes.len() < usize::from(half(&self.bytes, 2)) {
            return false;
        }
        let message: Vec<u8> = self.bytes.drain(..usize::from(half(&self.bytes, 2))).collect();
        assert_eq!(half(&message, 0), 10);
        let sequence = u32::from_be_bytes(message[8..12].try_into().unwrap());
        assert_eq!(sequence, self.records, "the records of this connection");
        let mut at = 16;
        while at < message.len() {
            let (set, length) = (half(&message, at), usize::from(half(&message, at + 2)));
            let body = &message[at + 4..at + length];
            match set {
                2 => self.describe(body, 4),
                3 => self.describe(body, 6),
                _ => self.records_of(set, body),
            }
            at += length;
        }
        true
    }

    /// Reads templates, whose fields start after `head` bytes: options templates have a number of scopes, too.
    fn describe(&mut self, mut body: &[u8], head: usize) {
        let half = |bytes: &[u8], at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        while body.len() > head {
            let (id, fields) = (half(body, 0), usize::from(half(body, 2)));
            let mut at = head;
            let mut sizes = Vec::new();
            for _ in 0..fields {
                sizes.push(half(body, at + 2));
                // An enterprise number follows.
                at += if body[at] & 0x80 != 0 { 8 } else { 4 };
            }
            self.templates.insert(id, Template { sizes, is_of_flows: head == 4 });
            body = &body[at..];
        }
    }

    fn records_of(&mut self, set: u16, mut body: &[u8]) {
        let template = &self.templates[&set];
        let least: usize =
            template.sizes.iter().map(|size| if *size == 0xffff { 1 } else { (*size).into() }).sum();
        // A remainder shorter than a record is padding.
        while body.len() >= least {
            for size in &template.sizes {
                let size = if *size == 0xffff { 1 + usize::from(body[0]) } else { (*size).into() };
                body = &body[size..];
            }
            self.records += 1;
            self.flows += u64::from(template.is_of_flows);
        }
    }
}

fn accept(listener: &TcpListener) -> TcpStream {
    listener.set_nonblocking(true).unwrap();
    let end = Instant::now() + LIMIT;
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).unwrap();
                stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
                return stream;
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
        }
        assert!(Instant::now() < end, "nobody has connected");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Battery: F6
#[test]
fn collectors_that_come_and_go_cost_no_packet() {
    if !require_root("collectors_that_come_and_go_cost_no_packet") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let namespace = &lab.receiver().namespace;
    let listen = || lab.enter(namespace, || TcpListener::bind("127.0.0.1:4739").unwrap()).unwrap();
    let words = [
        "flows",
        "-i",
        &lab.receiver().device,
        // The export's own packets are transmitted ones.
        "--direction",
        "rx",
        "--json",
        "--inactive-timeout",
        "0.2",
        "--export",
        "ipfix://127.0.0.1:4739?transport=tcp",
        "--export",
        "ipfix://127.0.0.1:4740",
        // An address without a host, so that nothing answers or refuses.
        "--export",
        "netflow9://10.77.0.77:2055",
    ];
    let child = capture(&lab, &words).unwrap();
    let mut flows = Vec::new();
    // Away: flows that end meanwhile are queued.
    send(&lab, 300, &["--flows", "100"]).unwrap();
    let away = until_packets(&child, &mut flows, 300);
    let listener = listen();
    let mut stream = accept(&listener);
    let mut first = Connection::default();
    first.read(&mut stream, away);
    assert!(away >= 100 && first.flows == away, "{} of {away}", first.flows);
    // Connected.
    send(&lab, 300, &["--flows", "50"]).unwrap();
    let here = until_packets(&child, &mut flows, 600);
    first.read(&mut stream, here);
    assert_eq!(first.flows, here);
    // Closed in good order: later flows wait for the next connection.
    drop((stream, listener));
    send(&lab, 300, &["--flows", "60"]).unwrap();
    until_packets(&child, &mut flows, 900);
    until_intervals(&child, &mut flows, 2);
    send(&lab, 300, &["--flows", "70"]).unwrap();
    let all = until_packets(&child, &mut flows, 1200);
    let listener = listen();
    let mut stream = accept(&listener);
    child.signal(wirelane_tests::Signal::Terminate).unwrap();
    let mut second = Connection::default();
    second.read(&mut stream, u64::MAX);
    assert_eq!(second.flows, all - here);

    let finished = child.finish(LIMIT).unwrap();
    let last = last_of(&finished).unwrap();
    assert_eq!(
        (column(&last, "analysed"), column(&last, "flow_packets"), column(&last, "flows")),
        (1200, 1200, all)
    );
    assert_eq!(column(&last, "lost"), 0);
    let [tcp, refused, silent] = &last["exports"].as_array().unwrap()[..] else { panic!("{last}") };
    assert_eq!((column(tcp, "flows"), column(tcp, "unsent_flows"), column(tcp, "connections")), (all, 0, 2));
    assert!(column(refused, "refused") > 0, "{refused}");
    assert_eq!(column(refused, "flows") + column(refused, "unsent_flows"), all, "{refused}");
    assert_eq!(column(silent, "flows") + column(silent, "unsent_flows"), all, "{silent}");
    assert!(finished.stderr.contains("127.0.0.1:4740: no process listens there"), "{}", finished.stderr);
}
