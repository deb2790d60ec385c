//! Parser of one direction: heads and bodies in order, with gaps reported.

mod heads;

use wirelane_bpf::http::{First, Line, first};

use super::chunks::{Chunks, Step};
use super::exchange::Exchanges;
use super::head::Role;
use super::transaction::{Mark, Message};

/// Position and time of bytes.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// Time of their packet.
    pub ts_ns: u64,
    /// Position of the first byte in its direction.
    pub at: u64,
    /// Position of the other direction that the sender had received.
    pub acked: Option<u64>,
    /// Whether they begin at the start of a packet.
    pub begins: bool,
}

/// A head that is being read.
#[derive(Debug)]
struct Head {
    bytes: Vec<u8>,
    /// All of its bytes, including those beyond [`HEAD_MOST`], which are not stored.
    total: u64,
    line: Line,
    /// Whether its first line was checked.
    checked: bool,
    /// Bytes that were searched for the end of the first line, so that a head in small segments takes linear time.
    searched: usize,
    place: Span,
}

#[derive(Debug)]
enum State {
    /// A head may begin here. `sync`: nothing else can, as this is the beginning of the connection or the end of a message.
    Open { bytes: [u8; 8], count: usize, sync: bool, place: Option<Span> },
    /// Within a head.
    Head(Box<Head>),
    /// In a body with this many remaining bytes.
    Length(u64),
    /// In a chunked body.
    Chunks(Chunks),
    /// In a body that ends with the connection.
    UntilClose,
    /// Position unknown: a packet that begins with a head ends this state.
    Adrift,
    /// Not HTTP any more.
    Tunnel,
}

/// Bytes of a direction outside of messages.
#[derive(Clone, Copy, Debug, Default)]
pub struct Strays {
    /// Other bytes than the expected head, and those after them up to the next head.
    pub unknown: u64,
    /// Bytes after CONNECT and upgrades.
    pub tunnel: u64,
    /// Bytes that were not captured, outside of messages.
    pub lost: u64,
}

/// One direction of a connection.
#[derive(Debug)]
pub struct Parser {
    state: State,
    /// Message whose body is being read.
    message: Option<Box<Message>>,
    /// Whether it answers an unknown request.
    orphan: bool,
    /// Whether bytes are missing since the last head.
    lost: bool,
    /// Latest known time.
    ts_ns: u64,
    dir: usize,
    /// See [`Strays`]; reset by the caller that sums them up.
    pub strays: Strays,
}

impl Parser {
    /// Parser of direction `dir`; `sync`: from its start.
    pub fn new(dir: usize, sync: bool) -> Parser {
        let state = if sync { open(true) } else { State::Adrift };
        let strays = Strays::default();
        Parser { state, message: None, orphan: false, lost: false, ts_ns: 0, dir, strays }
    }

    /// Memory of the current head and message, in bytes.
    pub fn memory(&self) -> usize {
        let head = if let State::Head(head) = &self.state { head.bytes.capacity() } else { 0 };
        head + self.message.as_ref().map_or(0, |message| message.memory())
    }

    /// Whether the next bytes are ignored unless a packet begins with a head.
    pub fn is_adrift(&self) -> bool {
        matches!(self.state, State::Tunnel) || matches!(self.state, State::Adrift) && self.message.is_none()
    }

    /// Number of the next bytes that belong to a body, so that their values do not matter.
    pub fn indifferent(&self) -> u64 {
        match &self.state {
            _ if self.orphan => 0,
            State::Length(left) => *left,
            State::Chunks(chunks) => chunks.content(),
            State::UntilClose => u64::MAX,
            _ => 0,
        }
    }

    fn role(&self, exchanges: &Exchanges) -> Option<Role> {
        exchanges.client.map(|client| if client == self.dir { Role::Client } else { Role::Server })
    }

    /// These bytes come next.
    pub fn data(&mut self, bytes: &[u8], place: Span, exchanges: &mut Exchanges, extra: &[Box<str>]) {
        let (mut bytes, mut place) = (bytes, place);
        self.ts_ns = place.ts_ns;
        if exchanges.tunnel && !matches!(self.state, State::Tunnel) {
            self.tunnel(exchanges);
        }
        if place.begins {
            self.packet_begins(bytes, exchanges);
        }
        while !bytes.is_empty() {
            let used = match &mut self.state {
                State::Open { .. } => self.open(bytes, place, exchanges),
                State::Head(_) => self.head(bytes, place, exchanges, extra),
                State::Length(left) => {
                    let used = (bytes.len() as u64).min(*left);
                    *left -= used;
                    let over = *left == 0;
                    self.content(used);
                    if over {
                        self.end(exchanges);
                    }
                    used as usize
                }
                State::Chunks(chunks) => match chunks.step(bytes) {
                    Step::Content(most) => {
                        let used = most.min(bytes.len() as u64);
                        chunks.passed(used);
                        self.content(used);
                        used as usize
                    }
                    Step::Packing(used) => {
                        self.packing(used as u64);
                        used
                    }
                    Step::End(used) => {
                        self.packing(used as u64);
                        self.end(exchanges);
                        used
                    }
                    Step::Bad(used) => {
                        self.packing(used as u64);
                        self.mark(Mark::BadChunk);
                        self.state = State::Adrift;
                        used
                    }
                },
                State::UntilClose => {
                    self.content(bytes.len() as u64);
                    bytes.len()
                }
                State::Adrift if self.message.is_some() => {
                    self.content(bytes.len() as u64);
                    bytes.len()
                }
                State::Adrift => {
                    self.strays.unknown += bytes.len() as u64;
                    bytes.len()
                }
                State::Tunnel => {
                    self.strays.tunnel += bytes.len() as u64;
                    bytes.len()
                }
            };
            bytes = &bytes[used..];
            place.at += used as u64;
            place.begins = false;
        }
    }

    /// Skips this many bytes that were captured but are not available: at most [`Parser::indifferent`], unless the
    /// state has changed since.
    pub fn pass(&mut self, bytes: u64, ts_ns: u64, exchanges: &mut Exchanges) {
        self.ts_ns = ts_ns;
        match &mut self.state {
            State::Length(left) if *left >= bytes => {
                *left -= bytes;
                let over = *left == 0;
                self.content(bytes);
                if over {
                    self.end(exchanges);
                }
            }
            State::Chunks(chunks) if chunks.content() >= bytes => {
                chunks.passed(bytes);
                self.content(bytes);
            }
            State::UntilClose => self.content(bytes),
            State::Adrift if self.message.is_some() => self.content(bytes),
            State::Adrift => self.strays.unknown += bytes,
            State::Tunnel => self.strays.tunnel += bytes,
            _ => self.gap(bytes, exchanges, &[]),
        }
    }

    /// Skips this many missing bytes.
    pub fn gap(&mut self, bytes: u64, exchanges: &mut Exchanges, extra: &[Box<str>]) {
        if bytes == 0 {
            return;
        }
        exchanges.lossy |= exchanges.client.is_some();
        if self.message.is_some() {
            let lost = if self.role(exchanges) == Some(Role::Client) {
                Mark::RequestLost
            } else {
                Mark::ResponseLost
            };
            self.mark(lost);
        }
        match &mut self.state {
            State::Length(left) => {
                let within = bytes.min(*left);
                *left -= within;
                let over = *left == 0;
                self.content(within);
                self.missing(within);
                if over {
                    self.end(exchanges);
                    self.gap(bytes - within, exchanges, extra);
                }
            }
            State::Chunks(chunks) => {
                let within = bytes.min(chunks.content());
                if within > 0 {
                    chunks.passed(within);
                }
                self.content(within);
                self.missing(within);
                if bytes > within {
                    // The share of chunk framing and of other messages is unknown.
                    self.content(bytes - within);
                    self.missing(bytes - within);
                    self.state = State::Adrift;
                    self.lost = true;
                }
            }
            State::UntilClose => {
                self.content(bytes);
                self.missing(bytes);
            }
            State::Adrift if self.message.is_some() => {
                self.content(bytes);
                self.missing(bytes);
                self.lost = true;
            }
            State::Head(_) => {
                self.break_head(exchanges, extra);
                if self.message.is_some() {
                    self.gap(bytes, exchanges, extra);
                } else {
                    self.strays.lost += bytes;
                }
                self.lost = true;
            }
            State::Open { .. } | State::Adrift => {
                self.strays.lost += bytes;
                self.state = State::Adrift;
                self.lost = true;
            }
            State::Tunnel => self.strays.tunnel += bytes,
        }
    }

    /// Ends the direction; `whole`: by a FIN, so that a body that ends with the connection is complete.
    pub fn finish(&mut self, whole: bool, exchanges: &mut Exchanges, extra: &[Box<str>]) {
        let broken = matches!(self.state, State::Head(_));
        self.break_head(exchanges, extra);
        let unfinished = match self.state {
            _ if broken => true,
            State::Length(_) | State::Chunks(_) => true,
            _ => !whole,
        };
        if self.message.is_some() {
            if unfinished {
                self.mark_unfinished(exchanges);
            }
            self.end(exchanges);
        }
        if !matches!(self.state, State::Tunnel) {
            self.state = State::Adrift;
        }
    }

    /// Treats all following bytes as not HTTP.
    pub fn tunnel(&mut self, exchanges: &mut Exchanges) {
        if self.message.is_some() {
            self.end(exchanges);
        }
        self.state = State::Tunnel;
    }

    /// Start of a packet: a head may begin here unless the position is known.
    fn packet_begins(&mut self, bytes: &[u8], exchanges: &mut Exchanges) {
        let lost = match self.state {
            State::Adrift => true,
            State::UntilClose | State::Length(_) if self.orphan => false,
            _ => return,
        };
        let found = match (first(bytes), self.role(exchanges)) {
            (First::Request, None | Some(Role::Client)) | (First::Response, None | Some(Role::Server)) => {
                true
            }
            (First::Short, _) => lost && self.message.is_none(),
            _ => false,
        };
        if found {
            if self.message.is_some() {
                self.end(exchanges);
            }
            self.state = open(false);
        }
    }

    /// Gathers what may begin a head.
    fn open(&mut self, data: &[u8], here: Span, exchanges: &mut Exchanges) -> usize {
        let role = self.role(exchanges);
        let State::Open { bytes, count, sync, place } = &mut self.state else { return data.len() };
        for (at, byte) in data.iter().enumerate() {
            if *count == 0 && matches!(byte, b'\r' | b'\n') {
                continue;
            }
            if *count == 0 {
                *place = Some(Span { at: here.at + at as u64, ..here });
            }
            bytes[*count] = *byte;
            *count += 1;
            let begun = &bytes[..*count];
            let is_head = match (first(begun), role) {
                (First::Request, None | Some(Role::Client))
                | (First::Response, None | Some(Role::Server)) => true,
                (First::Short, _) => continue,
                // Where only a head is possible, a method may be any word: the whole line decides.
                (_, None | Some(Role::Client)) if *sync && is_token(begun) => {
                    if *count < 8 && !begun.contains(&b' ') {
                        continue;
                    }
                    true
                }
                _ => false,
            };
            if is_head {
                let place = place.unwrap_or(here);
                let head = Head {
                    bytes: begun.to_vec(),
                    total: begun.len() as u64,
                    line: Line::TEXT,
                    checked: false,
                    searched: 0,
                    place,
                };
                self.state = State::Head(Box::new(head));
            } else {
                self.strays.unknown += *count as u64;
                self.state = State::Adrift;
            }
            return at + 1;
        }
        data.len()
    }

    fn content(&mut self, bytes: u64) {
        if let Some(message) = &mut self.message {
            message.body += bytes;
            message.bytes += bytes;
            message.end_ns = message.end_ns.max(self.ts_ns);
        }
    }

    fn packing(&mut self, bytes: u64) {
        if let Some(message) = &mut self.message {
            message.bytes += bytes;
            message.end_ns = message.end_ns.max(self.ts_ns);
        }
    }

    fn missing(&mut self, bytes: u64) {
        if let Some(message) = &mut self.message {
            message.missing += bytes;
        }
    }

    fn mark(&mut self, mark: Mark) {
        if let Some(message) = &mut self.message {
            message.marks.set(mark);
        }
    }

    fn mark_unfinished(&mut self, exchanges: &Exchanges) {
        let client = self.role(exchanges) == Some(Role::Client);
        self.mark(if client { Mark::RequestUnfinished } else { Mark::ResponseUnfinished });
    }

    /// Completes the message.
    fn end(&mut self, exchanges: &mut Exchanges) {
        self.state = if exchanges.tunnel { State::Tunnel } else { open(true) };
        self.orphan = false;
        if let Some(message) = self.message.take() {
            match self.role(exchanges) {
                Some(Role::Client) => exchanges.request_done(*message),
                _ => exchanges.response_done(*message),
            }
        }
    }
}

fn open(sync: bool) -> State {
    State::Open { bytes: [0; 8], count: 0, sync, place: None }
}

/// Whether these bytes may begin a method: letters, digits and some signs, then perhaps a blank (RFC 9110, 5.6.2).
fn is_token(begun: &[u8]) -> bool {
    let method = begun.split(|byte| *byte == b' ').next().unwrap_or_default();
    !method.is_empty()
        && method.iter().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte))
}
