//! Fields of application protocols, as patterns with their position and context in a payload.
//!
//! Only the payload of one packet is searched: a field in a later segment than the beginning of its message is found if
//! it may stand anywhere ([`Application::HttpHost`]), and is not found if it must come first.

use std::fmt;
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use super::sip::{RESPONSE, SCHEMES, SipHeader, beginnings};
use super::{Pattern, Patterns, Role};
use crate::names::shown;
use crate::text::{joined, range};

/// Maximum length of a value in bytes.
const LONGEST_VALUE: usize = 100;

/// A field of an application protocol and its accepted values, one of which must match.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Application {
    /// The payload begins with an HTTP/1 request of this method (RFC 9112, 3): capital letters.
    HttpMethod(Vec<String>),
    /// A field `Host` begins with this text, case-insensitive (RFC 9110, 7.2).
    HttpHost(Vec<String>),
    /// The payload begins with an HTTP/1 response of this status, `404`, or class of status, `4xx` (RFC 9112, 4).
    HttpStatus(Vec<String>),
    /// The payload begins with a SIP request of this method to a `sip:`, `sips:` or `tel:` URI (RFC 3261, 7.1).
    SipMethod(Vec<String>),
    /// A field `Call-ID` or `i` has this value, case-insensitive (RFC 3261, 20.8).
    SipCallId(Vec<String>),
    /// The payload begins like a SIP message, and the value of its field `From` or `f` contains this text,
    /// case-insensitive (RFC 3261, 20.20).
    SipFrom(Vec<String>),
    /// The payload begins like a SIP message, and the value of its field `To` or `t` contains this text,
    /// case-insensitive (RFC 3261, 20.39).
    SipTo(Vec<String>),
    /// The payload begins like a SIP message, and the value of one of its fields `Via` or `v` contains this text,
    /// case-insensitive (RFC 3261, 20.42).
    SipVia(Vec<String>),
    /// The payload begins with a SIP response of this status, `404`, or class of status, `4xx` (RFC 3261, 7.2).
    SipStatus(Vec<String>),
    /// The payload begins like a SIP message, and its head has a field of this name, or of its compact form.
    SipField(Vec<String>),
    /// The payload begins like RTP of version 2 with this payload type, 0 to 127 (RFC 3550, 5.1).
    RtpType(Vec<RangeInclusive<u8>>),
}

/// A field's name in a rule file, its constructor, and the check of one text.
pub(crate) type OfTexts = (&'static str, fn(Vec<String>) -> Application, fn(&str) -> Option<String>);

/// The fields whose values are texts.
pub(crate) const OF_TEXTS: &[OfTexts] = &[
    ("http-method", Application::HttpMethod, method_fault),
    ("http-host", Application::HttpHost, word_fault),
    ("http-status", Application::HttpStatus, status_fault),
    ("sip-method", Application::SipMethod, method_fault),
    ("sip-call-id", Application::SipCallId, word_fault),
    ("sip-from", Application::SipFrom, text_fault),
    ("sip-to", Application::SipTo, text_fault),
    ("sip-via", Application::SipVia, text_fault),
    ("sip-field", Application::SipField, name_fault),
    ("sip-status", Application::SipStatus, sip_status_fault),
];

/// The field whose values are numbers.
pub(crate) const RTP_TYPE: &str = "rtp-type";

fn method_fault(method: &str) -> Option<String> {
    let letters = method.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'-');
    let fits = letters && (1..=LONGEST_VALUE).contains(&method.len());
    (!fits).then(|| format!("'{}' is not a method: methods have capital letters, like GET", shown(method)))
}

fn word_fault(word: &str) -> Option<String> {
    let fits = word.bytes().all(|byte| byte.is_ascii_graphic()) && (1..=LONGEST_VALUE).contains(&word.len());
    let reason = || format!("'{}' is not 1 to {LONGEST_VALUE} letters without blanks", shown(word));
    (!fits).then(reason)
}

/// The fault of a name of a header field (RFC 3261, 25.1: a token).
fn name_fault(name: &str) -> Option<String> {
    let fits = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.!%*_+`'~".contains(&byte))
        && (1..=LONGEST_VALUE).contains(&name.len());
    (!fits).then(|| format!("'{}' is not the name of a header field, like Max-Forwards", shown(name)))
}

fn text_fault(text: &str) -> Option<String> {
    let fits = !text.bytes().any(|byte| byte.is_ascii_control()) && (1..=LONGEST_VALUE).contains(&text.len());
    let reason = || format!("'{}' is not 1 to {LONGEST_VALUE} letters of one line", shown(text));
    (!fits).then(reason)
}

/// The fault of a status of HTTP.
fn status_fault(status: &str) -> Option<String> {
    status_fault_to('5', status)
}

/// The fault of a status of SIP, which has a class more.
fn sip_status_fault(status: &str) -> Option<String> {
    status_fault_to('6', status)
}

/// The fault of a status, whose class is at most this.
fn status_fault_to(last: char, status: &str) -> Option<String> {
    let class = status.strip_suffix("xx").unwrap_or(status);
    let fits = matches!(class.len() + 2 * usize::from(class.len() != status.len()), 3)
        && class.bytes().all(|byte| byte.is_ascii_digit())
        && class.starts_with(|first| ('1'..=last).contains(&first));
    (!fits).then(|| format!("'{}' is not a status: expected 404, or \"4xx\" for the class", shown(status)))
}

/// Bytes that must stand at the beginning of the payload.
fn beginning(bytes: Vec<u8>) -> (Vec<u8>, bool, Option<u32>) {
    let depth = Some(bytes.len() as u32);
    (bytes, false, depth)
}

/// Text that may stand anywhere, case-insensitive.
fn anywhere(text: &str) -> (Vec<u8>, bool, Option<u32>) {
    (text.as_bytes().to_vec(), true, None)
}

impl Application {
    /// The name of the field in a rule file.
    pub fn field(&self) -> &'static str {
        match self {
            Application::HttpMethod(_) => "http-method",
            Application::HttpHost(_) => "http-host",
            Application::HttpStatus(_) => "http-status",
            Application::SipMethod(_) => "sip-method",
            Application::SipCallId(_) => "sip-call-id",
            Application::SipFrom(_) => "sip-from",
            Application::SipTo(_) => "sip-to",
            Application::SipVia(_) => "sip-via",
            Application::SipStatus(_) => "sip-status",
            Application::SipField(_) => "sip-field",
            Application::RtpType(_) => RTP_TYPE,
        }
    }

    /// The name of the field's patterns; other patterns cannot have such a name.
    pub(crate) fn name(&self) -> String {
        let values = match self {
            Application::RtpType(ranges) => ranges.iter().map(range).collect::<Vec<_>>().join(","),
            _ => self.texts().join(","),
        };
        format!("{}={values}", self.field())
    }

    fn texts(&self) -> &[String] {
        match self {
            Application::HttpMethod(texts)
            | Application::HttpHost(texts)
            | Application::HttpStatus(texts)
            | Application::SipMethod(texts)
            | Application::SipCallId(texts)
            | Application::SipFrom(texts)
            | Application::SipTo(texts)
            | Application::SipVia(texts)
            | Application::SipStatus(texts)
            | Application::SipField(texts) => texts,
            Application::RtpType(_) => &[],
        }
    }

    /// The fault of the values, if any; an empty text if there are no values.
    pub(crate) fn fault(&self) -> Option<String> {
        if let Application::RtpType(ranges) = self {
            let wrong = |range: &RangeInclusive<u8>| range.is_empty() || *range.end() > 127;
            let reason = || "payload types of RTP are 0 to 127, in order".to_owned();
            return if ranges.is_empty() {
                Some(String::new())
            } else {
                ranges.iter().any(wrong).then(reason)
            };
        }
        if self.texts().is_empty() {
            return Some(String::new());
        }
        let (_, _, fault) = OF_TEXTS.iter().find(|(name, ..)| *name == self.field())?;
        self.texts().iter().find_map(|text| fault(text))
    }

    /// Where the texts must stand.
    pub(super) fn role(&self) -> Role {
        match self {
            Application::SipFrom(_) => Role::Within(SipHeader::From),
            Application::SipTo(_) => Role::Within(SipHeader::To),
            Application::SipVia(_) => Role::Within(SipHeader::Via),
            Application::SipField(_) => Role::Head,
            _ => Role::Anywhere,
        }
    }

    /// The patterns of the field. Their id is 0: they are not reported in records.
    pub(super) fn patterns(&self) -> Vec<Patterns> {
        let name = self.name();
        let table = |(bytes, nocase, depth)| Patterns {
            name: name.clone(),
            id: 0,
            patterns: [Pattern(bytes)].into(),
            nocase,
            offset: 0,
            depth,
        };
        self.parts().into_iter().map(table).collect()
    }

    fn parts(&self) -> Vec<(Vec<u8>, bool, Option<u32>)> {
        let each = |texts: &[String], forms: &dyn Fn(&str) -> Vec<String>| -> Vec<String> {
            texts.iter().flat_map(|text| forms(text)).collect()
        };
        let first = |texts: Vec<String>| texts.into_iter().map(|text| beginning(text.into_bytes())).collect();
        let somewhere = |texts: Vec<String>| texts.iter().map(|text| anywhere(text)).collect();
        match self {
            // The target has one of four forms; `CONNECT` is distinctive without its target.
            Application::HttpMethod(methods) => first(each(methods, &|method| match method {
                "CONNECT" => vec!["CONNECT ".to_owned()],
                _ => ["/", "http://", "https://", "*"].map(|target| format!("{method} {target}")).into(),
            })),
            Application::HttpHost(hosts) => somewhere(each(hosts, &|host| {
                [": ", ":"].map(|colon| format!("\r\nHost{colon}{host}")).into()
            })),
            Application::HttpStatus(all) => first(each(all, &|status| {
                let status = status.trim_end_matches('x');
                ["1.0", "1.1"].map(|version| format!("HTTP/{version} {status}")).into()
            })),
            Application::SipMethod(methods) => {
                first(each(methods, &|method| SCHEMES.map(|scheme| format!("{method} {scheme}")).into()))
            }
            Application::SipCallId(ids) => somewhere(each(ids, &|id| {
                ["Call-ID: ", "Call-ID:", "i: ", "i:"].map(|field| format!("\r\n{field}{id}\r\n")).into()
            })),
            Application::SipFrom(texts) | Application::SipTo(texts) | Application::SipVia(texts) => {
                somewhere(texts.clone())
            }
            Application::SipField(names) => {
                somewhere(names.iter().flat_map(|name| beginnings(name)).collect())
            }
            Application::SipStatus(all) => {
                first(each(all, &|status| vec![format!("{RESPONSE}{}", status.trim_end_matches('x'))]))
            }
            Application::RtpType(ranges) => {
                // Version 2; padding, extension and contributing sources are free, and so is the marker.
                let kinds = (0..=127u8).filter(|kind| ranges.iter().any(|range| range.contains(kind)));
                let heads =
                    |kind| (0x80..=0xbf).flat_map(move |head| [vec![head, kind], vec![head, 0x80 | kind]]);
                kinds.flat_map(heads).map(beginning).collect()
            }
        }
    }
}

/// The values, as in a rule file.
impl fmt::Display for Application {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&match self {
            Application::RtpType(ranges) => joined(ranges, range),
            _ => joined(self.texts(), |text| shown(text)),
        })
    }
}
