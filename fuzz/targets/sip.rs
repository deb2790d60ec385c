//! SIP messages: any bytes are a message or have a fault, complete or with more to follow; the title has no control
//! characters; Content-Length is the stated number or a fault.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wirelane_analysis::voip::sip;

fuzz_target!(|data: &[u8]| {
    let head = data.windows(4).position(|bytes| bytes == b"\r\n\r\n");
    for whole in [false, true] {
        let Ok(message) = sip::parse(data, whole) else { continue };
        assert!(message.head_len <= data.len() && !message.call_id.is_empty());
        if let Some(head) = head {
            assert!(message.head_len <= head + 4, "the head ends at its empty line");
        }
        for field in [message.call_id, message.from.uri, message.from.tag, message.to.whole] {
            assert!(!sip::text(field).chars().any(char::is_control));
        }
        assert!(!sip::title(&data[..message.head_len]).chars().any(char::is_control));
    }
    // The head of a complete message has the same result without the body.
    if let (Ok(short), Some(head)) = (sip::parse(data, false), head)
        && let Ok(alone) = sip::parse(&data[..head + 4], false)
    {
        assert_eq!((short.head_len, short.call_id), (alone.head_len, alone.call_id));
    }
});
