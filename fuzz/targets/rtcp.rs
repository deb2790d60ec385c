//! RTCP: any bytes are a compound packet or not; the reports fit into its length.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wirelane_analysis::voip::rtcp;

fuzz_target!(|data: &[u8]| {
    let Some(reports) = rtcp::parse(data) else { return };
    assert!(rtcp::may_be(data) && data.len().is_multiple_of(4), "what is none was read");
    assert!(reports.sent.len() * 24 + reports.received.len() * 24 <= data.len(), "{reports:?}");
    // Two concatenated compound packets are one.
    let twice = rtcp::parse(&data.repeat(2)).expect("both are sound");
    assert_eq!(twice.sent.len(), reports.sent.len() * 2);
    assert_eq!((twice.received.len(), twice.bye), (reports.received.len() * 2, reports.bye));
});
