//! W3C's extended format, with the fields of IIS in their order, which goaccess and others expect.

use wirelane_analysis::http::{Transaction, fields};

use super::apache::without_port;
use super::escape::{iis, push};
use crate::calendar::calendar;

const FIELDS: &str = "date time s-ip cs-method cs-uri-stem cs-uri-query s-port cs-username c-ip cs(User-Agent) \
     cs(Referer) sc-status sc-substatus sc-win32-status time-taken sc-bytes cs-bytes cs-version cs-host";

/// Form of date and time.
const TIME: &str = "%Y-%m-%d %H:%M:%S";

/// Header lines.
pub fn header(now_ns: u64) -> String {
    let time = calendar(now_ns / 1_000_000_000);
    format!(
        "#Version: 1.0\n#Software: wirelane {}\n#Date: {}\n#Fields: {FIELDS}\n",
        env!("CARGO_PKG_VERSION"),
        time.strftime(TIME)
    )
}

/// `date` and `time` are those of the end, in UTC; `time-taken` is in milliseconds, as in IIS. Values that only IIS
/// knows are 0.
pub fn line(out: &mut Vec<u8>, transaction: &Transaction) {
    let (start, end) = (transaction.start_ns(), transaction.end_ns());
    let time = calendar(end / 1_000_000_000);
    push(out, format_args!("{} {} ", time.strftime(TIME), transaction.server.0));
    let request = transaction.request.as_ref();
    let field = |number: u8| request.and_then(|request| request.field(number)).unwrap_or_default();
    let target = request.map(|request| &*request.target).unwrap_or_default();
    let question = target.iter().position(|byte| *byte == b'?');
    let (stem, query) = question.map_or((target, &b""[..]), |at| (&target[..at], &target[at + 1..]));
    let words = [request.map(|request| &*request.method).unwrap_or_default(), stem, query];
    for word in words {
        iis(out, word);
        out.push(b' ');
    }
    push(out, format_args!("{} - {} ", transaction.server.1, transaction.client.0));
    for number in [fields::USER_AGENT, fields::REFERER] {
        iis(out, field(number));
        out.push(b' ');
    }
    let response = transaction.response.as_ref();
    match response.filter(|response| response.status > 0) {
        Some(response) => push(out, format_args!("{} 0 0 ", response.status)),
        None => out.extend(*b"- 0 0 "),
    }
    let bytes =
        |message: Option<&wirelane_analysis::http::Message>| message.map_or(0, |message| message.bytes);
    push(
        out,
        format_args!("{} {} {} ", end.saturating_sub(start) / 1_000_000, bytes(response), bytes(request)),
    );
    match request.filter(|request| request.minor < 10) {
        Some(request) => push(out, format_args!("HTTP/1.{} ", request.minor)),
        None => out.extend(*b"- "),
    }
    iis(out, without_port(field(fields::HOST)));
    out.push(b'\n');
}
