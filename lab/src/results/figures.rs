//! A line of `trials.csv`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Row;
use crate::trial::Measured;

/// [`Row`] as a flat struct for CSV.
#[derive(Serialize, Deserialize)]
pub(super) struct Line {
    case: String,
    repetition: u32,
    rate: String,
    search: String,
    offered: u64,
    sent: u64,
    seen: Option<u64>,
    captured: u64,
    analysed: u64,
    lost: u64,
    aside: u64,
    unaccounted: i64,
    passed_on: Option<u64>,
    duration_s: f64,
    late_s: f64,
    sensor_cpu_s: f64,
    #[serde(default)]
    sensor_user_s: f64,
    napi_cpu_s: f64,
    generator_cpu_s: f64,
    cores: String,
    others: f64,
    steal: f64,
    #[serde(default)]
    figures: String,
    invalid: String,
    fault: String,
}

impl Line {
    pub(super) fn of(row: &Row) -> Line {
        let (row, of) = (row.clone(), row.measured.clone());
        // A fault may quote several lines of a program.
        let fault = of.fault.replace(['\n', '\r'], " ");
        Line {
            case: row.case,
            repetition: row.repetition,
            rate: row.rate,
            search: row.search,
            offered: of.offered,
            sent: of.sent,
            seen: of.seen,
            captured: of.captured,
            analysed: of.analysed,
            lost: of.lost,
            aside: of.aside,
            unaccounted: of.unaccounted,
            passed_on: of.passed_on,
            duration_s: of.duration_s,
            late_s: of.late_s,
            sensor_cpu_s: of.sensor_cpu_s,
            sensor_user_s: of.sensor_user_s,
            napi_cpu_s: of.napi_cpu_s,
            generator_cpu_s: of.generator_cpu_s,
            cores: of.cores,
            others: of.others,
            steal: of.steal,
            figures: figures_text(&of.figures),
            invalid: of.invalid,
            fault,
        }
    }

    pub(super) fn row(self) -> Row {
        let measured = Measured {
            offered: self.offered,
            sent: self.sent,
            seen: self.seen,
            captured: self.captured,
            analysed: self.analysed,
            lost: self.lost,
            aside: self.aside,
            unaccounted: self.unaccounted,
            passed_on: self.passed_on,
            duration_s: self.duration_s,
            late_s: self.late_s,
            sensor_cpu_s: self.sensor_cpu_s,
            sensor_user_s: self.sensor_user_s,
            napi_cpu_s: self.napi_cpu_s,
            generator_cpu_s: self.generator_cpu_s,
            cores: self.cores,
            others: self.others,
            steal: self.steal,
            figures: figures(&self.figures),
            invalid: self.invalid,
            fault: self.fault,
        };
        Row { case: self.case, repetition: self.repetition, rate: self.rate, search: self.search, measured }
    }
}

/// Text like `flows whole=0.95; moves=3`.
pub fn figures_text(figures: &BTreeMap<String, f64>) -> String {
    figures.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("; ")
}

fn figures(text: &str) -> BTreeMap<String, f64> {
    let one = |one: &str| {
        one.rsplit_once('=').and_then(|(name, value)| Some((name.to_owned(), value.parse().ok()?)))
    };
    text.split("; ").filter_map(one).collect()
}
