//! Messages on a control socket: any bytes get one answer per line, or end the connection; a valid request is parsed
//! again to the same value.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let answers = wirelane::control::converse(data);
    let lines = data.iter().filter(|byte| **byte == b'\n').count();
    let answered = answers.iter().filter(|byte| **byte == b'\n').count();
    assert_eq!(answered, lines, "an answer for each line");
    for answer in answers.split_inclusive(|byte| *byte == b'\n') {
        let line = std::str::from_utf8(answer).expect("answers are text");
        assert!(line.starts_with("{\"version\":1,\"answer\":{"), "{line}");
        assert!(!line[..line.len() - 1].contains(|c| c < ' '), "{line}");
    }
});
