//! Final report of `flows`, with the ledger.

use std::collections::BTreeMap;

use serde::Serialize;
use wirelane::FlowCacheLine;
use wirelane_analysis::flows::EndReason;
use wirelane_export::flows::OutputCounts;

use super::show::Exports;
use crate::shares::Printed;
use crate::store::Stored;
use wirelane_export::pipeline::flows::WorkersTotals;
use wirelane_screen::table::{amount, counted, printable};

/// Totals of the flows.
#[derive(Debug, Serialize)]
pub struct FlowsReport {
    /// Number of flows; a bidirectional flow counts once.
    flows: u64,
    /// Packets of the flows.
    flow_packets: u64,
    /// Bytes of the flows, from the IP headers on.
    flow_bytes: u64,
    /// Bytes of the flows on the wire.
    flow_wire_bytes: u64,
    /// Packets skipped by sampling.
    unsampled: u64,
    /// Number of flows by end reason.
    end_reasons: BTreeMap<&'static str, u64>,
    /// Results at each output.
    exports: Vec<OutputCounts>,
    /// Results of the store.
    #[serde(skip_serializing_if = "Option::is_none")]
    store: Option<Stored>,
    /// Results of standard output.
    #[serde(skip_serializing_if = "Option::is_none")]
    standard_output: Option<Printed>,
    /// Counts of the kernel's flow caches; in JSON they are in the ledger.
    #[serde(skip)]
    cache: Option<FlowCacheLine>,
}

const REASONS: [EndReason; 5] =
    [EndReason::Idle, EndReason::Active, EndReason::Ended, EndReason::Forced, EndReason::Resources];

impl FlowsReport {
    /// Creates the report from all workers, all outputs, and the store.
    pub fn new(
        totals: &WorkersTotals,
        cache: Option<FlowCacheLine>,
        Exports { counts: exports, stored: store, printed, .. }: Exports,
    ) -> FlowsReport {
        let flows = &totals.flows;
        FlowsReport {
            flows: flows.flows,
            flow_packets: flows.packets,
            flow_bytes: flows.bytes,
            flow_wire_bytes: flows.wire_bytes,
            unsampled: totals.unsampled_packets,
            end_reasons: REASONS
                .iter()
                .map(|reason| (wirelane_export::flows::reason(*reason), flows.by_reason[*reason as usize]))
                .collect(),
            exports,
            store,
            standard_output: printed,
            cache,
        }
    }

    /// The report for people.
    pub fn text(&self) -> String {
        let reasons: Vec<String> = self
            .end_reasons
            .iter()
            .filter(|(_, flows)| **flows > 0)
            .map(|(reason, flows)| format!("{} {reason}", amount(*flows)))
            .collect();
        let mut text = format!(
            "{} of {}, {}{}{}\n",
            counted(self.flows, "flow"),
            counted(self.flow_packets, "packet"),
            counted(self.flow_bytes, "byte"),
            if reasons.is_empty() { "" } else { ": " },
            reasons.join(", "),
        );
        if self.unsampled > 0 {
            text += &format!("{} left out by sampling\n", counted(self.unsampled, "packet"));
        }
        if let Some(cache) = &self.cache {
            text += &format!(
                "kernel cache: {} in {} of flows, {} of them through rings; {} MiB\n",
                counted(cache.packets - cache.unsampled, "packet"),
                counted(cache.parts, "part"),
                amount(cache.written),
                amount(cache.memory_bytes.div_ceil(1 << 20)),
            );
        }
        for output in &self.exports {
            text += &format!(
                "{}: {}, {}, {}",
                printable(&output.target),
                counted(output.flows, "flow"),
                counted(output.messages, "message"),
                counted(output.bytes, "byte")
            );
            for (what, number) in [
                ("not exportable", output.not_exportable),
                ("suppressed", output.suppressed_flows),
                ("unsent", output.unsent_flows),
                ("times refused", output.refused),
            ] {
                if number > 0 {
                    text += &format!("; {} {what}", amount(number));
                }
            }
            text.push('\n');
        }
        text += &self.standard_output.as_ref().map(Printed::text).unwrap_or_default();
        text + &self.store.as_ref().map(Stored::text).unwrap_or_default()
    }
}
