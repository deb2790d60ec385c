//! JSON objects of reports.

use serde::Serialize;
use wirelane::{Ledger, RuleStats};
use wirelane_export::recorder::RecordingCounts;

use crate::flows::report::FlowsReport;
use crate::http::report::HttpReport;
use crate::probe::report::ProbeReport;
use crate::receive::ReceiveReport;
use crate::ship::ShipStatus;
use crate::voip::report::VoipReport;

/// A JSON object of `--json`.
#[derive(Serialize)]
pub(super) struct Object<'a> {
    pub(super) r#final: bool,
    pub(super) engine: &'a str,
    pub(super) duration_s: f64,
    /// Rates of analysed packets, over `duration_s`.
    pub(super) pps: f64,
    pub(super) bps: f64,
    #[serde(flatten)]
    pub(super) ledger: &'a Ledger,
    #[serde(flatten)]
    pub(super) recorded: Option<Recorded>,
    /// At the end, if there are rules.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rule_stats: Option<&'a RuleStats>,
    /// Totals of flows, and results at their outputs.
    #[serde(flatten)]
    pub(super) flows: Option<&'a FlowsReport>,
    /// Totals of HTTP transactions, and results at their outputs.
    #[serde(flatten)]
    pub(super) http: Option<&'a HttpReport>,
    /// Totals of calls, and results at their outputs.
    #[serde(flatten)]
    pub(super) voip: Option<&'a VoipReport>,
    /// Totals of a probe, and results at its outputs.
    #[serde(flatten)]
    pub(super) probe: Option<&'a ProbeReport>,
    /// Streams of numbered packets, since the start.
    #[serde(flatten)]
    pub(super) receive: Option<&'a ReceiveReport>,
    /// Bytes of the input file per second, over `duration_s`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) file_bytes_per_s: Option<f64>,
    /// Totals of each analysis, where several share the capture.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) analyses: Option<Analyses<'a>>,
}

/// Totals of the analyses that share a capture.
#[derive(Serialize)]
pub(super) struct Analyses<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) record: Option<Recorded>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) flows: Option<&'a FlowsReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) http: Option<&'a HttpReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) voip: Option<&'a VoipReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) probe: Option<&'a ProbeReport>,
    /// The last status of each target to which the store is shipped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ship: Option<&'a Vec<ShipStatus>>,
}

/// Results of a recording.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Recorded {
    /// Counts of packets, bytes and files.
    #[serde(flatten)]
    pub counts: RecordingCounts,
    /// Post-rotate commands that succeeded, if there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub post_rotate_done: Option<u64>,
    /// Post-rotate commands that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub post_rotate_failed: Option<u64>,
}

impl Recorded {
    /// Creates the results from the counts, and `(done, failed)` of commands.
    pub fn new(counts: RecordingCounts, commands: Option<(u64, u64)>) -> Recorded {
        let (done, failed) = commands.unzip();
        Recorded { counts, post_rotate_done: done, post_rotate_failed: failed }
    }

    pub(super) fn since(&self, before: &Recorded) -> Recorded {
        let less = |now: Option<u64>, before: Option<u64>| now.map(|now| now - before.unwrap_or(0));
        Recorded {
            counts: self.counts.since(&before.counts),
            post_rotate_done: less(self.post_rotate_done, before.post_rotate_done),
            post_rotate_failed: less(self.post_rotate_failed, before.post_rotate_failed),
        }
    }
}
