//! Conclusions of a publication, as a suite states them, for `judge.rs` to decide by the results.

use serde::Deserialize;
use wirelane_probe::placed::At;

use super::Quantity;

/// Two values that differ by less than this factor are the same: it is the spread of repetitions.
pub const SAME: f64 = 1.05;

/// A conclusion.
#[derive(Clone, Debug, PartialEq)]
pub struct Conclusion {
    /// The published sentence, without its full stop.
    pub claim: String,
    /// How the results decide.
    pub by: By,
}

/// The way to decide about a conclusion.
#[derive(Clone, Debug, PartialEq)]
pub enum By {
    /// One result compared with another.
    Results {
        /// The quantity that is compared.
        quantity: Quantity,
        /// The result that the claim is about.
        of: Selection,
        /// The result that it is compared with.
        to: Selection,
        /// The relation that the claim states.
        is: Relation,
        /// The least factor of a difference; values within it are the same.
        factor: f64,
    },
    /// One result compared with a published number, in the units of a chart.
    Value {
        /// The quantity that is compared.
        quantity: Quantity,
        /// The result that the claim is about.
        of: Selection,
        /// The published number.
        value: f64,
        /// The relation that the claim states.
        is: Relation,
        /// The least factor of a difference; values within it are the same.
        factor: f64,
    },
    /// The packets captured from several devices with several cores, compared with those of one device with one core.
    /// Where they were not measured, a model decides.
    Scaling {
        /// Name of the adapter.
        sensor: String,
        /// Number of devices.
        devices: u32,
        /// Number of cores.
        cores: usize,
        /// The least factor.
        factor: f64,
    },
    /// It cannot be decided on any machine with this test-bed: the reason.
    NotHere(String),
}

/// A relation of two values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Relation {
    /// More than the other one.
    More,
    /// Less than the other one.
    Less,
    /// The same.
    Same,
}

/// The rate of which a result is taken, if there are several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AtRate {
    /// That with the highest value.
    #[default]
    Peak,
    /// The highest that was offered.
    Highest,
}

/// A choice of results. What is left out may be anything.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Selection {
    /// Name of the adapter.
    pub sensor: String,
    /// Another quantity than that of the conclusion.
    pub quantity: Option<Quantity>,
    /// Bytes of a frame.
    pub size: Option<u16>,
    /// Loops per packet.
    pub loops: Option<u32>,
    /// Number of cores.
    pub cores: Option<usize>,
    /// Number of workers.
    pub workers: Option<usize>,
    /// RX queues.
    pub queues: Option<u32>,
    /// Number of calls.
    pub calls: Option<u32>,
    /// Number of devices.
    pub devices: Option<u32>,
    /// Packets offered per second.
    pub pps: Option<f64>,
    /// The rate, if there are several.
    #[serde(default)]
    pub rate: AtRate,
}

/// The table of the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Raw {
    pub claim: String,
    pub compare: Option<Quantity>,
    pub of: Option<At<Selection>>,
    pub to: Option<At<Selection>>,
    pub value: Option<f64>,
    pub scaling: Option<At<Scaling>>,
    pub is: Option<Relation>,
    pub factor: Option<At<f64>>,
    pub not_here: Option<String>,
}

/// A published scaling with devices and cores.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Scaling {
    sensor: String,
    devices: u32,
    cores: usize,
}

impl Raw {
    /// Checks the table; `fault` gets each mistake with its place. `sensors` are those of the suite.
    pub(super) fn check(
        raw: At<Raw>,
        sensors: &[String],
        mut fault: impl FnMut(usize, String),
    ) -> Option<Conclusion> {
        let (start, raw) = (raw.start, raw.value);
        if raw.claim.trim().is_empty() {
            fault(start, "claim: say what was published".to_owned());
        }
        let factor = raw.factor.as_ref().map_or(SAME, |factor| factor.value);
        if let Some(at) = raw.factor.filter(|factor| !(1.0..1000.0).contains(&factor.value)) {
            fault(at.start, "a factor is a number from 1 on: the least ratio of a difference".to_owned());
        }
        for one in raw.of.iter().chain(&raw.to).filter(|one| !sensors.contains(&one.value.sensor)) {
            fault(one.start, format!("{} is not among the sensors of this suite", one.value.sensor));
        }
        if let Some(at) = raw.scaling.as_ref().filter(|one| !sensors.contains(&one.value.sensor)) {
            fault(at.start, format!("{} is not among the sensors of this suite", at.value.sensor));
        }
        let compared = (raw.compare, raw.of, raw.is);
        let by = match (compared, raw.to, raw.value, raw.scaling, raw.not_here) {
            ((None, None, None), None, None, None, Some(reason)) => By::NotHere(reason),
            ((Some(quantity), Some(of), Some(is)), Some(to), None, None, None) => {
                By::Results { quantity, of: of.value, to: to.value, is, factor }
            }
            ((Some(quantity), Some(of), Some(is)), None, Some(value), None, None) => {
                By::Value { quantity, of: of.value, value, is, factor }
            }
            ((None, None, None), None, None, Some(scaling), None) => {
                let Scaling { sensor, devices, cores } = scaling.value;
                By::Scaling { sensor, devices, cores, factor }
            }
            _ => {
                let wanted = "give compare, of, is and one of to and value; or scaling; or not-here, the reason why it cannot be \
                              decided";
                fault(start, wanted.to_owned());
                return None;
            }
        };
        Some(Conclusion { claim: raw.claim, by })
    }
}
