//! The Rust mirrors of the structs of RTP statistics against what the C compiler says.

use std::mem::offset_of;

use wirelane_bpf::native::{Field, rtp_constants, rtp_layout};
use wirelane_bpf::rtp::{
    BURSTS, DROPOUT, DTMF, JUMP_NS, MOST_NS, NO_TYPE, PAYLOADS, ReadResult, RtpPacket, RtpPayload, RtpStream,
    WINDOW, kind, packet_flags, stream_flags,
};
use wirelane_bpf::stream::{Measured, StreamAt, StreamKey};

macro_rules! mirror {
    ($fields:ident, $c:literal, $rust:ty { $($field:ident),* $(,)? }) => {
        $fields.push(Field { name: $c, offset: 0, size: size_of::<$rust>() });
        $($fields.push(Field {
            name: concat!($c, ".", stringify!($field)),
            offset: offset_of!($rust, $field),
            size: size_of_field(|whole: &$rust| &whole.$field),
        });)*
    };
}

fn size_of_field<T, F>(_: impl Fn(&T) -> &F) -> usize {
    size_of::<F>()
}

#[test]
fn rust_and_c_agree_on_rtp() {
    let mut rust = Vec::new();
    #[rustfmt::skip]
    mirror!(rust, "wl_rtp_packet", RtpPacket {
        ts, ssrc, seq, payload_len, pt, flags, event, event_end, event_duration, pad,
    });
    mirror!(rust, "wl_rtp_payload", RtpPayload { clock, pt, kind, pad });
    #[rustfmt::skip]
    mirror!(rust, "wl_rtp_stream", RtpStream {
        packets, bytes, duplicate, out_of_order, stray, malformed, lost, expected, base, highest, left, window,
        first_ns, last_ns, seq_ns, deltas, delta_ns, min_delta_ns, max_delta_ns, jitters, jitter_sum_ns, jitter16_ns,
        min_jitter_ns, max_jitter_ns, transit_ns, min_transit_ns, max_transit_ns, payload_types, ssrc, seq_ts,
        digit_ts, run, bursts, longest_burst, burst, restarts, markers, timestamp_jumps, payload_changes, noise,
        digits, digit, payload, bad_seq, pt, media_pt, last_kind, flags, pad,
    });
    mirror!(rust, "wl_stream_key", StreamKey { src, dst, src_port, dst_port, ssrc, l3 });
    mirror!(rust, "wl_stream_at", StreamAt { place, generation });
    #[rustfmt::skip]
    mirror!(rust, "wl_stream", Measured {
        turn, number, taken, pad, generation, handed, until_ns, pad2, rtp, pad3,
    });
    assert_eq!(rtp_layout(), rust);
    for (name, size) in rust.iter().filter(|f| !f.name.contains('.')).map(|f| (f.name, f.size)) {
        assert!(size.is_multiple_of(if name == "wl_stream_key" { 4 } else { 8 }), "{name} has {size} bytes");
        let fields: usize =
            rust.iter().filter(|f| f.name.starts_with(&format!("{name}."))).map(|f| f.size).sum();
        assert_eq!(fields, size, "{name} has padding that is no field");
    }
}

#[test]
fn rust_and_c_agree_on_the_numbers_of_rtp() {
    let rust = [
        ("WL_RTP_WINDOW", WINDOW as u64),
        ("WL_RTP_DROPOUT", DROPOUT.into()),
        ("WL_RTP_BURSTS", BURSTS as u64),
        ("WL_RTP_DTMF", DTMF as u64),
        ("WL_RTP_PAYLOADS", PAYLOADS as u64),
        ("WL_RTP_NO_TYPE", NO_TYPE.into()),
        ("WL_RTP_JUMP_NS", JUMP_NS),
        ("WL_RTP_MOST_NS", MOST_NS),
        ("WL_RTP_OK", ReadResult::Ok as u64),
        ("WL_RTP_NOT", ReadResult::Not as u64),
        ("WL_RTP_MALFORMED", ReadResult::Malformed as u64),
        ("WL_RTP_CUT", ReadResult::Cut as u64),
        ("WL_RTP_MARKER", packet_flags::MARKER.into()),
        ("WL_RTP_EVENT", packet_flags::EVENT.into()),
        ("WL_RTP_MEDIA", kind::MEDIA.into()),
        ("WL_RTP_DIGIT", kind::DIGIT.into()),
        ("WL_RTP_NOISE", kind::NOISE.into()),
        ("WL_RTP_TIMED", stream_flags::TIMED.into()),
        ("WL_RTP_STRAYED", stream_flags::STRAYED.into()),
        ("WL_RTP_DIGITS", stream_flags::DIGITS.into()),
        ("WL_RTP_REGULAR", stream_flags::REGULAR.into()),
        ("WL_RTP_JITTER", stream_flags::JITTER.into()),
    ];
    assert_eq!(rtp_constants(), rust);
}
