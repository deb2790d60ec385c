//! Conversions: conversations to packets, and packets to transactions.

use std::io::Cursor;
use std::time::Duration;

use wirelane::{FileOptions, FileSource, Record};
use wirelane_analysis::http::{HttpSettings, HttpTable, Message, Totals, Transaction};

use crate::offloaded;

pub const FIN: u8 = 1;
pub const SYN: u8 = 2;
pub const RST: u8 = 4;
const ACK: u8 = 16;

/// A packet of a conversation; direction 0 is the client's.
#[derive(Clone, Debug)]
pub struct Packet {
    pub dir: usize,
    pub seq: u32,
    pub ack: u32,
    pub flags: u8,
    pub payload: Vec<u8>,
    pub ts_ns: u64,
    /// Port of the client.
    pub port: u16,
}

impl Packet {
    fn frame(&self) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0];
        frame.extend((40 + self.payload.len() as u16).to_be_bytes());
        frame.extend([0, 0, 0, 0, 64, 6, 0, 0]);
        let ends = [([10, 0, 0, 1], self.port), ([10, 0, 0, 2], 8080)];
        frame.extend(ends[self.dir].0);
        frame.extend(ends[1 - self.dir].0);
        frame.extend(ends[self.dir].1.to_be_bytes());
        frame.extend(ends[1 - self.dir].1.to_be_bytes());
        frame.extend(self.seq.to_be_bytes());
        frame.extend(self.ack.to_be_bytes());
        frame.extend([0x50, self.flags, 0xff, 0xff, 0, 0, 0, 0]);
        frame.extend(&self.payload);
        frame
    }
}

/// A conversation under construction.
pub struct Talk {
    pub packets: Vec<Packet>,
    next: [u32; 2],
    ts_ns: u64,
    port: u16,
    pub mss: usize,
}

impl Talk {
    /// With a handshake.
    pub fn new() -> Talk {
        let mut talk = Talk::midway();
        talk.push(0, SYN, b"");
        talk.next[0] = talk.next[0].wrapping_add(1);
        talk.push(1, SYN | ACK, b"");
        talk.next[1] = talk.next[1].wrapping_add(1);
        talk.push(0, ACK, b"");
        talk
    }

    /// Without its beginning. Sequence numbers wrap soon.
    pub fn midway() -> Talk {
        let next = [u32::MAX - 300, u32::MAX - 2000];
        Talk { packets: Vec::new(), next, ts_ns: 1_700_000_000_000_000_000, port: 40_000, mss: 1460 }
    }

    /// Advances the time.
    pub fn wait(&mut self, ms: u64) -> &mut Talk {
        self.ts_ns += ms * 1_000_000;
        self
    }

    pub fn push(&mut self, dir: usize, flags: u8, payload: &[u8]) {
        self.ts_ns += 1_000_000;
        let (seq, ack) = (self.next[dir], self.next[1 - dir]);
        let packet =
            Packet { dir, seq, ack, flags, payload: payload.to_vec(), ts_ns: self.ts_ns, port: self.port };
        self.packets.push(packet);
    }

    /// Sends bytes in a direction, in segments.
    pub fn say(&mut self, dir: usize, bytes: impl AsRef<[u8]>) -> &mut Talk {
        for part in bytes.as_ref().chunks(self.mss) {
            self.push(dir, ACK, part);
            self.next[dir] = self.next[dir].wrapping_add(part.len() as u32);
        }
        self
    }

    pub fn client(&mut self, bytes: impl AsRef<[u8]>) -> &mut Talk {
        self.say(0, bytes)
    }

    pub fn server(&mut self, bytes: impl AsRef<[u8]>) -> &mut Talk {
        self.say(1, bytes)
    }

    /// Skips bytes, as if they were not captured.
    pub fn lost(&mut self, dir: usize, bytes: usize) -> &mut Talk {
        self.next[dir] = self.next[dir].wrapping_add(bytes as u32);
        self
    }

    pub fn ends(&mut self, dir: usize) -> &mut Talk {
        self.push(dir, FIN | ACK, b"");
        self.next[dir] = self.next[dir].wrapping_add(1);
        self
    }

    pub fn reset(&mut self, dir: usize) -> &mut Talk {
        self.push(dir, RST | ACK, b"");
        self
    }

    /// Both ends close.
    pub fn close(&mut self) -> &mut Talk {
        self.ends(1).ends(0);
        self.push(1, ACK, b"");
        self
    }

    pub fn transactions(&self) -> Vec<Transaction> {
        run(&self.packets).0
    }

    /// One line for each transaction.
    pub fn lines(&self) -> Vec<String> {
        self.transactions().iter().map(line).collect()
    }
}

pub fn get(target: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: example.org\r\n\r\n")
}

pub fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

/// Log of all packets; asserts that in-kernel selection gives the same log.
pub fn run(packets: &[Packet]) -> (Vec<Transaction>, Totals) {
    let (transactions, totals) = run_with(packets, HttpSettings::default());
    offloaded::assert_same(packets, &transactions);
    (transactions, totals)
}

/// Packets as a pcap file.
fn pcap_of(packets: &[Packet]) -> Vec<u8> {
    let mut pcap: Vec<u8> =
        [0xa1b2_3c4du32, 0x0004_0002, 0, 0, 262_144, 1].into_iter().flat_map(u32::to_le_bytes).collect();
    for packet in packets {
        let frame = packet.frame();
        let (s, ns) = ((packet.ts_ns / 1_000_000_000) as u32, (packet.ts_ns % 1_000_000_000) as u32);
        let header = [s, ns, frame.len() as u32, frame.len() as u32];
        pcap.extend(header.into_iter().flat_map(u32::to_le_bytes).chain(frame));
    }
    pcap
}

/// Calls `each` for these packets as records, in order.
pub fn each_record(packets: &[Packet], mut each: impl FnMut(&Record<'_>)) {
    let pcap = Cursor::new(pcap_of(packets));
    let mut source = FileSource::from_reader(pcap, "made up", FileOptions::as_written()).unwrap();
    while let Ok(Some(batch)) = source.next_batch(Duration::ZERO) {
        for record in batch {
            each(&record);
        }
    }
}

pub fn run_with(packets: &[Packet], settings: HttpSettings) -> (Vec<Transaction>, Totals) {
    let pcap = pcap_of(packets);
    let mut source =
        FileSource::from_reader(Cursor::new(pcap), "made up", FileOptions::as_written()).unwrap();
    let mut table = HttpTable::new(settings);
    let transactions = feed(&mut source, &mut table);
    let totals = *table.totals();
    assert_eq!(totals.packets, packets.len() as u64);
    (transactions, totals)
}

/// Transactions of a whole file; asserts correct sums.
pub fn feed(source: &mut FileSource, table: &mut HttpTable) -> Vec<Transaction> {
    let mut transactions = Vec::new();
    while let Ok(Some(batch)) = source.next_batch(Duration::ZERO) {
        for record in batch {
            table.record(&record, record.header().ts_ns);
            transactions.extend(table.finished().drain());
        }
    }
    transactions.extend(flushed(table));
    assert_eq!(transactions.len() as u64, table.totals().transactions);
    transactions
}

/// Ends all connections of a table; asserts correct sums and that no memory is left.
pub fn flushed(table: &mut HttpTable) -> Vec<Transaction> {
    let mut transactions = Vec::new();
    while table.flush() {
        transactions.extend(table.finished().drain());
    }
    transactions.extend(table.finished().drain());
    assert!(table.totals().balance(), "{:#?}", table.totals());
    assert!(table.is_empty());
    assert_eq!(table.held(), 0);
    transactions
}

/// Text of a transaction without its times.
pub fn line(transaction: &Transaction) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let body = |message: &Message| {
        let missing = if message.missing > 0 { format!("-{}", message.missing) } else { String::new() };
        format!("{}{missing}", message.body)
    };
    let request = transaction.request.as_ref().map_or("-".into(), |request| {
        format!("{} {} {}", text(&request.method), text(&request.target), body(request))
    });
    let response = transaction
        .response
        .as_ref()
        .map_or("-".into(), |response| format!("{} {}", response.status, body(response)));
    let interim = match transaction.informational {
        0 => String::new(),
        number => format!(" 1xx:{number}"),
    };
    let marks: Vec<&str> = transaction.marks.names().collect();
    let marks = if marks.is_empty() { String::new() } else { format!(" [{}]", marks.join(" ")) };
    format!("{request} -> {response}{interim}{marks}")
}
