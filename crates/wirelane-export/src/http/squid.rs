//! Squid's native format (`FormatSquidNative.cc`).

use std::net::IpAddr;

use wirelane_analysis::http::{Message, Transaction, fields};

use super::escape::{percent, push};

/// `end elapsed client code/status bytes method URL user hierarchy/peer type`. The result of a cache is unknown:
/// `NONE`. The peer is the server, as for a cache that asks it directly.
pub fn line(out: &mut Vec<u8>, transaction: &Transaction) {
    let (start, end) = (transaction.start_ns(), transaction.end_ns());
    let ms = end.saturating_sub(start) / 1_000_000;
    push(out, format_args!("{:9}.{:03} {ms:6} ", end / 1_000_000_000, end / 1_000_000 % 1000));
    let response = transaction.response.as_ref();
    let (status, bytes) = response.map_or((0, 0), |response| (response.status, response.bytes));
    push(out, format_args!("{} NONE/{status:03} {bytes} ", transaction.client.0));
    match &transaction.request {
        Some(request) => {
            if request.method.is_empty() {
                out.push(b'-');
            }
            percent(out, &request.method);
            out.push(b' ');
            url(out, transaction, request);
        }
        None => out.extend(*b"NONE error:no-request"),
    }
    push(out, format_args!(" - HIER_DIRECT/{} ", transaction.server.0));
    match response.and_then(|response| response.field(fields::CONTENT_TYPE)).map(without_parameters) {
        Some(kind) if !kind.is_empty() => percent(out, kind),
        _ => out.push(b'-'),
    }
    out.push(b'\n');
}

/// The URL that a client would have requested from a proxy.
fn url(out: &mut Vec<u8>, transaction: &Transaction, request: &Message) {
    if request.target.is_empty() {
        out.push(b'-');
    }
    if request.target.starts_with(b"/") {
        out.extend(*b"http://");
        match request.field(fields::HOST) {
            Some(host) if !host.is_empty() => percent(out, host),
            _ => match transaction.server {
                (IpAddr::V4(address), 80) => push(out, format_args!("{address}")),
                (IpAddr::V6(address), 80) => push(out, format_args!("[{address}]")),
                (IpAddr::V4(address), port) => push(out, format_args!("{address}:{port}")),
                (IpAddr::V6(address), port) => push(out, format_args!("[{address}]:{port}")),
            },
        }
    }
    percent(out, &request.target);
}

/// The type up to the characters at which Squid ends it.
fn without_parameters(kind: &[u8]) -> &[u8] {
    kind.split(|byte| matches!(byte, b';' | b' ' | b'\t')).next().unwrap_or_default()
}
