//! SDP: any bytes are a description of bounded size or not; additional lines do not remove anything.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wirelane_analysis::voip::sdp;

fuzz_target!(|data: &[u8]| {
    let Some(described) = sdp::parse(data) else { return };
    assert!(!described.media.is_empty() && described.media.len() <= sdp::MOST_MEDIA);
    for media in &described.media {
        // A place is a valid destination, and that of RTCP is another one unless it is stated.
        if let Some((address, port)) = media.place() {
            assert!(port != 0 && !address.is_unspecified());
        }
        let _ = media.rtcp_place();
    }
    // A line without a meaning has no effect.
    let with_more = [data, b"\r\nz=0 0\r\n"].concat();
    let again = sdp::parse(&with_more).expect("it has a media line");
    assert_eq!((again.media.len(), again.more), (described.media.len(), described.more));
});
