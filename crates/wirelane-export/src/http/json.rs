//! One JSON object per line. Serialized by hand, because request contents may be invalid UTF-8.

use wirelane_analysis::http::{Mark, Message, Transaction, fields};

use super::escape::{json, push};

/// Nanoseconds as seconds with nine decimals, which exceeds the precision of floating-point numbers.
fn seconds(out: &mut Vec<u8>, name: &str, ns: u64) {
    push(out, format_args!(",\"{name}\":\"{}.{:09}\"", ns / 1_000_000_000, ns % 1_000_000_000));
}

fn text(out: &mut Vec<u8>, name: &str, value: Option<&[u8]>) {
    if let Some(value) = value {
        push(out, format_args!(",\"{name}\":"));
        json(out, value);
    }
}

fn number(out: &mut Vec<u8>, name: &str, value: u64) {
    push(out, format_args!(",\"{name}\":{value}"));
}

/// Writes the values common to requests and responses, with `which` as the prefix of their names.
fn message(out: &mut Vec<u8>, which: &str, message: &Message) {
    if let Some(stated) = message.stated {
        number(out, &format!("{which}_length"), stated);
    }
    number(out, &format!("{which}_body"), message.body);
    number(out, &format!("{which}_bytes"), message.bytes);
    number(out, &format!("{which}_head"), message.head);
    if message.missing > 0 {
        number(out, &format!("{which}_missing"), message.missing);
    }
    if message.chunked {
        push(out, format_args!(",\"{which}_chunked\":true"));
    }
}

/// Writes a transaction with its number in the log.
pub fn line(out: &mut Vec<u8>, of_all: u64, transaction: &Transaction, extra: &[Box<str>]) {
    push(out, format_args!("{{\"transaction\":{of_all}"));
    seconds(out, "time", transaction.start_ns());
    let (client, server) = (transaction.client, transaction.server);
    push(out, format_args!(",\"client\":\"{}\",\"client_port\":{}", client.0, client.1));
    push(out, format_args!(",\"server\":\"{}\",\"server_port\":{}", server.0, server.1));
    if let Some(vlan) = transaction.vlan {
        number(out, "vlan", vlan.into());
    }
    number(out, "number", transaction.number);
    if let Some(request) = &transaction.request {
        text(out, "method", Some(&request.method));
        text(out, "uri", Some(&request.target));
        if request.minor < 10 {
            push(out, format_args!(",\"version\":\"1.{}\"", request.minor));
        }
        text(out, "host", request.field(fields::HOST));
        text(out, "referer", request.field(fields::REFERER));
        text(out, "user_agent", request.field(fields::USER_AGENT));
        if request.marks.has(Mark::Malformed) {
            text(out, "request_line", Some(&request.line));
        }
        message(out, "request", request);
        seconds(out, "request_s", request.end_ns.saturating_sub(request.start_ns));
    }
    if let Some(response) = &transaction.response {
        number(out, "status", response.status.into());
        text(out, "content_type", response.field(fields::CONTENT_TYPE));
        message(out, "response", response);
    }
    if transaction.informational > 0 {
        number(out, "informational", transaction.informational.into());
    }
    if let Some(ns) = transaction.first_byte_ns() {
        seconds(out, "ttfb_s", ns);
    }
    seconds(out, "duration_s", transaction.end_ns().saturating_sub(transaction.start_ns()));
    for (name, of) in [("request_fields", &transaction.request), ("response_fields", &transaction.response)] {
        asked(out, name, of.as_ref(), extra);
    }
    out.extend(*b",\"marks\":[");
    for (at, name) in transaction.marks.names().enumerate() {
        push(out, format_args!("{}\"{name}\"", if at > 0 { "," } else { "" }));
    }
    out.extend(*b"]}\n");
}

/// Requested header fields: name and value, in order.
fn asked(out: &mut Vec<u8>, name: &str, message: Option<&Message>, extra: &[Box<str>]) {
    let kept = fields::KEPT.len();
    let all = message.map(|message| &message.fields[..]).unwrap_or_default();
    let asked = |(number, value): &(u8, Box<[u8]>)| {
        let name = extra.get(usize::from(*number).checked_sub(kept)?)?;
        Some((name.clone(), value.clone()))
    };
    let found: Vec<_> = all.iter().filter_map(asked).collect();
    if found.is_empty() {
        return;
    }
    push(out, format_args!(",\"{name}\":["));
    for (at, (name, value)) in found.iter().enumerate() {
        out.extend_from_slice(if at > 0 { b",[" } else { b"[" });
        json(out, name.as_bytes());
        out.push(b',');
        json(out, value);
        out.push(b']');
    }
    out.push(b']');
}
