//! Final report of a probe, with the ledger.

use anyhow::anyhow;
use serde::Serialize;
use wirelane_probe::Totals;

use super::controller::Changes;
use super::exporter::Exports;
use super::helper::Commands;
use super::recorder::Recordings;
use crate::store::Stored;
use wirelane_screen::table::{amount, counted};

/// Final report of a probe.
#[derive(Debug, Serialize)]
pub struct ProbeReport {
    /// Totals of packets, intervals and alarms.
    #[serde(flatten)]
    pub totals: Totals,
    /// Counts of programs, if the configuration runs any.
    #[serde(flatten)]
    pub commands: Option<Commands>,
    /// Counts of changes while the probe was running.
    #[serde(flatten)]
    pub changes: Changes,
    /// Counts of recordings, if the configuration makes any.
    #[serde(flatten)]
    pub recordings: Option<Recordings>,
    /// Counts of exported alarms, if the configuration exports any.
    #[serde(flatten)]
    pub exports: Option<Exports>,
    /// Results of the store, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store: Option<Stored>,
}

impl ProbeReport {
    /// Error for missing results: in the store, in recordings, or at export targets of alarms. Each failure was
    /// reported when it happened, and did not stop anything else; the user is informed again at the end. (Failures of
    /// programs are their own, and recordings refused by a limit were configured.)
    pub fn failure(&self) -> Option<anyhow::Error> {
        let mut said: Vec<String> =
            self.store.as_ref().and_then(Stored::failure).iter().map(|error| format!("{error:#}")).collect();
        let failed = self.recordings.map_or(0, |recordings| recordings.recordings_failed);
        if failed > 0 {
            said.push(format!("{} not written", counted(failed, "recording")));
        }
        let failed = self.exports.map_or(0, |exports| exports.exports_failed + exports.exports_refused);
        if failed > 0 {
            said.push(format!("{} of alarms not done", counted(failed, "export")));
        }
        (!said.is_empty()).then(|| anyhow!(said.join("; ")))
    }

    /// The report for people.
    pub fn text(&self) -> String {
        let Totals { intervals, alarms_raised, alarms_cleared, .. } = self.totals;
        let mut text = format!(
            "{}; alarms: {} raised, {} cleared\n",
            counted(intervals, "interval"),
            amount(alarms_raised),
            amount(alarms_cleared),
        );
        if let Some(commands) = self.commands.filter(|commands| commands.sum() > 0) {
            text += &format!(
                "commands: {} done, {} failed, {} not done in time, {} refused as too many ran\n",
                amount(commands.commands_done),
                amount(commands.commands_failed),
                amount(commands.commands_timed_out),
                amount(commands.commands_refused),
            );
        }
        text += &self.exports.as_ref().map(Exports::text).unwrap_or_default();
        text += &self.recordings.as_ref().map(Recordings::text).unwrap_or_default();
        for (what, number) in [
            ("packets came late, and are counted in the interval in which they came", self.totals.late),
            ("intervals without packets were left out", self.totals.skipped_intervals),
            ("times an alarm was not raised, as too many were", self.totals.alarms_untracked),
            ("configurations were taken up", self.totals.reloads),
            ("configurations were refused", self.changes.reloads_refused),
            ("times something was set", self.changes.changes),
            ("times that was refused", self.changes.changes_refused),
        ] {
            if number > 0 {
                text += &format!("{} {what}\n", amount(number));
            }
        }
        text + &self.store.as_ref().map(Stored::text).unwrap_or_default()
    }
}
