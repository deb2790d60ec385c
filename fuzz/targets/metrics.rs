//! HTTP requests for metrics: any bytes get one HTTP response or none, and the response has its stated length.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wirelane_export::metrics;

fuzz_target!(|data: &[u8]| {
    let answer = metrics::converse(data);
    if answer.is_empty() {
        return;
    }
    let text = std::str::from_utf8(&answer).expect("answers are text");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head ends");
    assert!(head.starts_with("HTTP/1.1 200 OK") || head.starts_with("HTTP/1.1 40"), "{head}");
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).expect("a length");
    let length: usize = length.parse().expect("a number");
    assert!(body.len() == length || data.starts_with(b"HEAD ") && body.is_empty(), "{text}");
    if head.starts_with("HTTP/1.1 200") {
        assert!(data.starts_with(b"GET /metrics") || data.starts_with(b"HEAD /metrics"), "{head}");
    }
});
