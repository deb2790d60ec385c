//! State of a running probe: active parts, raised alarms, next schedules.

use serde::{Deserialize, Serialize};

use crate::alarm::Watch;
use crate::config::{kind, threshold, when};
use crate::plan::Plan;
use crate::{key, result, schedule};

/// Keys of an alarm that are told at most.
const KEYS_TOLD: usize = 10;

/// How things stand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conditions {
    /// Nanoseconds of an interval.
    pub interval_ns: u64,
    /// In the order of the configuration, as all of these.
    pub measurements: Vec<MeasurementCondition>,
    /// Alarms.
    pub alarms: Vec<AlarmCondition>,
    /// Schedules.
    pub schedules: Vec<ScheduleCondition>,
}

/// A measurement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeasurementCondition {
    /// Its name.
    pub measurement: String,
    /// Whether packets are counted.
    pub active: bool,
}

/// An alarm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AlarmCondition {
    /// Its name.
    pub alarm: String,
    /// Its measurement's.
    pub measurement: String,
    /// Whether anybody looks.
    pub active: bool,
    /// When it is raised and cleared, in words.
    pub when: String,
    /// For how many keys it is raised now; 1 of a measurement without a key.
    pub raised: usize,
    /// The first of them, as texts.
    pub keys: Vec<String>,
}

/// A schedule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduleCondition {
    /// Its name.
    pub schedule: String,
    /// Its times, in words.
    pub when: String,
    /// What is done then, in words.
    pub what: String,
    /// When it is due next, UTC seconds with nine decimals.
    pub next: String,
    /// The same in nanoseconds.
    pub next_ns: u64,
}

impl Conditions {
    /// By this plan; `watches` are those of its alarms, where intervals have ended, the last at `now_ns`.
    pub(crate) fn new(plan: &Plan, watches: &[Watch], now_ns: u64) -> Conditions {
        let config = &plan.config;
        let measurement = |(place, one): (usize, &crate::config::Measurement)| MeasurementCondition {
            measurement: one.name.clone(),
            active: plan.active() & 1 << place != 0,
        };
        let alarm = |(place, one): (usize, &crate::config::Alarm)| {
            let of = &config.measurements[one.measurement];
            let active = plan.alarm_is_on(place);
            // What is switched off is cleared at the end of the interval.
            let watch = watches.get(place).filter(|_| active);
            let raised = watch.map(Watch::raised_keys).unwrap_or_default();
            let keyed = !one.value.is_of_all() && !of.key.is_empty();
            let told = raised.iter().filter(|_| keyed).take(KEYS_TOLD);
            AlarmCondition {
                alarm: one.name.clone(),
                measurement: of.name.clone(),
                active,
                when: format!("{} {}", one.value.name(), threshold(one)),
                raised: raised.len(),
                keys: told.map(|key| key::text(of, key)).collect(),
            }
        };
        let schedule = |(place, one): (usize, &crate::config::Schedule)| {
            let times = plan.when(place);
            let next_ns = schedule::next(times, now_ns);
            ScheduleCondition {
                schedule: one.name.clone(),
                when: when(times),
                what: kind(config, one),
                next: result::seconds(next_ns),
                next_ns,
            }
        };
        Conditions {
            interval_ns: config.interval_ns,
            measurements: config.measurements.iter().enumerate().map(measurement).collect(),
            alarms: config.alarms.iter().enumerate().map(alarm).collect(),
            schedules: config.schedules.iter().enumerate().map(schedule).collect(),
        }
    }
}
