//! Signalling part of the monitor: assigns messages to calls, and registers the places of media from descriptions.

use std::collections::VecDeque;

use super::call::{Call, CallRecord, Ending, State, Way};
use super::kept::{Captured, Keep, Kept};
use super::media::Endpoint;
use super::monitor::{Finished, Monitor, OVER, QUIET, Signal, TALKING, WAITING};
use super::sdp::{self, Media};
use super::sip::{self, Fault, Message, Start, text};
use super::stream::{MediaAddress, Party};

/// Maximum number of places of one call.
const MOST_PLACES: usize = 96;

/// Maximum number of messages that wait for their calls.
const MOST_EARLY: usize = 256;

/// A message of an unknown call.
#[derive(Debug)]
pub(super) struct Early {
    key: u128,
    since_ns: u64,
    bytes: Vec<u8>,
    fault: Option<Fault>,
    /// Bytes of the body.
    body: usize,
    way: Way,
    /// Its packet, if packets are stored.
    captured: Option<Captured>,
}

impl Early {
    /// Memory in bytes.
    fn memory(&self) -> usize {
        size_of::<Early>() + self.bytes.len() + self.captured.as_ref().map_or(0, Captured::memory)
    }
}

/// Maximum delay until a call is moved to the end of its list.
const TOUCH_NS: u64 = 1_000_000_000;

/// Whether a text contains one of these, ignoring ASCII case; also true if the list is empty.
fn has_one(text: &str, wanted: &[String]) -> bool {
    let text = text.to_ascii_lowercase();
    wanted.is_empty() || wanted.iter().any(|one| text.contains(&one.to_ascii_lowercase()))
}

/// The part of a body that is a session description.
fn description<'b>(message: &Message<'_>, body: &'b [u8]) -> Option<&'b [u8]> {
    let kind = message.content_type.to_ascii_lowercase();
    if kind.starts_with(b"multipart/") {
        let begin = body.windows(4).position(|part| part == b"v=0\r" || part == b"v=0\n")?;
        let rest = &body[begin..];
        let end = rest.windows(3).position(|part| part == b"\n--").unwrap_or(rest.len());
        return Some(&rest[..end]);
    }
    kind.starts_with(b"application/sdp").then_some(body)
}

impl Monitor {
    /// Processes a message, of which these bytes of `len` are available.
    pub(super) fn message(&mut self, bytes: &[u8], len: usize, way: &Way) {
        self.counts.messages += 1;
        let mut message = match sip::parse(bytes, true) {
            Ok(message) => message,
            Err(_) if bytes.len() < len => {
                self.counts.cut_messages += 1;
                return;
            }
            Err(fault) => {
                self.counts.fault(fault);
                return;
            }
        };
        match message.start {
            Start::Request { method, .. } => self.counts.request(method),
            Start::Response { code, .. } => self.counts.responses[usize::from(code / 100)] += 1,
        }
        let body = &bytes[message.head_len..];
        if message.content_length.is_some_and(|length| length > (len - message.head_len) as u64) {
            message.fault = message.fault.or(Some(Fault::Length));
        }
        if let Some(fault) = message.fault {
            self.counts.fault(fault);
        }
        let body = match message.content_length {
            Some(length) => &body[..body.len().min(usize::try_from(length).unwrap_or(usize::MAX))],
            None => body,
        };
        let keeps = self.settings.keep > Keep::Nothing;
        let captured = keeps.then(|| self.at_hand.captured(way, bytes));
        self.dispatch(&message, [bytes, body], way, captured, self.settings.reorder_ns == 0);
    }

    /// Time until which the first message that waits for its call does so.
    pub(super) fn early_until_ns(&self) -> Option<u64> {
        Some(self.early.front()?.since_ns.saturating_add(self.settings.reorder_ns))
    }

    /// Processes messages that waited too long for their calls without them. `all`: all messages.
    pub(super) fn release(&mut self, all: bool) {
        while self.early.front().is_some_and(|early| {
            all || self.early.len() > MOST_EARLY
                || self.early_bytes > self.budget / 16
                || self.now_ns.saturating_sub(early.since_ns) > self.settings.reorder_ns
        }) {
            if let Some(early) = self.early.pop_front() {
                self.early_bytes -= early.memory();
                self.again(early, true);
            }
        }
    }

    /// Processes a message that has waited.
    fn again(&mut self, early: Early, late: bool) {
        // It was parsed before, successfully.
        if let Ok(message) = sip::parse(&early.bytes, true) {
            let message = Message { fault: early.fault, ..message };
            let body = &early.bytes[message.head_len..];
            let body = &body[..early.body.min(body.len())];
            self.dispatch(&message, [&early.bytes, body], &early.way, early.captured, late);
        }
    }

    /// `bytes`: of the message, and of its body.
    fn dispatch(
        &mut self,
        message: &Message<'_>,
        [bytes, body]: [&[u8]; 2],
        way: &Way,
        captured: Option<Captured>,
        late: bool,
    ) {
        let key = u128::from(self.random.hash_one((message.call_id, 0u8))) << 64
            | u128::from(self.random.hash_one((message.call_id, 1u8)));
        let found = self.calls.find(&key);
        // A call that began before the capture is learned from its next description.
        let joins = |start: Start<'_>| match start {
            Start::Request { method: b"INVITE", .. } => true,
            Start::Request { .. } | Start::Response { code: 101..=299, .. } => {
                matches!(message.method, b"INVITE" | b"UPDATE" | b"PRACK" | b"ACK")
                    && description(message, body).is_some()
            }
            Start::Response { .. } => false,
        };
        let invites = matches!(message.start, Start::Request { method: b"INVITE", .. });
        let at = match (found, message.start) {
            (Some(at), _) => at,
            // Its INVITE may be delivered later: records of the two directions of a device are concurrent.
            (None, _) if !late && !invites => {
                let (since_ns, bytes) = (self.now_ns, bytes.to_vec());
                let (fault, body) = (message.fault, body.len());
                let early = Early { key, since_ns, bytes, fault, body, way: *way, captured };
                self.early_bytes += early.memory();
                self.early.push_back(early);
                self.release(false);
                return;
            }
            (None, start) if joins(start) => {
                let mut call = Call::new(message, way);
                self.serial += 1;
                call.serial = self.serial;
                let settings = &self.settings;
                let is_wanted = settings.call_ids.is_empty()
                    || settings.call_ids.iter().any(|wanted| wanted.as_bytes() == message.call_id);
                call.chosen =
                    is_wanted && has_one(&call.from, &settings.from) && has_one(&call.to, &settings.to);
                let (since_ns, at) = (call.touched_ns, self.calls.insert(key, call, WAITING));
                self.silence.insert((WAITING, since_ns, at));
                at
            }
            (None, start) => {
                // The method tells the kind; a response has the method of its request.
                let method = match start {
                    Start::Request { method, .. } => method,
                    Start::Response { .. } => message.method,
                };
                let in_call = matches!(
                    method,
                    b"INVITE" | b"ACK" | b"BYE" | b"CANCEL" | b"PRACK" | b"UPDATE" | b"INFO" | b"REFER"
                );
                if in_call {
                    self.counts.unknown_call_messages += 1;
                } else {
                    self.counts.no_call_messages += 1;
                }
                if self.settings.all_signals {
                    self.signal(message, bytes, way);
                }
                return;
            }
        };
        let random = self.random.clone();
        let Some(call) = self.calls.get_mut(at) else { return };
        let chosen = call.chosen;
        let fresh = call.message(message, bytes, way, &random);
        if !fresh {
            self.counts.retransmitted += 1;
        } else if let Some(described) = description(message, body).filter(|_| chosen).and_then(sdp::parse) {
            self.described(at, message, described);
        }
        if chosen && self.settings.signals {
            self.signal(message, bytes, way);
        }
        if let Some(captured) = captured {
            self.keep(at, way, captured);
        }
        self.place(at, way.ts_ns);
        self.take_back_of_ended(at);
        if found.is_none() && !self.early.is_empty() {
            let (its, others): (VecDeque<Early>, VecDeque<Early>) =
                std::mem::take(&mut self.early).into_iter().partition(|early| early.key == key);
            self.early = others;
            self.early_bytes -= its.iter().map(Early::memory).sum::<usize>();
            its.into_iter().for_each(|early| self.again(early, true));
        }
    }

    fn signal(&mut self, message: &Message<'_>, bytes: &[u8], way: &Way) {
        let call_id = text(message.call_id);
        self.hand_out(Finished::Signal(Signal { way: *way, bytes: bytes.to_vec(), call_id }));
    }

    /// Hands out a packet of a call if the call is selected.
    pub(super) fn keep(&mut self, at: u32, way: &Way, packet: Captured) {
        let Some(call) = self.calls.get(at).filter(|call| call.chosen) else { return };
        let kept = Kept { call: call.serial, way: *way, packet };
        self.hand_out(Finished::Kept(kept));
    }

    /// Moves a call to the list for its state, and updates its memory.
    pub(super) fn place(&mut self, at: u32, now_ns: u64) {
        let Some(call) = self.calls.get_mut(at) else { return };
        let before = (call.list, call.touched_ns, at);
        call.touched_ns = call.touched_ns.max(now_ns);
        let cost = call.cost();
        self.used = self.used - call.cost + cost;
        call.cost = cost;
        let list = match call.state {
            state if state.is_over() => OVER,
            State::Answered if call.has_media => TALKING,
            State::Answered => QUIET,
            _ if call.joined => QUIET,
            _ => WAITING,
        };
        let active = call.chosen && list != OVER;
        match (active, std::mem::replace(&mut call.active, active)) {
            (true, false) => self.active += 1,
            (false, true) => self.active -= 1,
            _ => {}
        }
        call.list = list;
        let after = (list, call.touched_ns, at);
        if after != before {
            self.silence.remove(&before);
            self.silence.insert(after);
        }
    }

    /// Notes that media of a call arrived.
    pub(super) fn heard(&mut self, at: u32, now_ns: u64) {
        let Some(call) = self.calls.get_mut(at) else { return };
        let first = !std::mem::replace(&mut call.has_media, true);
        // Late media does not extend a call that is over.
        if !call.state.is_over() {
            call.last_ns = call.last_ns.max(now_ns);
            if first || now_ns.saturating_sub(call.touched_ns) >= TOUCH_NS {
                self.place(at, now_ns);
            }
        }
    }

    /// Registers the places where one party receives media.
    fn described(&mut self, at: u32, message: &Message<'_>, described: sdp::Description) {
        let Some(call) = self.calls.get_mut(at) else { return };
        let party = call.sender(message);
        call.media_left_out += described.more;
        self.counts.media_left_out += described.more;
        // The final response that carries it has been processed already.
        let is_final = matches!(message.start, Start::Response { code: 200.., .. });
        if party == Party::Callee && call.answer_ns.is_none() && !is_final {
            call.early_media = true;
        }
        let mut announced = Vec::new();
        for (media, description) in described.media.iter().enumerate() {
            announced.extend(places(description).map(|(place, rtcp)| (place, media, rtcp)));
        }
        call.offers[party as usize] = described.media;
        for (place, media, rtcp) in announced {
            self.announce(at, place, Endpoint { call: at, party, media, rtcp, learned: false });
        }
        self.named(at);
        self.know_types(at);
    }

    /// A place is one of a call's, whosever it was.
    pub(super) fn announce(&mut self, at: u32, place: MediaAddress, endpoint: Endpoint) {
        let Some(call) = self.calls.get_mut(at) else { return };
        if !call.places.contains(&place) {
            if call.places.len() == MOST_PLACES {
                return;
            }
            call.places.push(place);
        }
        let before = self.places.insert(place, endpoint);
        self.rule(place, endpoint, before);
    }

    /// Updates the payload types of the streams of a call.
    fn know_types(&mut self, of: u32) {
        let Some(call) = self.calls.get(of) else { return };
        let mut changed = Vec::new();
        for at in call.streams.clone() {
            self.look_lent(at);
            let (Some(stream), Some(call)) = (self.streams.get_mut(at), self.calls.get(of)) else { continue };
            let before = stream.rtp.payload;
            know(stream, call);
            if stream.rtp.payload != before {
                changed.push(at);
            }
        }
        for at in changed {
            self.relearn(at);
            self.tell_types(at);
        }
    }

    /// Hands out a call with its streams.
    pub(super) fn end_call(&mut self, at: u32, ending: Ending) {
        let Some(mut call) = self.calls.remove(at) else { return };
        self.silence.remove(&(call.list, call.touched_ns, at));
        self.used -= call.cost;
        self.active -= u64::from(call.active);
        for place in &call.places {
            if self.places.get(place).is_some_and(|endpoint| endpoint.call == at) {
                self.places.remove(place);
                self.unrule(*place);
            }
        }
        let streams: Vec<_> =
            std::mem::take(&mut call.streams).into_iter().filter_map(|at| self.take_stream(at)).collect();
        if !call.state.is_over() {
            // Media that was not delivered to user space.
            let heard_ns = streams.iter().map(|stream| stream.rtp.last_ns).max().unwrap_or(0);
            call.last_ns = call.last_ns.max(heard_ns);
        }
        if !call.chosen {
            self.counts.calls_left_out += 1;
            self.counts.rtp_left_out += streams.iter().map(|stream| stream.rtp.packets).sum::<u64>();
            return;
        }
        if ending == Ending::Ended && !call.state.is_over() && call.state != State::Challenged {
            call.state = State::TimedOut;
        }
        let counts = &mut self.counts;
        counts.calls += 1;
        counts.states[call.state as usize] += 1;
        counts.self_calls += u64::from(call.to_self);
        counts.calls_evicted += u64::from(ending == Ending::Resources);
        counts.streams += streams.len() as u64;
        counts.streams_evicted += if ending == Ending::Resources { streams.len() as u64 } else { 0 };
        self.hand_out(Finished::Call(Box::new(CallRecord { call, streams, ending })));
    }
}

/// A destination of media, and whether it is for RTCP alone.
fn places(media: &Media) -> impl Iterator<Item = (MediaAddress, bool)> + '_ {
    let rtcp = media.rtcp_place().filter(|_| !media.rtcp_mux).map(|place| (place, true));
    let candidates = media.candidates.iter().filter(|_| media.rtp);
    let candidates = candidates
        .map(|(component, address, port)| ((*address, *port), *component == 2))
        .filter(|((_, port), _)| *port != 0);
    // The last entry for a place decides its use.
    rtcp.into_iter().chain(candidates).chain(media.place().map(|place| (place, false)))
}

/// Sets the payload types of a stream: those that the receiver named, and otherwise those of the sender.
pub(super) fn know(stream: &mut super::stream::Stream, call: &Call) {
    let Some(toward) = stream.toward else { return };
    for party in [toward.other(), toward] {
        if let Some(media) = call.offers[party as usize].get(stream.media) {
            stream.know(&media.payloads);
        }
    }
}
