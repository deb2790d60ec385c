//! Apache's log formats (mod_log_config), and nginx's combined format (ngx_http_log_module).

use wirelane_analysis::http::{Message, Transaction, fields};

use super::escape::{apache, apache_word, nginx, push};
use crate::calendar::calendar;

/// `%h %l %u %t "%r" %>s %b`, with or without parts before and after it.
#[derive(Clone, Copy)]
pub struct Style {
    /// The prefix `%v:%p `.
    vhost: bool,
    /// The suffix ` "%{Referer}i" "%{User-Agent}i"`.
    combined: bool,
    /// The suffix ` %D`.
    us: bool,
    /// Escapes untrusted bytes.
    escape: fn(&mut Vec<u8>, &[u8]),
    /// An empty body: Apache writes a dash, nginx 0.
    no_body: &'static str,
}

impl Style {
    pub const COMMON: Style =
        Style { vhost: false, combined: false, us: false, escape: apache, no_body: "-" };
    pub const COMBINED: Style = Style { combined: true, ..Style::COMMON };
    pub const VHOST: Style = Style { vhost: true, ..Style::COMBINED };
    pub const NGINX: Style = Style { escape: nginx, no_body: "0", ..Style::COMBINED };

    /// The same with microseconds at the end.
    pub const fn timed(self) -> Style {
        Style { us: true, ..self }
    }

    /// Writes a transaction as a line.
    pub fn line(self, out: &mut Vec<u8>, transaction: &Transaction) {
        let Style { vhost, combined, us, escape, no_body } = self;
        let request = transaction.request.as_ref();
        if vhost {
            match request.and_then(|request| request.field(fields::HOST)).map(without_port) {
                Some(host) if !host.is_empty() => apache_word(out, host),
                _ => push(out, format_args!("{}", transaction.server.0)),
            }
            push(out, format_args!(":{} ", transaction.server.1));
        }
        let time = calendar(transaction.start_ns() / 1_000_000_000);
        let time = time.strftime("%d/%b/%Y:%H:%M:%S");
        push(out, format_args!("{} - - [{time} +0000] \"", transaction.client.0));
        match request {
            Some(request) => escape(out, &request.line),
            None => out.push(b'-'),
        }
        out.extend(*b"\" ");
        match &transaction.response {
            Some(response) if response.status > 0 => push(out, format_args!("{} ", response.status)),
            _ => out.extend(*b"- "),
        }
        match &transaction.response {
            Some(response) if response.body > 0 => push(out, format_args!("{}", response.body)),
            _ => out.extend(no_body.as_bytes()),
        }
        if combined {
            for field in [fields::REFERER, fields::USER_AGENT] {
                out.extend(*b" \"");
                field_text(out, request, field, escape);
                out.push(b'"');
            }
        }
        if us {
            let end = transaction.end_ns().max(transaction.start_ns());
            push(out, format_args!(" {}", (end - transaction.start_ns()) / 1000));
        }
        out.push(b'\n');
    }
}

/// The values of a header field, joined as both servers do.
fn field_text(out: &mut Vec<u8>, request: Option<&Message>, field: u8, escape: fn(&mut Vec<u8>, &[u8])) {
    let values = request.map(|request| &request.fields[..]).unwrap_or_default();
    let mut values = values.iter().filter(|(number, _)| *number == field);
    let Some((_, first)) = values.next() else { return out.push(b'-') };
    escape(out, first);
    for (_, value) in values {
        out.extend(*b", ");
        escape(out, value);
    }
}

/// A host without a `:port` suffix.
pub fn without_port(host: &[u8]) -> &[u8] {
    let digits = host.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let colon = host.len().checked_sub(digits + 1).filter(|at| host[*at] == b':');
    // In an IPv6 address without brackets, the last group is not a port.
    let behind = |at: usize| !host[..at].contains(&b':') || host[..at].ends_with(b"]");
    match colon {
        Some(at) if behind(at) => &host[..at],
        _ => host,
    }
}
