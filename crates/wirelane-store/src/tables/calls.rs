//! The tables of calls and of RTP streams.
//!
//! Differences from JSON: `from` and `to`, which SQL reserves, are `from_header` and `to_header`; times are in
//! nanoseconds; the ends of a call are addresses and ports; values from RTCP are prefixed with `rtcp_`. A call's row
//! has sums over its streams, and each stream is a row of `streams`, with the Call-ID and the start of its call, which
//! distinguish calls with the same Call-ID. Pressed keys are counted, and never stored. Parts of streams are not
//! stored.

use serde_json::Value;
use wirelane_analysis::voip::{CallRecord, Ending, Finished, Stream};
use wirelane_export::voip::{call_object, stream_object};

use super::{Described, Put, Row, Storable, Table, Type};

/// Columns of `calls`.
pub(super) const CALLS: &[Described] = &[
    ("start_time", Type::Time, false),
    ("end_time", Type::Time, false),
    ("start_ns", Type::Long, false),
    ("duration_ns", Type::Long, false),
    ("from_header", Type::Text, false),
    ("to_header", Type::Text, false),
    ("caller", Type::Text, false),
    ("caller_port", Type::Int, false),
    ("callee", Type::Text, false),
    ("callee_port", Type::Int, false),
    ("ringing_ns", Type::Long, true),
    ("answer_ns", Type::Long, true),
    ("ack_ns", Type::Long, true),
    ("post_dial_delay_ns", Type::Long, true),
    ("ring_ns", Type::Long, true),
    ("talk_ns", Type::Long, true),
    ("streams", Type::Long, false),
    ("packets", Type::Long, false),
    ("expected", Type::Long, false),
    ("lost", Type::Long, false),
    ("duplicate", Type::Long, false),
    ("out_of_order", Type::Long, false),
    ("capture_lost", Type::Long, false),
    ("call_id", Type::Text, false),
    ("from_uri", Type::Text, false),
    ("to_uri", Type::Text, false),
    ("request_uri", Type::Text, false),
    ("transport", Type::Text, false),
    ("caller_agent", Type::Text, true),
    ("callee_agent", Type::Text, true),
    ("state", Type::Text, false),
    ("status", Type::Int, true),
    ("status_text", Type::Text, true),
    ("hung_up", Type::Text, true),
    ("hang_up_reason", Type::Text, true),
    ("messages", Type::Long, false),
    ("retransmitted", Type::Long, false),
    ("malformed", Type::Long, false),
    ("reinvites", Type::Long, false),
    ("updates", Type::Long, false),
    ("refers", Type::Long, false),
    ("challenges", Type::Long, false),
    ("forks", Type::Long, false),
    ("early_media", Type::Flag, false),
    ("self_call", Type::Flag, false),
    ("joined", Type::Flag, false),
    ("media_left_out", Type::Long, true),
    ("rtp_left_out", Type::Long, true),
    ("rtp_malformed", Type::Long, true),
    ("ssrc_changes", Type::Long, false),
    ("ssrc_collisions", Type::Long, false),
    ("mos", Type::Real, true),
    ("round_trip_ms", Type::Real, true),
    ("end_reason", Type::Text, false),
];
/// Number of first columns of `calls` that differ from JSON.
const CALLS_OWN: usize = 23;

/// Columns of `streams`.
pub(super) const STREAMS: &[Described] = &[
    ("start_time", Type::Time, false),
    ("end_time", Type::Time, false),
    ("start_ns", Type::Long, false),
    ("duration_ns", Type::Long, false),
    ("call_id", Type::Text, true),
    ("call_start_ns", Type::Long, true),
    ("end_reason", Type::Text, false),
    ("payload_types", Type::Text, false),
    ("rtcp_sender_reports", Type::Long, true),
    ("rtcp_receiver_reports", Type::Long, true),
    ("rtcp_lost", Type::Long, true),
    ("rtcp_max_lost_percent", Type::Real, true),
    ("rtcp_jitter_ms", Type::Real, true),
    ("rtcp_round_trip_ms", Type::Real, true),
    ("toward", Type::Text, true),
    ("src", Type::Text, false),
    ("src_port", Type::Int, false),
    ("dst", Type::Text, false),
    ("dst_port", Type::Int, false),
    ("ssrc", Type::Text, false),
    ("codec", Type::Text, true),
    ("learned", Type::Flag, false),
    ("packets", Type::Long, false),
    ("bytes", Type::Long, false),
    ("expected", Type::Long, false),
    ("lost", Type::Long, false),
    ("duplicate", Type::Long, false),
    ("out_of_order", Type::Long, false),
    ("stray", Type::Long, false),
    ("malformed", Type::Long, false),
    ("capture_lost", Type::Long, false),
    ("restarts", Type::Long, false),
    ("loss_bursts", Type::Long, false),
    ("longest_burst", Type::Long, false),
    ("delta_min_ms", Type::Real, true),
    ("delta_mean_ms", Type::Real, true),
    ("delta_max_ms", Type::Real, true),
    ("jitter_ms", Type::Real, true),
    ("jitter_min_ms", Type::Real, true),
    ("jitter_mean_ms", Type::Real, true),
    ("jitter_max_ms", Type::Real, true),
    ("skew_max_ms", Type::Real, true),
    ("transit_ms", Type::Real, true),
    ("transit_min_ms", Type::Real, true),
    ("transit_max_ms", Type::Real, true),
    ("markers", Type::Long, false),
    ("timestamp_jumps", Type::Long, false),
    ("payload_changes", Type::Long, false),
    ("comfort_noise", Type::Long, false),
    ("dtmf_events", Type::Long, false),
    ("r_factor", Type::Real, true),
    ("mos", Type::Real, true),
    ("mos_model", Type::Text, true),
    ("codec_ie", Type::Real, true),
    ("codec_bpl", Type::Real, true),
];
/// Number of first columns of `streams` that differ from JSON.
const STREAMS_OWN: usize = 14;

impl Storable for Finished {
    const TABLES: &'static [Table] = &[Table::Calls, Table::Streams];
    type Naming = ();
    type Names = ();

    fn rows(&self, table: Table) -> u64 {
        match (self, table) {
            (Finished::Call(_), Table::Calls) | (Finished::Stream(..), Table::Streams) => 1,
            (Finished::Call(record), Table::Streams) => record.streams.len() as u64,
            _ => 0,
        }
    }

    fn put(&self, (): &mut (), put: &mut Put<'_>) {
        match self {
            Finished::Call(record) => {
                call(record, put);
                for stream in &record.streams {
                    put_stream(stream, Some(record), record.ending, put);
                }
            }
            Finished::Stream(stream, ending) => put_stream(stream, None, *ending, put),
            // Only for other outputs.
            Finished::Signal(_) | Finished::Kept(_) => {}
        }
    }
}

fn call(record: &CallRecord, put: &mut Put<'_>) {
    let (call, object) = (&record.call, call_object(record));
    let end_ns = call.end_ns.unwrap_or(call.last_ns).max(call.invite_ns);
    let sum = |of: fn(&Stream) -> u64| record.streams.iter().map(of).sum::<u64>();
    put(Table::Calls, end_ns, &mut |row| {
        row.span(call.invite_ns, end_ns);
        row.text(Some(&call.from));
        row.text(Some(&call.to));
        for (address, port) in [call.caller, call.callee] {
            row.address(Some(address));
            row.int(Some(port));
        }
        for time in [call.ringing_ns, call.answer_ns, call.ack_ns] {
            row.wide(time);
        }
        for time in [call.post_dial_delay_ns(), call.ring_ns(), call.talk_ns()] {
            row.wide(time);
        }
        row.wide(Some(record.streams.len() as u64));
        row.wide(Some(sum(|stream| stream.rtp.packets)));
        row.wide(Some(sum(|stream| stream.rtp.expected())));
        row.wide(Some(sum(|stream| stream.rtp.lost)));
        row.wide(Some(sum(|stream| stream.rtp.duplicate)));
        row.wide(Some(sum(|stream| stream.rtp.out_of_order)));
        row.wide(Some(record.streams.iter().map(|stream| stream.capture_lost).max().unwrap_or(0)));
        row.values(&object, &CALLS[CALLS_OWN..]);
    });
}

fn put_stream(stream: &Stream, of: Option<&CallRecord>, ending: Ending, put: &mut Put<'_>) {
    let (rtp, object) = (&stream.rtp, stream_object(stream));
    put(Table::Streams, rtp.last_ns.max(rtp.first_ns), &mut |row: &mut Row<'_>| {
        row.span(rtp.first_ns, rtp.last_ns.max(rtp.first_ns));
        row.text(of.map(|record| &*record.call.call_id));
        row.wide(of.map(|record| record.call.invite_ns));
        row.text(Some(ending.name()));
        let types = stream.payload_types().map(|kind| kind.to_string()).collect::<Vec<_>>().join(" ");
        row.text(Some(&types));
        let rtcp = &object["rtcp"];
        for name in ["sender_reports", "receiver_reports", "lost"] {
            row.long(rtcp[name].as_i64());
        }
        for name in ["max_lost_percent", "jitter_ms", "round_trip_ms"] {
            row.values(&Value::from_iter([(name, rtcp[name].clone())]), &[(name, Type::Real, true)]);
        }
        row.values(&object, &STREAMS[STREAMS_OWN..]);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_as_in_json_begins_where_it_is_said_to() {
        assert_eq!((CALLS[CALLS_OWN].0, STREAMS[STREAMS_OWN].0), ("call_id", "toward"));
    }
}
