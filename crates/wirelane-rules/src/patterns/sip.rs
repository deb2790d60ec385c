//! Header fields of SIP messages that are searched for a part of their value: the gates that delimit such a value
//! (`bpf/lib/search.h`).
//!
//! ```text
//! INVITE sip:bob@b SIP/2.0          a beginning opens MESSAGE
//! From: "Alice" <sip:alice@a>;...   a field's name opens its gate, if MESSAGE is open: texts count
//!   tag=9                           the end of the line shuts it, and a blank behind that opens it again
//! To: ...
//!                                   an empty line shuts all, and nothing opens MESSAGE again
//! ```

use wirelane_bpf::search::KEPT;

use super::{Pattern, Patterns};

/// The methods of SIP requests (IANA's registry).
pub(crate) const METHODS: [&str; 14] = [
    "ACK",
    "BYE",
    "CANCEL",
    "INFO",
    "INVITE",
    "MESSAGE",
    "NOTIFY",
    "OPTIONS",
    "PRACK",
    "PUBLISH",
    "REFER",
    "REGISTER",
    "SUBSCRIBE",
    "UPDATE",
];

/// The URI schemes of request targets.
pub(crate) const SCHEMES: [&str; 3] = ["sip:", "sips:", "tel:"];

/// The beginning of a response.
pub(crate) const RESPONSE: &str = "SIP/2.0 ";

/// The gate that is open within the head of a message.
pub(super) const MESSAGE: u8 = 0x1;

/// Names of header fields with their compact forms (IANA's registry).
const COMPACT: [(&str, &str); 17] = [
    ("Accept-Contact", "a"),
    ("Allow-Events", "u"),
    ("Call-ID", "i"),
    ("Contact", "m"),
    ("Content-Encoding", "e"),
    ("Content-Length", "l"),
    ("Content-Type", "c"),
    ("Event", "o"),
    ("From", "f"),
    ("Refer-To", "r"),
    ("Referred-By", "b"),
    ("Reject-Contact", "j"),
    ("Request-Disposition", "d"),
    ("Subject", "s"),
    ("Supported", "k"),
    ("To", "t"),
    ("Via", "v"),
];

/// The beginnings of lines of a header field, by its name and its compact form.
pub(super) fn beginnings(name: &str) -> Vec<String> {
    let compact = COMPACT.iter().find(|(long, _)| long.eq_ignore_ascii_case(name)).map(|(_, short)| *short);
    let names = [Some(name), compact].into_iter().flatten();
    names.flat_map(|name| COLONS.map(|colon| format!("\n{name}{colon}"))).collect()
}

/// The end of a header field's name.
const COLONS: [&str; 3] = [":", " :", "\t:"];

/// A header field that can be searched for a part of its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SipHeader {
    From,
    To,
    Via,
}

impl SipHeader {
    const ALL: [SipHeader; 3] = [SipHeader::From, SipHeader::To, SipHeader::Via];

    /// The name.
    pub(super) fn name(self) -> &'static str {
        match self {
            SipHeader::From => "From",
            SipHeader::To => "To",
            SipHeader::Via => "Via",
        }
    }

    /// The name, and the compact form (RFC 3261, 7.3.3).
    pub(crate) fn names(self) -> [&'static str; 2] {
        match self {
            SipHeader::From => ["From", "f"],
            SipHeader::To => ["To", "t"],
            SipHeader::Via => ["Via", "v"],
        }
    }

    /// The gate that is open within the field's value.
    pub(super) fn gate(self) -> u8 {
        match self {
            SipHeader::From => 0x2,
            SipHeader::To => 0x4,
            SipHeader::Via => 0x8,
        }
    }
}

/// The effect of a pattern on gates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gate {
    pub(super) needs: u8,
    pub(super) opens: u8,
    pub(super) closes: u8,
}

/// The patterns that open and close gates. At one position, gates are closed before others are opened, because the end
/// of a line is not part of a pattern that opens a gate there.
pub(super) fn gates() -> Vec<(Patterns, Gate)> {
    let table = |text: String, depth: Option<u32>, needs: u8, opens: u8, closes: u8| {
        let patterns = [Pattern(text.into_bytes())].into();
        let patterns = Patterns { name: String::new(), id: 0, patterns, nocase: true, offset: 0, depth };
        (patterns, Gate { needs, opens, closes })
    };
    let requests = METHODS.iter().flat_map(|method| SCHEMES.map(|scheme| format!("{method} {scheme}")));
    let beginning = |text: String| {
        let depth = Some(text.len() as u32);
        table(text, depth, 0, MESSAGE, 0)
    };
    let mut all: Vec<_> = requests.chain([RESPONSE.to_owned()]).map(beginning).collect();
    let values = SipHeader::ALL.iter().fold(0, |gates, header| gates | header.gate());
    for header in SipHeader::ALL {
        for text in beginnings(header.name()) {
            all.push(table(text, None, MESSAGE, header.gate(), 0));
        }
    }
    all.push(table("\n".to_owned(), None, MESSAGE, 0, values | KEPT));
    all.extend(["\n ", "\n\t"].map(|text| table(text.to_owned(), None, MESSAGE, KEPT, 0)));
    all.extend(["\n\n", "\n\r\n"].map(|text| table(text.to_owned(), None, 0, 0, values | MESSAGE)));
    all
}
