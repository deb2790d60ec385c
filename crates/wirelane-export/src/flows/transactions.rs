//! HTTP transactions as IPFIX, with the HTTP elements of IANA's registry. Texts have variable length (RFC 7011, section
//! 7): header contents as UTF-8, with replacement characters for invalid bytes. A text that does not fit into a message
//! is truncated.

use std::net::IpAddr;

use wirelane_analysis::flows::FlowRecord;
use wirelane_analysis::http::{Message as Half, Transaction, fields};

use super::encode::{Context, Encoder, Message, Refresh, Sets};
use super::fields::{Field, field, ie, ntp, specifiers};

const HEADER: usize = 16;
const TEMPLATES: u16 = 2;
const IPV4: u16 = 310;
const IPV6: u16 = 311;
/// The template length of a variable-length field.
const VARIABLE: u16 = u16::MAX;

/// Element numbers of IANA.
const INITIATOR_OCTETS: u16 = 231;
const RESPONDER_OCTETS: u16 = 232;
const STATUS_CODE: u16 = 457;
const METHOD: u16 = 459;
const HOST: u16 = 460;
const TARGET: u16 = 461;
const VERSION: u16 = 462;
const USER_AGENT: u16 = 468;
const CONTENT_TYPE: u16 = 469;
const REASON: u16 = 470;

/// Fields after the addresses, in this order: the client is the source, the server the destination.
const FIELDS: [Field; 18] = [
    field(ie::SRC_PORT, 2),
    field(ie::DST_PORT, 2),
    field(ie::PROTOCOL, 1),
    field(ie::VLAN, 2),
    field(ie::START_MS, 8),
    field(ie::END_MS, 8),
    field(ie::START_NS, 8),
    field(ie::END_NS, 8),
    field(INITIATOR_OCTETS, 8),
    field(RESPONDER_OCTETS, 8),
    field(STATUS_CODE, 2),
    field(METHOD, VARIABLE),
    field(HOST, VARIABLE),
    field(TARGET, VARIABLE),
    field(VERSION, VARIABLE),
    field(USER_AGENT, VARIABLE),
    field(CONTENT_TYPE, VARIABLE),
    field(REASON, VARIABLE),
];
/// Number of texts among these fields.
const TEXTS: usize = 7;
/// Index of the target among the texts: it gets the remaining space.
const TARGET_TEXT: usize = 2;

fn fields_of(template: u16) -> Vec<Field> {
    let addresses = if template == IPV4 {
        [field(ie::SRC_IPV4, 4), field(ie::DST_IPV4, 4)]
    } else {
        [field(ie::SRC_IPV6, 16), field(ie::DST_IPV6, 16)]
    };
    [&addresses[..], &FIELDS].concat()
}

/// Encodes IPFIX messages of transactions.
pub(super) struct TransactionIpfix {
    sets: Sets,
    most: usize,
    refresh: Refresh,
    /// Number of data records before the current message.
    sequence: u32,
}

impl TransactionIpfix {
    /// For messages of this size; `once` and `preamble` as for flows.
    pub fn new(most: usize, once: bool, preamble: bool) -> TransactionIpfix {
        let mut refresh = Refresh::new(once);
        if preamble {
            refresh.done();
        }
        TransactionIpfix { sets: Sets::new(HEADER, most), most, refresh, sequence: 0 }
    }

    fn describe(&mut self, context: &Context<'_>, out: &mut Vec<Message>) {
        for id in [IPV4, IPV6] {
            let fields = fields_of(id);
            let mut template = id.to_be_bytes().to_vec();
            template.extend((fields.len() as u16).to_be_bytes());
            specifiers(&mut template, &fields);
            if !self.sets.fits(TEMPLATES, template.len()) {
                self.finish(context, out);
            }
            self.sets.put(TEMPLATES, &template);
        }
    }

    fn finish(&mut self, context: &Context<'_>, out: &mut Vec<Message>) {
        if self.sets.is_empty() {
            return;
        }
        let seconds = (context.now_ns / 1_000_000_000) as u32;
        out.push(self.sets.ipfix(seconds, &mut self.sequence, context.settings.domain));
    }

    /// The set of a transaction, and its record, which fits into a message.
    fn record(&self, transaction: &Transaction) -> Option<(u16, Vec<u8>)> {
        let mut record = Vec::new();
        let set = match (transaction.client.0, transaction.server.0) {
            (IpAddr::V4(client), IpAddr::V4(server)) => {
                record.extend(client.octets());
                record.extend(server.octets());
                IPV4
            }
            (IpAddr::V6(client), IpAddr::V6(server)) => {
                record.extend(client.octets());
                record.extend(server.octets());
                IPV6
            }
            _ => return None,
        };
        let (request, response) = (transaction.request.as_ref(), transaction.response.as_ref());
        let octets = |half: Option<&Half>| half.map_or(0, |half| half.bytes);
        record.extend(transaction.client.1.to_be_bytes());
        record.extend(transaction.server.1.to_be_bytes());
        record.push(6);
        record.extend(transaction.vlan.unwrap_or(0).to_be_bytes());
        let (start_ns, end_ns) = (transaction.start_ns(), transaction.end_ns());
        record.extend((start_ns / 1_000_000).to_be_bytes());
        record.extend((end_ns / 1_000_000).to_be_bytes());
        record.extend(ntp(start_ns).to_be_bytes());
        record.extend(ntp(end_ns).to_be_bytes());
        record.extend(octets(request).to_be_bytes());
        record.extend(octets(response).to_be_bytes());
        record.extend(response.map_or(0, |response| response.status).to_be_bytes());

        let of = |half: Option<&Half>, number: u8| {
            half.and_then(|half| half.field(number)).map(utf8).unwrap_or_default()
        };
        let texts: [String; TEXTS] = [
            request.map(|request| utf8(&request.method)).unwrap_or_default(),
            of(request, fields::HOST),
            request.map(|request| utf8(&request.target)).unwrap_or_default(),
            request.or(response).map(version).unwrap_or_default(),
            of(request, fields::USER_AGENT),
            of(response, fields::CONTENT_TYPE),
            response.map(reason).unwrap_or_default(),
        ];
        // Space after the message header, the set header, its padding, and three bytes for each length.
        let room = self.most.saturating_sub(HEADER + 4 + 3 + record.len() + 3 * TEXTS);
        let each = room / (TEXTS + 3);
        let others: usize = texts
            .iter()
            .enumerate()
            .filter(|(at, _)| *at != TARGET_TEXT)
            .map(|(_, text)| text.len().min(each))
            .sum();
        for (at, text) in texts.iter().enumerate() {
            let most = if at == TARGET_TEXT { room - others } else { each };
            put(&mut record, cut(text, most));
        }
        Some((set, record))
    }
}

impl Encoder for TransactionIpfix {
    fn flow(&mut self, _: &FlowRecord, _: &Context<'_>, _: &mut Vec<Message>) -> bool {
        false
    }

    fn transaction(
        &mut self,
        transaction: &Transaction,
        context: &Context<'_>,
        out: &mut Vec<Message>,
    ) -> bool {
        let Some((set, record)) = self.record(transaction) else { return false };
        if !self.sets.fits(set, record.len()) {
            self.finish(context, out);
        }
        if self.sets.is_empty() && self.refresh.is_due(context.settings.refresh) {
            let before = out.len();
            self.describe(context, out);
            if self.refresh.is_alone() {
                self.finish(context, out);
                out[before..].iter_mut().for_each(|message| message.settles = true);
            }
            if !self.sets.fits(set, record.len()) {
                self.finish(context, out);
            }
        }
        self.sets.put(set, &record);
        self.sets.count_one();
        true
    }

    fn end(&mut self, context: &Context<'_>, out: &mut Vec<Message>) {
        self.finish(context, out);
    }

    fn preamble(&mut self, context: &Context<'_>) -> Option<Message> {
        // The current message continues after the preamble.
        let before = std::mem::replace(&mut self.sets, Sets::new(HEADER, usize::from(u16::MAX)));
        let mut out = Vec::new();
        self.describe(context, &mut out);
        self.finish(context, &mut out);
        self.sets = before;
        out.pop()
    }
}

fn utf8(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn version(half: &Half) -> String {
    if half.minor == u8::MAX { String::new() } else { format!("HTTP/1.{}", half.minor) }
}

/// The reason phrase after the status code.
fn reason(response: &Half) -> String {
    let line = utf8(&response.line);
    line.splitn(3, ' ').nth(2).unwrap_or_default().trim().to_owned()
}

/// At most the first `most` bytes of a text.
fn cut(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Appends a text after its length.
fn put(record: &mut Vec<u8>, text: &str) {
    match text.len() {
        short @ 0..255 => record.push(short as u8),
        long => {
            record.push(u8::MAX);
            record.extend((long as u16).to_be_bytes());
        }
    }
    record.extend_from_slice(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::super::encode::ExportSettings;
    use super::*;

    fn transaction(target: &str) -> Transaction {
        let request = Half {
            method: b"GET"[..].into(),
            target: target.as_bytes().into(),
            minor: 1,
            bytes: 90,
            start_ns: 1_700_000_000_500_000_000,
            fields: vec![
                (fields::HOST, b"example.org"[..].into()),
                (fields::USER_AGENT, b"x\xff"[..].into()),
            ],
            ..Half::default()
        };
        let response = Half {
            line: b"HTTP/1.1 404 Not Found"[..].into(),
            status: 404,
            minor: 1,
            bytes: 1234,
            ..Half::default()
        };
        Transaction {
            client: ([192, 0, 2, 1].into(), 4000),
            server: ([192, 0, 2, 2].into(), 80),
            vlan: None,
            number: 1,
            request: Some(request),
            response: Some(response),
            informational: 0,
            marks: wirelane_analysis::http::Marks::default(),
        }
    }

    /// The texts after the fixed-length fields.
    fn texts(record: &[u8]) -> Vec<String> {
        let mut rest = &record[8 + 57..];
        let mut texts = Vec::new();
        while let Some((first, behind)) = rest.split_first() {
            let (length, behind) = match first {
                255 => (usize::from(u16::from_be_bytes([behind[0], behind[1]])), &behind[2..]),
                short => (usize::from(*short), behind),
            };
            texts.push(String::from_utf8(behind[..length].to_vec()).unwrap());
            rest = &behind[length..];
        }
        texts
    }

    #[test]
    fn texts_have_their_lengths_with_them() {
        let encoder = TransactionIpfix::new(1400, false, false);
        let (set, record) = encoder.record(&transaction("/a")).unwrap();
        assert_eq!(set, IPV4);
        let expected = ["GET", "example.org", "/a", "HTTP/1.1", "x\u{fffd}", "", "Not Found"];
        assert_eq!(texts(&record), expected);
        let long = "/".repeat(300);
        assert_eq!(texts(&encoder.record(&transaction(&long)).unwrap().1)[2], long);
    }

    #[test]
    fn what_does_not_fit_is_cut_and_the_message_is_no_longer_than_it_may_be() {
        let long = "é".repeat(40_000);
        for most in [512, 1400, 65_000] {
            let mut encoder = TransactionIpfix::new(most, true, false);
            let naming = super::super::tests::naming();
            let (settings, counts) = (ExportSettings::default(), Default::default());
            let context = Context { settings: &settings, naming: &naming, counts: &counts, now_ns: 1 };
            let mut out = Vec::new();
            for _ in 0..3 {
                assert!(encoder.transaction(&transaction(&long), &context, &mut out));
            }
            encoder.end(&context, &mut out);
            assert!(out.iter().all(|message| message.bytes.len() <= most), "{most}");
            assert_eq!(out.iter().map(|message| message.flows).sum::<u64>(), 3);
            let (_, record) = encoder.record(&transaction(&long)).unwrap();
            assert_eq!(texts(&record).len(), TEXTS);
            assert!(record.len() > most / 2);
        }
    }
}
