//! Calls as lines: JSON objects, and CSV.

use serde::Serialize;
use serde_json::Value;
use wirelane::escape::{csv_cell, to_json};
use wirelane_analysis::voip::quality::{MODEL, impairment};
use wirelane_analysis::voip::{CallRecord, Ending, MediaAddress, Stream};

use crate::flows::lines::{push_json_line, seconds};

/// Nanoseconds in milliseconds, rounded to the microsecond.
fn ms(ns: u64) -> f64 {
    (ns as f64 / 1e3).round() / 1e3
}

fn signed_ms(ns: i64) -> f64 {
    (ns as f64 / 1e3).round() / 1e3
}

fn two(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

fn place(place: MediaAddress) -> String {
    std::net::SocketAddr::from(place).to_string()
}

fn is_zero(value: &u64) -> bool {
    *value == 0
}

/// Contents of RTCP reports about a stream.
#[derive(Serialize)]
struct RtcpLine {
    sender_reports: u64,
    packets_sent: u32,
    receiver_reports: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    lost: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_lost_percent: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    jitter_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_jitter_ms: Option<f64>,
    /// Between the point of capture and the receiver.
    #[serde(skip_serializing_if = "Option::is_none")]
    round_trip_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_round_trip_ms: Option<f64>,
}

impl RtcpLine {
    fn of(stream: &Stream) -> Option<RtcpLine> {
        let reported = &stream.reported;
        if reported.sender_reports == 0 && reported.receiver_reports == 0 {
            return None;
        }
        let rtp = &stream.rtp;
        let clock = rtp.payload_of(rtp.media_pt).map(|payload| payload.clock).filter(|clock| *clock > 0);
        let time = |jitter: u32| clock.map(|clock| ms(u64::from(jitter) * 1_000_000_000 / u64::from(clock)));
        let last = reported.last.as_ref();
        Some(RtcpLine {
            sender_reports: reported.sender_reports,
            packets_sent: reported.packets_sent,
            receiver_reports: reported.receiver_reports,
            lost: last.map(|last| last.lost),
            max_lost_percent: last.map(|_| two(f64::from(reported.max_fraction) / 2.56)),
            jitter_ms: last.and_then(|last| time(last.jitter)),
            max_jitter_ms: last.and_then(|_| time(reported.max_jitter)),
            round_trip_ms: reported.round_trip_ms().map(|value| (value * 1e3).round() / 1e3),
            max_round_trip_ms: (reported.round_trips > 0).then(|| ms(reported.max_round_trip_ns)),
        })
    }
}

/// A time interval of a stream.
#[derive(Serialize)]
struct IntervalLine {
    start: String,
    duration_s: f64,
    expected: u64,
    lost: u64,
    jitter_ms: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    r_factor: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mos: Option<f64>,
}

/// A stream as a JSON object.
#[derive(Serialize)]
struct StreamLine<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    stream: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    end_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    toward: Option<&'static str>,
    src: String,
    src_port: u16,
    dst: String,
    dst_port: u16,
    ssrc: String,
    #[serde(skip_serializing_if = "str::is_empty")]
    codec: &'a str,
    payload_types: Vec<u8>,
    learned: bool,
    start: String,
    end: String,
    duration_s: f64,
    packets: u64,
    bytes: u64,
    expected: u64,
    lost: u64,
    duplicate: u64,
    out_of_order: u64,
    stray: u64,
    malformed: u64,
    /// Packets of any kind that the capture lost during the stream.
    capture_lost: u64,
    restarts: u32,
    loss_bursts: u32,
    longest_burst: u32,
    /// Number of bursts of 1, 2, 3-4, 5-8, 9-16, 17-32, 33-64 and more.
    burst_histogram: [u32; 8],
    #[serde(skip_serializing_if = "Option::is_none")]
    delta_min_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delta_mean_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delta_max_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    jitter_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    jitter_min_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    jitter_mean_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    jitter_max_ms: Option<f64>,
    /// Maximum difference between timestamps and arrivals, in either direction, from the first packet on.
    #[serde(skip_serializing_if = "Option::is_none")]
    skew_max_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    transit_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    transit_min_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    transit_max_ms: Option<f64>,
    markers: u32,
    timestamp_jumps: u32,
    payload_changes: u32,
    comfort_noise: u32,
    dtmf_events: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    dtmf_digits: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    r_factor: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mos: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mos_model: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    codec_ie: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    codec_bpl: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rtcp: Option<RtcpLine>,
    intervals: Vec<IntervalLine>,
}

/// Pressed keys as characters (RFC 4733, 3.2).
fn digits(stream: &Stream) -> String {
    let kept = &stream.rtp.digit[..stream.rtp.digit.len().min(stream.rtp.digits as usize)];
    kept.iter().map(|event| "0123456789*#ABCD".chars().nth(usize::from(*event)).unwrap_or('?')).collect()
}

impl<'a> StreamLine<'a> {
    fn of(stream: &'a Stream, with_digits: bool) -> StreamLine<'a> {
        let rtp = &stream.rtp;
        let (deltas, jitters) = (rtp.deltas > 0, rtp.jitters > 0);
        let clocked = rtp.jitters > 0 || rtp.jitter16_ns > 0;
        let skew = if rtp.min_transit_ns.unsigned_abs() > rtp.max_transit_ns.unsigned_abs() {
            -rtp.min_transit_ns
        } else {
            -rtp.max_transit_ns
        };
        let (quality, codec) = (stream.quality(), impairment(stream.codec()));
        let intervals = stream.intervals.iter().map(|interval| {
            let quality = stream.quality_of(interval);
            IntervalLine {
                start: seconds(interval.start_ns),
                duration_s: interval.end_ns.saturating_sub(interval.start_ns) as f64 / 1e9,
                expected: interval.expected,
                lost: interval.lost(),
                jitter_ms: ms(interval.jitter_ns),
                r_factor: quality.map(|quality| two(quality.r)),
                mos: quality.map(|quality| two(quality.mos)),
            }
        });
        StreamLine {
            stream: None,
            end_reason: None,
            toward: stream.toward.map(|party| party.name()),
            src: stream.from.0.to_string(),
            src_port: stream.from.1,
            dst: stream.to.0.to_string(),
            dst_port: stream.to.1,
            ssrc: format!("0x{:08x}", rtp.ssrc),
            codec: stream.codec(),
            payload_types: stream.payload_types().collect(),
            learned: stream.learned,
            start: seconds(rtp.first_ns),
            end: seconds(rtp.last_ns),
            duration_s: (rtp.last_ns - rtp.first_ns) as f64 / 1e9,
            packets: rtp.packets,
            bytes: rtp.bytes,
            expected: rtp.expected(),
            lost: rtp.lost,
            duplicate: rtp.duplicate,
            out_of_order: rtp.out_of_order,
            stray: rtp.stray,
            malformed: rtp.malformed,
            capture_lost: stream.capture_lost,
            restarts: rtp.restarts,
            loss_bursts: rtp.bursts,
            longest_burst: rtp.longest_burst,
            burst_histogram: rtp.burst,
            delta_min_ms: deltas.then(|| ms(rtp.min_delta_ns)),
            delta_mean_ms: rtp.delta_ns.checked_div(rtp.deltas).map(ms),
            delta_max_ms: deltas.then(|| ms(rtp.max_delta_ns)),
            jitter_ms: clocked.then(|| ms(rtp.jitter_ns())),
            jitter_min_ms: jitters.then(|| ms(rtp.min_jitter_ns)),
            jitter_mean_ms: rtp.jitter_sum_ns.checked_div(rtp.jitters).map(ms),
            jitter_max_ms: jitters.then(|| ms(rtp.max_jitter_ns)),
            skew_max_ms: clocked.then(|| signed_ms(skew)),
            transit_ms: clocked.then(|| signed_ms(rtp.transit_ns)),
            transit_min_ms: clocked.then(|| signed_ms(rtp.min_transit_ns)),
            transit_max_ms: clocked.then(|| signed_ms(rtp.max_transit_ns)),
            markers: rtp.markers,
            timestamp_jumps: rtp.timestamp_jumps,
            payload_changes: rtp.payload_changes,
            comfort_noise: rtp.noise,
            dtmf_events: rtp.digits,
            dtmf_digits: with_digits.then(|| digits(stream)),
            r_factor: quality.map(|quality| two(quality.r)),
            mos: quality.map(|quality| two(quality.mos)),
            mos_model: quality.map(|_| MODEL),
            codec_ie: codec.map(|codec| codec.ie),
            codec_bpl: codec.map(|codec| codec.bpl),
            rtcp: RtcpLine::of(stream),
            intervals: intervals.collect(),
        }
    }
}

/// A call as a JSON object; missing values are omitted.
#[derive(Serialize)]
struct CallLine<'a> {
    call: u64,
    call_id: &'a str,
    from: &'a str,
    to: &'a str,
    from_uri: &'a str,
    to_uri: &'a str,
    request_uri: &'a str,
    caller: String,
    callee: String,
    transport: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    caller_agent: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    callee_agent: &'a str,
    start: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    ringing: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    answer: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ack: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    end: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    post_dial_delay_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ring_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    talk_ms: Option<f64>,
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    #[serde(skip_serializing_if = "str::is_empty")]
    status_text: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    hung_up: Option<&'static str>,
    #[serde(skip_serializing_if = "str::is_empty")]
    hang_up_reason: &'a str,
    messages: u64,
    retransmitted: u64,
    malformed: u64,
    reinvites: u64,
    updates: u64,
    refers: u64,
    challenges: u64,
    forks: usize,
    early_media: bool,
    self_call: bool,
    joined: bool,
    #[serde(skip_serializing_if = "is_zero")]
    media_left_out: u64,
    #[serde(skip_serializing_if = "is_zero")]
    rtp_left_out: u64,
    #[serde(skip_serializing_if = "is_zero")]
    rtp_malformed: u64,
    ssrc_changes: u64,
    ssrc_collisions: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    mos: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    round_trip_ms: Option<f64>,
    end_reason: &'static str,
    streams: Vec<StreamLine<'a>>,
}

impl<'a> CallLine<'a> {
    fn of(number: u64, record: &'a CallRecord, with_digits: bool) -> CallLine<'a> {
        let call = &record.call;
        CallLine {
            call: number,
            call_id: &call.call_id,
            from: &call.from,
            to: &call.to,
            from_uri: &call.from_uri,
            to_uri: &call.to_uri,
            request_uri: &call.request_uri,
            caller: place(call.caller),
            callee: place(call.callee),
            transport: if call.tcp { "tcp" } else { "udp" },
            caller_agent: &call.caller_agent,
            callee_agent: &call.callee_agent,
            start: seconds(call.invite_ns),
            ringing: call.ringing_ns.map(seconds),
            answer: call.answer_ns.map(seconds),
            ack: call.ack_ns.map(seconds),
            end: call.end_ns.map(seconds),
            post_dial_delay_ms: call.post_dial_delay_ns().map(ms),
            ring_ms: call.ring_ns().map(ms),
            talk_ms: call.talk_ns().map(ms),
            state: call.state.name(),
            status: (call.status != 0).then_some(call.status),
            status_text: &call.status_text,
            hung_up: call.hung_up.map(|party| party.name()),
            hang_up_reason: &call.hang_up_reason,
            messages: call.messages,
            retransmitted: call.retransmitted,
            malformed: call.malformed,
            reinvites: call.reinvites,
            updates: call.updates,
            refers: call.refers,
            challenges: call.challenges,
            forks: call.forks,
            early_media: call.early_media,
            self_call: call.to_self,
            joined: call.joined,
            media_left_out: call.media_left_out,
            rtp_left_out: call.rtp_left_out,
            rtp_malformed: call.rtp_malformed,
            ssrc_changes: call.ssrc_changes,
            ssrc_collisions: call.ssrc_collisions,
            mos: record.mos().map(two),
            round_trip_ms: record.round_trip_ms().map(|value| (value * 1e3).round() / 1e3),
            end_reason: record.ending.name(),
            streams: record.streams.iter().map(|stream| StreamLine::of(stream, with_digits)).collect(),
        }
    }
}

/// Appends a call as a JSON object and a newline; `number`: number of the call in the capture, from 1. `with_digits`:
/// include the pressed keys, which may be secrets.
pub fn call_json(out: &mut Vec<u8>, number: u64, record: &CallRecord, with_digits: bool) {
    push_json_line(out, &CallLine::of(number, record, with_digits));
}

/// Appends a stream without a call in the same way.
pub fn stream_json(out: &mut Vec<u8>, number: u64, stream: &Stream, ending: Ending, with_digits: bool) {
    let mut object = StreamLine::of(stream, with_digits);
    (object.stream, object.end_reason) = (Some(number), Some(ending.name()));
    push_json_line(out, &object);
}

/// A stream of a call as JSON, without a newline.
pub(super) fn stream_text(stream: &Stream) -> Vec<u8> {
    to_json(&StreamLine::of(stream, false)).unwrap_or_default().into_bytes()
}

/// A stream as a JSON object, without the pressed keys.
pub fn stream_object(stream: &Stream) -> Value {
    // Every value can be serialized.
    serde_json::to_value(StreamLine::of(stream, false)).unwrap_or_default()
}

/// A call as a JSON object, without the pressed keys, and with its streams.
pub fn call_object(record: &CallRecord) -> Value {
    serde_json::to_value(CallLine::of(0, record, false)).unwrap_or_default()
}

/// The header line of CSV files.
pub const CSV_HEADER: &str = "start,end,call_id,from,to,caller,callee,transport,state,status,hung_up,post_dial_delay_ms,\
ring_ms,talk_ms,messages,retransmitted,streams,packets,expected,lost,duplicate,out_of_order,jitter_max_ms,mos,capture_lost,end_reason\n";

/// Appends a call as a CSV line (RFC 4180, with LF line ends); missing values are empty. Sums are over its streams, and
/// `capture_lost` and `jitter_max_ms` are their maximum.
pub fn call_csv(out: &mut Vec<u8>, record: &CallRecord) {
    fn show<T: ToString>(value: Option<T>) -> String {
        value.map(|value| value.to_string()).unwrap_or_default()
    }
    let (line, streams) = (CallLine::of(0, record, false), &record.streams);
    let sum = |of: fn(&Stream) -> u64| streams.iter().map(of).sum::<u64>().to_string();
    let cells = [
        line.start,
        show(line.end),
        csv_cell(line.call_id).into_owned(),
        csv_cell(line.from).into_owned(),
        csv_cell(line.to).into_owned(),
        line.caller,
        line.callee,
        line.transport.to_owned(),
        line.state.to_owned(),
        show(line.status),
        show(line.hung_up),
        show(line.post_dial_delay_ms),
        show(line.ring_ms),
        show(line.talk_ms),
        line.messages.to_string(),
        line.retransmitted.to_string(),
        streams.len().to_string(),
        sum(|stream| stream.rtp.packets),
        sum(|stream| stream.rtp.expected()),
        sum(|stream| stream.rtp.lost),
        sum(|stream| stream.rtp.duplicate),
        sum(|stream| stream.rtp.out_of_order),
        show(line.streams.iter().filter_map(|stream| stream.jitter_max_ms).reduce(f64::max)),
        show(line.mos),
        streams.iter().map(|stream| stream.capture_lost).max().unwrap_or(0).to_string(),
        line.end_reason.to_owned(),
    ];
    out.extend_from_slice(cells.join(",").as_bytes());
    out.push(b'\n');
}
