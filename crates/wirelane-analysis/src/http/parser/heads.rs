//! Collecting and parsing the heads of a direction.

use wirelane_bpf::http::{HEAD_MOST, Line, head_end};

use super::super::chunks::Chunks;
use super::super::exchange::Exchanges;
use super::super::head::{self, Framing, Role};
use super::super::transaction::Mark;
use super::{Head, Parser, Span, State, open};

impl Parser {
    /// Continues with a head.
    pub(super) fn head(
        &mut self,
        data: &[u8],
        here: Span,
        exchanges: &mut Exchanges,
        extra: &[Box<str>],
    ) -> usize {
        let State::Head(head) = &mut self.state else { return data.len() };
        let used = head_end(&mut head.line, data);
        let room = HEAD_MOST.saturating_sub(head.bytes.len());
        head.bytes.extend_from_slice(&data[..used.min(room)]);
        head.total += used as u64;
        let full = head.bytes.len() >= HEAD_MOST;
        let over = head.line == Line::END;
        if !head.checked {
            let from = std::mem::replace(&mut head.searched, head.bytes.len());
            let end = head.bytes[from..].iter().position(|byte| *byte == b'\n').map(|end| from + end);
            if end.is_some() || full {
                head.checked = true;
                let end = end.unwrap_or(head.bytes.len());
                let role = role_of(&head.bytes);
                if exchanges.client.is_none() && !head::is_line(head.bytes[..end].trim_ascii_end(), role) {
                    // Another protocol that shares a word with HTTP.
                    self.strays.unknown += head.total;
                    self.state = State::Adrift;
                    return used;
                }
                exchanges.client.get_or_insert(if role == Role::Client { self.dir } else { 1 - self.dir });
            }
        }
        if over {
            self.read_head(here.ts_ns, false, exchanges, extra);
        }
        used
    }

    /// Ends an incomplete head: parses the available part if its first line is complete.
    pub(super) fn break_head(&mut self, exchanges: &mut Exchanges, extra: &[Box<str>]) {
        let State::Head(head) = &self.state else { return };
        if head.checked {
            self.read_head(self.ts_ns, true, exchanges, extra);
            if self.message.is_some() {
                self.state = State::Adrift;
            }
        } else {
            self.strays.unknown += head.total;
            self.state = State::Adrift;
        }
    }

    fn read_head(&mut self, ts_ns: u64, broken: bool, exchanges: &mut Exchanges, extra: &[Box<str>]) {
        let State::Head(head) = std::mem::replace(&mut self.state, State::Adrift) else { return };
        let Head { bytes, total, place, .. } = *head;
        let role = self.role(exchanges).unwrap_or(Role::Client);
        let (mut message, lengths) = head::read(&bytes, role, broken, extra);
        if total > bytes.len() as u64 {
            message.marks.set(Mark::HeadCut);
        }
        (message.head, message.bytes, message.head_ns) = (total, total, ts_ns);
        (message.start_ns, message.end_ns) = (place.ts_ns, ts_ns);
        if std::mem::take(&mut self.lost) {
            message.marks.set(Mark::Resynchronised);
        }
        self.orphan = false;
        let framing = match role {
            Role::Client => {
                exchanges.request_begun(&message.method, place.acked);
                head::of_request(&mut message, lengths)
            }
            Role::Server if (100..200).contains(&message.status) && message.status != 101 => {
                exchanges.interim();
                self.state = if broken { State::Adrift } else { open(true) };
                return;
            }
            Role::Server => {
                let method = exchanges.response_begun(place.at);
                self.orphan = method.is_none();
                head::of_response(&mut message, lengths, method.as_deref())
            }
        };
        if framing == Framing::Tunnel {
            message.marks.set(Mark::Tunnel);
            exchanges.tunnel = true;
        }
        self.message = Some(Box::new(message));
        self.state = match framing {
            _ if broken => State::Adrift,
            Framing::Length(0) | Framing::Tunnel => return self.end(exchanges),
            Framing::Length(left) => State::Length(left),
            Framing::Chunked => State::Chunks(Chunks::new()),
            Framing::UntilClose => State::UntilClose,
            Framing::Unknown => State::Adrift,
        };
    }
}

fn role_of(head: &[u8]) -> Role {
    if head.starts_with(b"HTTP/1.") { Role::Server } else { Role::Client }
}
