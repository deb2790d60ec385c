//! A call: parties, times and state, from the messages of its Call-ID.

use ahash::RandomState;

use super::sip::{Message, Start, text};
use super::stream::{MediaAddress, Party, Stream};

/// Maximum number of distinct To tags of answers.
const MOST_FORKS: usize = 16;
/// Number of messages that are remembered to detect repetitions.
const REMEMBERED: usize = 16;

/// State of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Requested; no response except 100 yet.
    Trying,
    /// Ringing or in progress (101 to 199).
    Ringing,
    /// Answered.
    Answered,
    /// Ended by a BYE after it was answered.
    Completed,
    /// Cancelled by the caller before it was answered: CANCEL, or a BYE.
    Canceled,
    /// Rejected: see the status.
    Failed,
    /// Credentials were requested, and no message followed.
    Challenged,
    /// No further messages arrived.
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

    /// Name in outputs.
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

    /// Whether only repetitions are expected.
    pub fn is_over(self) -> bool {
        matches!(self, State::Completed | State::Canceled | State::Failed)
    }
}

/// Reason for handing out a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The call was over, or silent for too long.
    Ended,
    /// The capture ended.
    Forced,
    /// Evicted for lack of memory.
    Resources,
}

impl Ending {
    /// Name in outputs.
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
    /// Number of the call in its monitor, from 1.
    pub serial: u64,
    /// Call-ID.
    pub call_id: Box<str>,
    /// From, as in the first INVITE.
    pub from: Box<str>,
    /// To, as in the first INVITE.
    pub to: Box<str>,
    /// URI of From.
    pub from_uri: Box<str>,
    /// URI of To.
    pub to_uri: Box<str>,
    /// Request-URI of the first INVITE.
    pub request_uri: Box<str>,
    /// Source of the first INVITE.
    pub caller: MediaAddress,
    /// Destination of the first INVITE.
    pub callee: MediaAddress,
    /// Whether it came by TCP.
    pub tcp: bool,
    /// User-Agent of the caller.
    pub caller_agent: Box<str>,
    /// User-Agent or Server of the callee.
    pub callee_agent: Box<str>,
    /// Time of the first INVITE.
    pub invite_ns: u64,
    /// Time of the first response except 100.
    pub progress_ns: Option<u64>,
    /// Time of the first 180 or 183: ringing.
    pub ringing_ns: Option<u64>,
    /// Time of the first response of 200 to 299.
    pub answer_ns: Option<u64>,
    /// Time of the ACK for that response.
    pub ack_ns: Option<u64>,
    /// Time of the end: BYE, CANCEL or a final response.
    pub end_ns: Option<u64>,
    /// Time of the last message or media packet.
    pub last_ns: u64,
    /// State.
    pub state: State,
    /// Status of the last final response to the INVITE; 0: none.
    pub status: u16,
    /// Reason phrase of that response.
    pub status_text: Box<str>,
    /// Party that hung up.
    pub hung_up: Option<Party>,
    /// Reason of the BYE or CANCEL (RFC 3326).
    pub hang_up_reason: Box<str>,
    /// Messages, including repetitions.
    pub messages: u64,
    /// Bytes of the messages.
    pub message_bytes: u64,
    /// Messages that repeat an earlier one.
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
    /// Distinct To tags in responses to the INVITE: phones to which it was forked. At most 16 are counted.
    pub forks: usize,
    /// Whether media was described before the answer.
    pub early_media: bool,
    /// Whether From and To are the same.
    pub to_self: bool,
    /// Whether it began before the capture.
    pub joined: bool,
    /// Media of descriptions beyond the limit.
    pub media_left_out: u64,
    /// RTP packets at its ports without a stream, because of the limit of streams.
    pub rtp_left_out: u64,
    /// RTP packets at its ports with broken headers and without a known stream.
    pub rtp_malformed: u64,
    /// Number of changes of the SSRC between the same ends.
    pub ssrc_changes: u64,
    /// SSRCs that came to one destination from several sources.
    pub ssrc_collisions: u64,
    /// Whether the settings select it.
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
    /// List that its state assigns it to.
    pub(super) list: u8,
    pub(super) cost: usize,
    /// Whether it is counted as active.
    pub(super) active: bool,
}

/// A finished call with its streams.
#[derive(Clone, Debug)]
pub struct CallRecord {
    /// The call.
    pub call: Call,
    /// Its streams, in order of their start.
    pub streams: Vec<Stream>,
    /// Reason for handing it out.
    pub ending: Ending,
}

impl CallRecord {
    /// Lowest MOS of its streams.
    pub fn mos(&self) -> Option<f64> {
        self.streams.iter().filter_map(|stream| Some(stream.quality()?.mos)).reduce(f64::min)
    }

    /// Round trip between the two ends in milliseconds: the sum of both halves, if RTCP reported both.
    pub fn round_trip_ms(&self) -> Option<f64> {
        let toward = |party| {
            let its = self.streams.iter().filter(|stream| stream.toward == Some(party));
            its.filter_map(|stream| stream.reported.round_trip_ms()).next_back()
        };
        Some(toward(Party::Caller)? + toward(Party::Callee)?)
    }
}

/// Path and time of a message.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// From where.
    pub from: MediaAddress,
    /// To where.
    pub to: MediaAddress,
    /// By TCP.
    pub tcp: bool,
    /// Time of arrival.
    pub ts_ns: u64,
}

impl Call {
    /// A call that this INVITE begins, or that this message reveals.
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
            list: super::monitor::WAITING,
            cost: 0,
            active: false,
        }
    }

    /// Memory in bytes, including everything that it stores.
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
        // Each place is stored here and in the table of places, and the key of the call also in its own table.
        size_of::<Call>()
            + 64
            + texts.iter().map(|text| text.len()).sum::<usize>()
            + media.sum::<usize>()
            + self.places.len() * 120
            + self.tags.len() * 8
    }

    /// Party that sent this message.
    pub fn sender(&self, message: &Message<'_>) -> Party {
        // From names the party that sent the request, in requests and responses alike.
        let asks = if *text(message.from.tag) == *self.caller_tag { Party::Caller } else { Party::Callee };
        match message.start {
            Start::Request { .. } => asks,
            Start::Response { .. } => asks.other(),
        }
    }

    /// Adds a message. False: it repeats an earlier one and changes nothing.
    pub fn message(&mut self, message: &Message<'_>, bytes: &[u8], way: &Way, random: &RandomState) -> bool {
        self.messages += 1;
        self.message_bytes += bytes.len() as u64;
        self.last_ns = self.last_ns.max(way.ts_ns);
        if message.fault.is_some() {
            self.malformed += 1;
        }
        // 0 marks an empty slot.
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
                // For a call that began before the capture, the first of these is a re-INVITE, too.
                self.reinvites += u64::from(!self.joined || self.messages > 1);
            }
            b"INVITE" if self.joined && message.cseq == self.invite_cseq => {
                // The response was delivered first: records of the two directions of a device are concurrent.
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
        // If only one direction is captured, the response reveals the BYE.
        if message.method == b"BYE" && (200..300).contains(&code) && !self.state.is_over() {
            let by = self.sender(message).other();
            let answered = self.answer_ns.is_some() || self.joined;
            self.over(if answered { State::Completed } else { State::Canceled }, by, message, way);
        }
        let first = message.method == b"INVITE" && message.cseq == self.invite_cseq;
        // For a call that began before the capture, a rejection belongs to a re-INVITE.
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
                    // A call that is answered while it is cancelled still ends: a BYE follows.
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

    /// Time from the INVITE to the first response except 100 (RFC 6076: session request delay), in nanoseconds.
    pub fn post_dial_delay_ns(&self) -> Option<u64> {
        // Unknown for a call that began before the capture.
        let progress_ns = self.progress_ns.filter(|_| !self.joined)?;
        Some(progress_ns.saturating_sub(self.invite_ns))
    }

    /// Ringing time in nanoseconds.
    pub fn ring_ns(&self) -> Option<u64> {
        let until = self.answer_ns.or(self.end_ns)?;
        Some(until.saturating_sub(self.ringing_ns?))
    }

    /// Time from the answer to the end, or to the last packet of a call that has not ended, in nanoseconds.
    pub fn talk_ns(&self) -> Option<u64> {
        Some(self.end_ns.unwrap_or(self.last_ns).saturating_sub(self.answer_ns?))
    }
}
