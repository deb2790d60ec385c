//! Final report of `voip`.

use std::collections::BTreeMap;

use serde::Serialize;
use wirelane_analysis::voip::counts::{FAULTS, METHODS};
use wirelane_analysis::voip::{Counts, State};
use wirelane_export::voip::{OutputCounts, SavedCounts};

use super::show::Exported;
use crate::shares::Printed;
use crate::store::Stored;
use wirelane_screen::table::{amount, counted, printable};

/// Totals of calls, and results at the outputs.
#[derive(Serialize)]
pub struct VoipReport {
    signalling_packets: u64,
    rtp_packets: u64,
    rtcp_packets: u64,
    fragment_packets: u64,
    other_packets: u64,
    sip_messages: u64,
    sip_requests: BTreeMap<&'static str, u64>,
    sip_responses: BTreeMap<&'static str, u64>,
    sip_retransmitted: u64,
    sip_malformed: u64,
    sip_faults: BTreeMap<&'static str, u64>,
    sip_cut: u64,
    sip_unknown_call: u64,
    sip_no_call: u64,
    calls: u64,
    calls_left_out: u64,
    calls_evicted: u64,
    self_calls: u64,
    call_states: BTreeMap<&'static str, u64>,
    streams: u64,
    streams_without_call: u64,
    streams_evicted: u64,
    rtp_left_out: u64,
    rtp_absorbed: u64,
    rtp_held: u64,
    streams_in_kernel: u64,
    streams_without_room: u64,
    places_without_rule: u64,
    rtp_malformed: u64,
    rtcp_malformed: u64,
    media_left_out: u64,
    tcp_gaps: u64,
    tcp_evicted: u64,
    datagrams_given_up: u64,
    /// Packets that the capture lost.
    capture_lost: u64,
    exports: Vec<OutputCounts>,
    #[serde(skip_serializing_if = "Option::is_none")]
    store: Option<Stored>,
    /// Calls and streams on standard output.
    #[serde(skip_serializing_if = "Option::is_none")]
    standard_output: Option<Printed>,
    #[serde(skip_serializing_if = "Option::is_none")]
    saved_calls: Option<SavedCounts>,
}

/// Numbers by name.
fn named<'n>(
    names: impl IntoIterator<Item = &'n &'static str>,
    numbers: &[u64],
) -> BTreeMap<&'static str, u64> {
    names.into_iter().copied().zip(numbers.iter().copied()).collect()
}

impl VoipReport {
    /// Creates the report from these counts.
    pub fn new(
        counts: &Counts,
        capture_lost: u64,
        Exported { counts: exports, stored: store, saved: saved_calls, printed: standard_output, .. }: Exported,
    ) -> VoipReport {
        let mut requests = named(&METHODS, &counts.requests);
        requests.insert("other", counts.requests[METHODS.len()]);
        VoipReport {
            signalling_packets: counts.signalling_packets,
            rtp_packets: counts.rtp_packets,
            rtcp_packets: counts.rtcp_packets,
            fragment_packets: counts.fragment_packets,
            other_packets: counts.other_packets,
            sip_messages: counts.messages,
            sip_requests: requests,
            sip_responses: named(&["1xx", "2xx", "3xx", "4xx", "5xx", "6xx"], &counts.responses[1..]),
            sip_retransmitted: counts.retransmitted,
            sip_malformed: counts.malformed(),
            sip_faults: named(&FAULTS, &counts.faults),
            sip_cut: counts.cut_messages,
            sip_unknown_call: counts.unknown_call_messages,
            sip_no_call: counts.no_call_messages,
            calls: counts.calls,
            calls_left_out: counts.calls_left_out,
            calls_evicted: counts.calls_evicted,
            self_calls: counts.self_calls,
            call_states: State::ALL
                .iter()
                .map(|state| (state.name(), counts.states[*state as usize]))
                .collect(),
            streams: counts.streams,
            streams_without_call: counts.streams_without_call,
            streams_evicted: counts.streams_evicted,
            rtp_left_out: counts.rtp_left_out,
            rtp_absorbed: counts.rtp_absorbed,
            rtp_held: counts.rtp_held,
            streams_in_kernel: counts.streams_offloaded,
            streams_without_room: counts.streams_without_room,
            places_without_rule: counts.places_without_rule,
            rtp_malformed: counts.rtp_malformed,
            rtcp_malformed: counts.rtcp_malformed,
            media_left_out: counts.media_left_out,
            tcp_gaps: counts.tcp_gaps,
            tcp_evicted: counts.tcp_evicted,
            datagrams_given_up: counts.datagrams_given_up,
            capture_lost,
            exports,
            store,
            saved_calls,
            standard_output,
        }
    }

    /// The report for people.
    pub fn text(&self) -> String {
        let some = |numbers: &BTreeMap<&'static str, u64>| -> String {
            let some: Vec<String> = numbers
                .iter()
                .filter(|(_, number)| **number > 0)
                .map(|(name, number)| format!("{} {name}", amount(*number)))
                .collect();
            if some.is_empty() { String::new() } else { format!(": {}", some.join(", ")) }
        };
        let mut text = format!(
            "{}{}; {}\n{}{}\n",
            counted(self.calls, "call"),
            some(&self.call_states),
            counted(self.streams, "RTP stream"),
            counted(self.sip_messages, "SIP message"),
            some(&self.sip_requests),
        );
        text += &format!(
            "packets: {} signalling, {} RTP, {} RTCP, {} fragments that waited, {} others\n",
            amount(self.signalling_packets),
            amount(self.rtp_packets),
            amount(self.rtcp_packets),
            amount(self.fragment_packets),
            amount(self.other_packets),
        );
        for (number, what) in [
            (self.sip_malformed, "malformed SIP messages"),
            (self.sip_cut, "SIP messages cut by the capture"),
            (self.sip_unknown_call, "SIP messages of calls that are not known"),
            (self.calls_left_out, "calls not chosen"),
            (self.calls_evicted, "calls ended early, as memory was full"),
            (self.streams_evicted, "streams ended early, as memory was full"),
            (self.rtp_left_out, "RTP packets in no stream"),
            (self.rtp_absorbed, "RTP packets measured in the kernel"),
            (self.streams_without_room, "streams beyond the kernel's capacity (--streams)"),
            (self.places_without_rule, "media addresses beyond the kernel's capacity (--rules-capacity)"),
            (self.rtp_malformed, "malformed RTP packets"),
            (self.rtcp_malformed, "malformed RTCP packets"),
            (self.media_left_out, "media of descriptions left out"),
            (self.tcp_gaps, "gaps in TCP connections"),
            (self.tcp_evicted, "TCP connections dropped, as memory was full"),
            (self.datagrams_given_up, "fragmented datagrams that were never whole"),
            (self.capture_lost, "packets lost by the capture: calls may look worse than they were"),
        ] {
            if number > 0 {
                text += &format!("{} {what}\n", amount(number));
            }
        }
        for output in &self.exports {
            text += &format!(
                "{}: {} in {}, {}",
                printable(&output.target),
                counted(output.records, "record"),
                counted(output.messages, "message"),
                counted(output.bytes, "byte")
            );
            for (what, number) in [
                ("suppressed", output.suppressed),
                ("unsent", output.unsent),
                ("times refused", output.refused),
            ] {
                if number > 0 {
                    text += &format!("; {} {what}", amount(number));
                }
            }
            text.push('\n');
        }
        if let Some(saved) = &self.saved_calls {
            let (calls, packets) = (counted(saved.calls, "call"), counted(saved.packets, "packet"));
            let bytes = counted(saved.bytes, "byte");
            text += &format!("{}: {calls}, {packets}, {bytes}", printable(&saved.folder));
            if saved.unsaved > 0 {
                text += &format!("; {} unsaved", counted(saved.unsaved, "packet"));
            }
            text.push('\n');
        }
        text += &self.standard_output.as_ref().map(Printed::text).unwrap_or_default();
        text + &self.store.as_ref().map(Stored::text).unwrap_or_default()
    }
}
