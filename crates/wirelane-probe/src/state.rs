//! State of a running probe: active parts, raised alarms, next schedules.

use serde::{Deserialize, Serialize};

use crate::alarm::Watch;
use crate::config::{kind, threshold, when};
use crate::plan::Plan;
use crate::{key, result, schedule};

/// Maximum number of keys of an alarm in the state.
const KEYS_TOLD: usize = 10;

/// State of measurements, alarms and schedules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conditions {
    /// Nanoseconds of an interval.
    pub interval_ns: u64,
    /// Measurements, in the order of the configuration, as the other lists.
    pub measurements: Vec<MeasurementCondition>,
    /// Alarms.
    pub alarms: Vec<AlarmCondition>,
    /// Schedules.
    pub schedules: Vec<ScheduleCondition>,
}

/// State of a measurement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeasurementCondition {
    /// Name.
    pub measurement: String,
    /// Whether packets are counted.
    pub active: bool,
}

/// State of an alarm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AlarmCondition {
    /// Name.
    pub alarm: String,
    /// Name of its measurement.
    pub measurement: String,
    /// Whether it is evaluated.
    pub active: bool,
    /// Conditions that raise and clear it, in words.
    pub when: String,
    /// Number of keys for which it is raised; at most 1 for a measurement without a key.
    pub raised: usize,
    /// The first of these keys, as text.
    pub keys: Vec<String>,
}

/// State of a schedule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduleCondition {
    /// Name.
    pub schedule: String,
    /// Times, in words.
    pub when: String,
    /// Changes that it makes, in words.
    pub what: String,
    /// Next time, UTC seconds with nine decimals.
    pub next: String,
    /// Next time in nanoseconds.
    pub next_ns: u64,
}

impl Conditions {
    /// State under this plan; `watches` are its alarm states after the last interval, which ended at `now_ns`.
    pub(crate) fn new(plan: &Plan, watches: &[Watch], now_ns: u64) -> Conditions {
        let config = &plan.config;
        let measurement = |(place, one): (usize, &crate::config::Measurement)| MeasurementCondition {
            measurement: one.name.clone(),
            active: plan.active() & 1 << place != 0,
        };
        let alarm = |(place, one): (usize, &crate::config::Alarm)| {
            let of = &config.measurements[one.measurement];
            let active = plan.alarm_is_on(place);
            // Keys of an alarm that is switched off are cleared at the end of the interval.
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
