//! A call: parties, times and state, from the messages of its Call-ID.

use ahash::RandomState;

use super::sip::{Message, Start, text};
use super::stream::{MediaAddress, Party, Stream};

/// Tags of those who answered that are told apart.
const MOST_FORKS: usize = 16;
/// Messages that are remembered, to know those that come again.
const REMEMBERED: usize = 16;

/// How far a call has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Asked for; no answer but 100 yet.
    Trying,
    /// It rings, or is in progress (101 to 199).
    Ringing,
    /// Answered.
    Answered,
    /// Ended after it was answered, by a BYE.
    Completed,
    /// Given up by the caller before it was answered: CANCEL, or a BYE.
    Canceled,
    /// Refused: the status says how.
    Failed,
    /// Asked for credentials, and nothing came after that.
    Challenged,
    /// Nothing came any more.
    TimedOut,
}

impl State {
    /// All, in the order of their numbers.
    pub const ALL: [State; 8] = [
        State::Trying,
        State::Ringing,
        State::Answered,
        State::Completed,
        State::Canceled,
        State::Failed,
        State::Challenged,
        State::TimedOut,
    ];

    /// Its name in outputs.
    pub fn name(self) -> &'static str {
        match self {
            State::Trying => "trying",
            State::Ringing => "ringing",
            State::Answered => "answered",
            State::Completed => "completed",
            State::Canceled => "canceled",
            State::Failed => "failed",
            State::Challenged => "challenged",
            State::TimedOut => "timed_out",
        }
    }

    /// Whether nothing but repetitions is to be expected.
    pub fn is_over(self) -> bool {
        matches!(self, State::Completed | State::Canceled | State::Failed)
    }
}

/// Why a record was handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The call was over, or silent for too long.
    Ended,
    /// The capture has ended.
    Forced,
    /// Its place was needed.
    Resources,
}

impl Ending {
    /// Its name in outputs.
    pub fn name(self) -> &'static str {
        match self {
            Ending::Ended => "end",
            Ending::Forced => "forced",
            Ending::Resources => "resources",
        }
    }
}

/// A call. Times are in nanoseconds since 1970.
#[derive(Clone, Debug)]
pub struct Call {
    /// Which call of its monitor it is, from 1.
    pub serial: u64,
    /// Its Call-ID.
    pub call_id: Box<str>,
    /// From, as the first INVITE has it.
    pub from: Box<str>,
    /// To, the same way.
    pub to: Box<str>,
    /// The URI of From.
    pub from_uri: Box<str>,
    /// The URI of To.
    pub to_uri: Box<str>,
    /// The Request-URI of the first INVITE.
    pub request_uri: Box<str>,
    /// Where the first INVITE came from.
    pub caller: MediaAddress,
    /// Where it went.
    pub callee: MediaAddress,
    /// Whether it came by TCP.
    pub tcp: bool,
    /// User-Agent of the caller.
    pub caller_agent: Box<str>,
    /// User-Agent or Server of the callee.
    pub callee_agent: Box<str>,
    /// The first INVITE.
    pub invite_ns: u64,
    /// The first answer but 100.
    pub progress_ns: Option<u64>,
    /// The first 180 or 183: it rings.
    pub ringing_ns: Option<u64>,
    /// The first answer of 200 to 299.
    pub answer_ns: Option<u64>,
    /// The ACK of that.
    pub ack_ns: Option<u64>,
    /// What ended it: BYE, CANCEL or a final answer.
    pub end_ns: Option<u64>,
    /// The last message or media.
    pub last_ns: u64,
    /// How far it has come.
    pub state: State,
    /// The last final answer to the INVITE; 0: there was none.
    pub status: u16,
    /// Its reason phrase.
    pub status_text: Box<str>,
    /// Who hung up.
    pub hung_up: Option<Party>,
    /// Reason of the BYE or CANCEL (RFC 3326).
    pub hang_up_reason: Box<str>,
    /// Messages, those that came again too.
    pub messages: u64,
    /// Bytes of the messages.
    pub message_bytes: u64,
    /// Messages that were the same as one before.
    pub retransmitted: u64,
    /// Messages with a fault.
    pub malformed: u64,
    /// INVITEs within the call, without repetitions.
    pub reinvites: u64,
    /// UPDATEs.
    pub updates: u64,
    /// REFERs: attempts to transfer it.
    pub refers: u64,
    /// INVITEs after a 401 or 407.
    pub challenges: u64,
    /// Different tags of To in answers to the INVITE: phones that it has forked to. At most 16 are told apart.
    pub forks: usize,
    /// Whether media was described before it was answered.
    pub early_media: bool,
    /// Whether From and To are the same.
    pub to_self: bool,
    /// Whether it had begun before the capture.
    pub joined: bool,
    /// Media of descriptions beyond those that are kept.
    pub media_left_out: u64,
    /// RTP packets of its ports that are in no stream, as there would be too many.
    pub rtp_left_out: u64,
    /// RTP packets of its ports with broken headers, and of no stream that is known.
    pub rtp_malformed: u64,
    /// How often one SSRC gave way to another between the same ends.
    pub ssrc_changes: u64,
    /// SSRCs that came from more than one place to the same.
    pub ssrc_collisions: u64,
    /// Whether it is to be shown.
    pub chosen: bool,
    caller_tag: Box<str>,
    tags: Vec<u64>,
    invite_cseq: u32,
    seen: [u64; REMEMBERED],
    pub(super) has_media: bool,
    pub(super) offers: [Vec<super::sdp::Media>; 2],
    pub(super) places: Vec<MediaAddress>,
    pub(super) streams: Vec<u32>,
    pub(super) touched_ns: u64,
    pub(super) cost: usize,
    /// Whether it is among those that go on.
    pub(super) active: bool,
}

/// A call that is over, with its streams.
#[derive(Clone, Debug)]
pub struct CallRecord {
    /// The call.
    pub call: Call,
    /// Its streams, in the order in which they began.
    pub streams: Vec<Stream>,
    /// Why it is here.
    pub ending: Ending,
}

impl CallRecord {
    /// The lowest MOS of its streams.
    pub fn mos(&self) -> Option<f64> {
        self.streams.iter().filter_map(|stream| Some(stream.quality()?.mos)).reduce(f64::min)
    }

    /// The way from one end to the other and back, in milliseconds: the sum of both halves, where RTCP has told both.
    pub fn round_trip_ms(&self) -> Option<f64> {
        let toward = |party| {
            let its = self.streams.iter().filter(|stream| stream.toward == Some(party));
            its.filter_map(|stream| stream.reported.round_trip_ms()).next_back()
        };
        Some(toward(Party::Caller)? + toward(Party::Callee)?)
    }
}

/// How a message came.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// From where.
    pub from: MediaAddress,
    /// To where.
    pub to: MediaAddress,
    /// By TCP.
    pub tcp: bool,
    /// When.
    pub ts_ns: u64,
}

impl Call {
    /// A call that this INVITE begins, or that is known from this message on.
    pub fn new(message: &Message<'_>, way: &Way) -> Call {
        // An answer goes the other way.
        let (uri, agent, caller, callee): (&[u8], &[u8], MediaAddress, MediaAddress) = match message.start {
            Start::Request { uri, .. } => (uri, message.agent, way.from, way.to),
            Start::Response { .. } => (&[], &[], way.to, way.from),
        };
        let begins = matches!(message.start, Start::Request { method: b"INVITE", .. });
        Call {
            serial: 0,
            call_id: text(message.call_id),
            from: text(message.from.whole),
            to: text(message.to.whole),
            from_uri: text(message.from.uri),
            to_uri: text(message.to.uri),
            request_uri: text(uri),
            caller,
            callee,
            tcp: way.tcp,
            caller_agent: text(agent),
            callee_agent: Box::default(),
            invite_ns: way.ts_ns,
            progress_ns: None,
            ringing_ns: None,
            answer_ns: None,
            ack_ns: None,
            end_ns: None,
            last_ns: way.ts_ns,
            state: State::Trying,
            status: 0,
            status_text: Box::default(),
            hung_up: None,
            hang_up_reason: Box::default(),
            messages: 0,
            message_bytes: 0,
            retransmitted: 0,
            malformed: 0,
            reinvites: 0,
            updates: 0,
            refers: 0,
            challenges: 0,
            forks: 0,
            early_media: false,
            to_self: !message.from.uri.is_empty() && message.from.uri == message.to.uri,
            joined: !begins || !message.to.tag.is_empty(),
            media_left_out: 0,
            rtp_left_out: 0,
            rtp_malformed: 0,
            ssrc_changes: 0,
            ssrc_collisions: 0,
            chosen: true,
            caller_tag: text(message.from.tag),
            tags: Vec::new(),
            invite_cseq: message.cseq,
            seen: [0; REMEMBERED],
            has_media: false,
            offers: [Vec::new(), Vec::new()],
            places: Vec::new(),
            streams: Vec::new(),
            touched_ns: way.ts_ns,
            cost: 0,
            active: false,
        }
    }

    /// Bytes that it takes, with what it has had to keep.
    pub fn cost(&self) -> usize {
        let texts = [
            &self.call_id,
            &self.from,
            &self.to,
            &self.from_uri,
            &self.to_uri,
            &self.request_uri,
            &self.caller_agent,
            &self.callee_agent,
            &self.status_text,
            &self.hang_up_reason,
            &self.caller_tag,
        ];
        let media = self
            .offers
            .iter()
            .flatten()
            .map(|media| size_of_val(media) + media.payloads.len() * 64 + media.candidates.len() * 24);
        // A place is here and in the table of places; so is the key of the call in its own.
        size_of::<Call>()
            + 64
            + texts.iter().map(|text| text.len()).sum::<usize>()
            + media.sum::<usize>()
            + self.places.len() * 120
            + self.tags.len() * 8
    }

    /// Who sends this message.
    pub fn sender(&self, message: &Message<'_>) -> Party {
        // From is of who asked, in requests and answers alike.
        let asks = if *text(message.from.tag) == *self.caller_tag { Party::Caller } else { Party::Callee };
        match message.start {
            Start::Request { .. } => asks,
            Start::Response { .. } => asks.other(),
        }
    }

    /// Adds a message. False: it is the same as one before, and changes nothing.
    pub fn message(&mut self, message: &Message<'_>, bytes: &[u8], way: &Way, random: &RandomState) -> bool {
        self.messages += 1;
        self.message_bytes += bytes.len() as u64;
        self.last_ns = self.last_ns.max(way.ts_ns);
        if message.fault.is_some() {
            self.malformed += 1;
        }
        // 0 stands for nothing.
        let print = random.hash_one((bytes, way.from, way.to)) | 1;
        if self.seen.contains(&print) {
            self.retransmitted += 1;
            return false;
        }
        self.seen.rotate_right(1);
        self.seen[0] = print;
        let sender = self.sender(message);
        if sender == Party::Callee && self.callee_agent.is_empty() {
            self.callee_agent = text(message.agent);
        } else if sender == Party::Caller && self.caller_agent.is_empty() {
            self.caller_agent = text(message.agent);
        }
        match message.start {
            Start::Request { method, .. } => self.request(method, message, way, sender),
            Start::Response { code, reason } => self.response(code, reason, message, way, random),
        }
        true
    }

    fn request(&mut self, method: &[u8], message: &Message<'_>, way: &Way, sender: Party) {
        match method {
            b"INVITE" if !message.to.tag.is_empty() => {
                // The first of a call that has begun before is one of these.
                self.reinvites += u64::from(!self.joined || self.messages > 1);
            }
            b"INVITE" if self.joined && message.cseq == self.invite_cseq => {
                // Its answer was faster: records of both directions of a device come side by side.
                (self.joined, self.invite_ns) = (false, way.ts_ns);
                (self.caller, self.callee) = (way.from, way.to);
                if let Start::Request { uri, .. } = message.start {
                    self.request_uri = text(uri);
                }
            }
            b"INVITE" if message.cseq > self.invite_cseq => {
                self.invite_cseq = message.cseq;
                if !matches!(self.state, State::Answered | State::Completed) {
                    (self.state, self.end_ns, self.status) = (State::Trying, None, 0);
                    self.status_text = Box::default();
                }
            }
            b"ACK" if self.answer_ns.is_some() => _ = self.ack_ns.get_or_insert(way.ts_ns),
            b"UPDATE" => self.updates += 1,
            b"REFER" => self.refers += 1,
            b"CANCEL" if self.answer_ns.is_none() && !self.state.is_over() => {
                self.over(State::Canceled, sender, message, way);
            }
            b"BYE" if !self.state.is_over() => {
                let answered = self.answer_ns.is_some() || self.joined;
                self.over(if answered { State::Completed } else { State::Canceled }, sender, message, way);
            }
            _ => {}
        }
    }

    fn over(&mut self, state: State, by: Party, message: &Message<'_>, way: &Way) {
        self.state = state;
        self.end_ns = Some(way.ts_ns);
        self.hung_up = Some(by);
        self.hang_up_reason = text(message.reason);
    }

    fn response(&mut self, code: u16, reason: &[u8], message: &Message<'_>, way: &Way, random: &RandomState) {
        // Of a call of which one way alone is seen, the answer tells of the BYE.
        if message.method == b"BYE" && (200..300).contains(&code) && !self.state.is_over() {
            let by = self.sender(message).other();
            let answered = self.answer_ns.is_some() || self.joined;
            self.over(if answered { State::Completed } else { State::Canceled }, by, message, way);
        }
        let first = message.method == b"INVITE" && message.cseq == self.invite_cseq;
        // Of a call that has begun before, a refusal is that of a later INVITE.
        if !first || (self.joined && code >= 300) {
            return;
        }
        if code > 100 && !message.to.tag.is_empty() {
            let tag = random.hash_one(message.to.tag);
            if self.tags.len() < MOST_FORKS && !self.tags.contains(&tag) {
                self.tags.push(tag);
                self.forks = self.tags.len();
            }
        }
        match code {
            100 => {}
            101..=199 => {
                self.progress_ns.get_or_insert(way.ts_ns);
                if matches!(code, 180 | 183) {
                    self.ringing_ns.get_or_insert(way.ts_ns);
                }
                if self.state == State::Trying {
                    self.state = State::Ringing;
                }
            }
            200..=299 => {
                self.progress_ns.get_or_insert(way.ts_ns);
                if self.answer_ns.is_none() {
                    self.answer_ns = Some(way.ts_ns);
                    (self.status, self.status_text) = (code, text(reason));
                    // A call that is answered while it is given up is over all the same: a BYE follows.
                    (self.state, self.end_ns, self.hung_up) = (State::Answered, None, None);
                }
            }
            _ if self.answer_ns.is_none() => {
                self.progress_ns.get_or_insert(way.ts_ns);
                (self.status, self.status_text) = (code, text(reason));
                if matches!(code, 401 | 407) {
                    self.challenges += 1;
                    self.state = State::Challenged;
                } else if self.state != State::Canceled {
                    self.state = State::Failed;
                    self.end_ns = Some(way.ts_ns);
                }
            }
            _ => {}
        }
    }

    /// From the INVITE to the first answer but 100 (RFC 6076: session request delay), in nanoseconds.
    pub fn post_dial_delay_ns(&self) -> Option<u64> {
        // Of a call that had begun before nobody knows.
        let progress_ns = self.progress_ns.filter(|_| !self.joined)?;
        Some(progress_ns.saturating_sub(self.invite_ns))
    }

    /// How long it has rung, in nanoseconds.
    pub fn ring_ns(&self) -> Option<u64> {
        let until = self.answer_ns.or(self.end_ns)?;
        Some(until.saturating_sub(self.ringing_ns?))
    }

    /// From the answer to the end, in nanoseconds; of a call that has not ended, to the last of it.
    pub fn talk_ns(&self) -> Option<u64> {
        Some(self.end_ns.unwrap_or(self.last_ns).saturating_sub(self.answer_ns?))
    }
}
