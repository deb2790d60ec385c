//! One trial: one sensor, one period of traffic, and the account of every packet.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize, Serializer};

use crate::duts::{Adapter, Counts};
use crate::orders::{announcement, send_order, sensor_order};
use crate::roles::{Failure, Load, Sent, Taken};
use crate::schedule::Case;
use crate::site::Site;
use crate::suite::{Rate, Suite};
use crate::web;

/// Minimum fraction of the requested rate; below it, the trial had another rate.
const LEAST_OFFERED: f64 = 0.995;
/// Limits for disturbances: fractions of a core used by other programs (above the error of the kernel's clock ticks in
/// a trial of 0.3 s), or taken by the hypervisor.
const MOST_OTHERS: f64 = 0.08;
const MOST_STEAL: f64 = 0.02;

/// Reason of a trial that has no result about the sensor at this rate: too few packets were sent.
pub const FELL_SHORT: &str = "generator fell short";
/// Reason of a trial that has no result: the device also sent packets of other programs.
const FOREIGN: &str = "somebody else sent";

/// Measurements of a trial. Counts are packets.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Passed to the kernel by the generator.
    pub offered: u64,
    /// Sent by its device; the others found no room in the sensor's device.
    pub sent: u64,
    /// Seen by the sensor, if it reports this.
    pub seen: Option<u64>,
    /// Captured by the sensor.
    pub captured: u64,
    /// Analysed by the sensor.
    pub analysed: u64,
    /// Lost, as the sensor reports.
    pub lost: u64,
    /// Filtered out, as the sensor reports.
    pub aside: u64,
    /// Sent, and in none of the other counts.
    pub unaccounted: i64,
    /// Sent packets that the sensor's machine passed on to the receiver; `None`: there is no receiver. Independent of
    /// the sensor's own account: a sensor of copies captures packets that are also passed on.
    pub passed_on: Option<u64>,
    /// Duration of sending, in seconds.
    pub duration_s: f64,
    /// Work of sensor and NAPI threads after that, in seconds: CPU time divided by the sensor's cores. Packets that are then
    /// taken from full buffers and queues do not count as throughput.
    pub late_s: f64,
    /// CPU time of the sensor's processes, in seconds.
    pub sensor_cpu_s: f64,
    /// Share of it in user space.
    #[serde(default)]
    pub sensor_user_s: f64,
    /// CPU time of NAPI threads, in seconds.
    pub napi_cpu_s: f64,
    /// CPU time of the generator's process, in seconds.
    pub generator_cpu_s: f64,
    /// Load of each core, as in `0:0.99 1:0.45`.
    pub cores: String,
    /// Fraction of the time of sending in which the sensor's cores were idle.
    #[serde(default)]
    pub idle: Option<f64>,
    /// Largest fraction of a core that other programs used.
    pub others: f64,
    /// Largest fraction of a core that the hypervisor took.
    pub steal: f64,
    /// Other numbers that the sensor reports, by name.
    #[serde(default, with = "crate::results::figures")]
    pub figures: BTreeMap<String, f64>,
    /// Reason why this trial does not count; empty: it counts.
    pub invalid: String,
    /// Description of a failure; empty: none. It may quote several lines of a program, which are one in CSV.
    #[serde(serialize_with = "on_one_line")]
    pub fault: String,
}

impl Measured {
    /// A trial that could not be run.
    pub fn failed(fault: String) -> Measured {
        Measured { fault, ..Measured::default() }
    }

    /// Whether it is a valid result about the sensor.
    pub fn counts(&self) -> bool {
        self.invalid.is_empty() && self.fault.is_empty()
    }

    /// Whether it has no result, not even one about a disturbed sensor.
    pub fn is_of_no_use(&self) -> bool {
        !self.fault.is_empty() || [FELL_SHORT, FOREIGN].contains(&self.invalid.as_str())
    }

    /// Packets offered per second.
    pub fn offered_pps(&self) -> f64 {
        per_second(self.offered, self.duration_s)
    }

    /// Packets captured per second.
    pub fn captured_pps(&self) -> f64 {
        per_second(self.captured, self.duration_s + self.late_s)
    }

    /// Packets analysed per second.
    pub fn analysed_pps(&self) -> f64 {
        per_second(self.analysed, self.duration_s + self.late_s)
    }

    /// Packets per second that arrived at the receiver.
    pub fn passed_on_pps(&self) -> Option<f64> {
        self.passed_on.map(|packets| per_second(packets, self.duration_s))
    }

    /// Fraction of the offered packets that were not captured, for a sensor that gets each once. Packets that the
    /// sensor filtered out are not lost.
    pub fn loss(&self) -> f64 {
        1.0 - (self.captured + self.aside) as f64 / self.offered.max(1) as f64
    }

    /// Time of the generator per packet, in nanoseconds.
    pub fn generator_ns(&self) -> f64 {
        self.duration_s * 1e9 / self.offered.max(1) as f64
    }

    /// CPU time per captured packet, in nanoseconds: of the sensor in user space and in the kernel, and of NAPI.
    pub fn cpu_parts_ns(&self) -> [f64; 3] {
        let kernel = (self.sensor_cpu_s - self.sensor_user_s).max(0.0);
        [self.sensor_user_s, kernel, self.napi_cpu_s]
            .map(|seconds| seconds * 1e9 / self.captured.max(1) as f64)
    }

    /// CPU time of sensor and NAPI threads per captured packet, in nanoseconds.
    pub fn cpu_ns(&self) -> f64 {
        (self.sensor_cpu_s + self.napi_cpu_s) * 1e9 / self.captured.max(1) as f64
    }
}

fn on_one_line<S: Serializer>(text: &str, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&text.replace(['\n', '\r'], " "))
}

pub(crate) fn per_second(packets: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { packets as f64 / seconds } else { 0.0 }
}

/// Runs a trial at this rate for about this time.
///
/// # Errors
/// The test-bed fails. A failure of a sensor is [`Measured::fault`], and so is an agent that disconnects.
pub fn run(
    place: &mut Site,
    suite: &Suite,
    adapter: &Adapter,
    case: &Case,
    rate: &Rate,
    duration: Duration,
) -> Result<Measured> {
    let (taken, sent) = (sensor_order(suite, case, rate, duration), send_order(suite, case, rate, duration)?);
    let announces = case.calls.map(|calls| announcement(&sent, calls));
    let mut course = || {
        place.start(adapter, &taken)?;
        let announced =
            announces.as_ref().map(|order| place.announce(order)).transpose()?.unwrap_or_default();
        place.begin()?;
        let sent = place.send(&sent)?;
        place.sent()?;
        if !adapter.flush.is_empty() {
            place.flush(&adapter.flush, &suite.injector)?;
        }
        let (taken, passed_on) = (place.end()?, place.received()?);
        let sent = if suite.traffic.web { web::requests(sent)? } else { sent };
        let taken = without(taken, &announced, copies(adapter, case)).map_err(Failure::Trial)?;
        Ok((sent, taken, passed_on))
    };
    let (sent, taken, passed_on) = match course() {
        Ok(told) => told,
        Err(Failure::Testbed(error)) => return Err(error),
        Err(Failure::Trial(error)) => return Ok(Measured::failed(format!("{error:#}"))),
    };
    let away = place.is_remote();
    ensure!(away || sent.foreign == 0, "somebody else sends in the injector's namespace: {sent:?}");
    ensure!(
        away || passed_on.is_none_or(|packets| packets <= sent.sent),
        "{passed_on:?} packets have arrived at the receiver, and {} were sent: somebody else sends there",
        sent.sent
    );
    let mut measured = Measured {
        passed_on,
        offered: sent.offered,
        sent: sent.sent,
        seen: taken.counts.seen,
        captured: taken.counts.captured,
        analysed: taken.counts.analysed,
        lost: taken.counts.lost,
        aside: taken.counts.aside,
        duration_s: sent.duration_s,
        late_s: taken.late_s,
        sensor_cpu_s: taken.cpu_s,
        sensor_user_s: taken.user_s,
        figures: taken.counts.figures.clone(),
        napi_cpu_s: taken.napi_cpu_s,
        generator_cpu_s: sent.cpu_s,
        cores: cores(&sent.load, &taken.load, away),
        idle: idle(&taken.load),
        others: if case.shares_cores(suite) {
            // On shared cores, the use by the generator is not a disturbance.
            let generator = sent.cpu_s / sent.duration_s.max(1e-9) / case.cores.len() as f64;
            (taken.load.others - generator).max(0.0)
        } else {
            sent.load.others.max(taken.load.others)
        },
        steal: sent.load.steal.max(taken.load.steal),
        ..Measured::default()
    };
    account(&mut measured, adapter, case, suite.traffic.web, away);
    check_wanted(&mut measured, adapter, taken.counts.wanted);
    measured.invalid = if sent.foreign > 0 {
        FOREIGN.to_owned()
    } else {
        // All packets of calls are sent, however long that takes.
        let late = match rate {
            Rate::Pps(pps) => {
                (case.calls.is_some() || suite.traffic.web) && measured.offered_pps() < LEAST_OFFERED * pps
            }
            _ => sent.fell_short,
        };
        disturbance(&measured, rate, duration, late).to_owned()
    };
    Ok(measured)
}

/// Mean fraction of the time in which these cores were idle.
fn idle(load: &Load) -> Option<f64> {
    let idle = load.cores.iter().map(|(_, worked)| (1.0 - worked).clamp(0.0, 1.0));
    (!load.cores.is_empty()).then(|| idle.sum::<f64>() / load.cores.len() as f64)
}

/// Text like `0:0.99 1:0.45`; with two machines, whose core numbers overlap, `injector/0:0.99 sensor/0:0.45`.
fn cores(injector: &Load, sensor: &Load, away: bool) -> String {
    let names = if away { ["injector/", "sensor/"] } else { ["", ""] };
    let of = |(load, name): (&Load, &str)| {
        let text = |(core, worked): &(usize, f64)| format!("{name}{core}:{worked:.2}");
        load.cores.iter().map(text).collect::<Vec<_>>()
    };
    [of((injector, names[0])), of((sensor, names[1]))].concat().join(" ")
}

/// Counts without the messages that were sent before the trial, all of which must have been captured.
fn without(taken: Taken, announced: &Sent, copies: u64) -> Result<Taken> {
    ensure!(
        announced.sent == announced.offered,
        "{} of {} messages of calls found no room in the sensor's device before the trial",
        announced.offered - announced.sent,
        announced.offered
    );
    let packets = announced.sent * copies;
    let rest = |what: &str, count: u64| {
        count.checked_sub(packets).with_context(|| {
            format!("calls began with {packets} messages, and the sensor has {what} {count} packets in all")
        })
    };
    let counts = taken.counts;
    let counts = Counts {
        seen: counts.seen.map(|seen| rest("seen", seen)).transpose()?,
        captured: rest("captured", counts.captured)?,
        analysed: rest("analysed", counts.analysed)?,
        ..counts
    };
    Ok(Taken { counts, ..taken })
}

/// Number of times that a sensor counts each packet.
fn copies(adapter: &Adapter, case: &Case) -> u64 {
    if adapter.copies { case.workers.unwrap_or(1) as u64 } else { 1 }
}

/// Compares the sent packets with the sensor's report; `away`: on another machine.
fn account(measured: &mut Measured, adapter: &Adapter, case: &Case, web: bool, away: bool) {
    let copies = copies(adapter, case);
    let told = measured.captured + measured.lost + measured.aside;
    measured.unaccounted = (measured.sent * copies).cast_signed() - told.cast_signed();
    // Between machines, cards and switches lose packets before the sensor, and do not create any.
    let lost_on_the_way = away && measured.unaccounted > 0
        // For web traffic, these are requests with at least one lost packet.
        || web && (measured.sent < measured.offered || measured.figures.get(web::LOST).is_some_and(|lost| *lost > 0.0));
    if adapter.exact && measured.unaccounted != 0 && !lost_on_the_way {
        measured.fault = format!(
            "{} packets were sent, and {} tells of {told}: its account is not exact",
            measured.sent * copies,
            adapter.name
        );
    }
}

/// Checks that a sensor received the packets that it selects, except those that found no room in its device.
fn check_wanted(measured: &mut Measured, adapter: &Adapter, had: Option<u64>) {
    let (Some(wanted), Some(had)) = (&adapter.wanted, had) else { return };
    let most = wanted.of(measured.offered);
    let least = most.saturating_sub(measured.offered - measured.sent);
    if !(least..=most).contains(&had) && measured.fault.is_empty() {
        measured.fault = format!(
            "{} wants {least} to {most} packets of {}, and has had {had}",
            adapter.name, measured.sent
        );
    }
}

/// Reason why a trial does not count; empty: it counts.
fn disturbance(measured: &Measured, rate: &Rate, duration: Duration, late: bool) -> &'static str {
    let short = match rate {
        Rate::Pps(pps) => late || (measured.offered as f64) < LEAST_OFFERED * pps * duration.as_secs_f64(),
        Rate::Speed(_) => late,
        Rate::Full | Rate::OfCapacity(_) | Rate::Search(_) => false,
    };
    if short {
        FELL_SHORT
    } else if measured.steal > MOST_STEAL {
        "hypervisor took time"
    } else if measured.others > MOST_OTHERS {
        "other programs ran"
    } else {
        ""
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::duts::Duts;

    fn measured() -> Measured {
        Measured {
            offered: 1000,
            sent: 990,
            captured: 900,
            analysed: 900,
            lost: 80,
            aside: 10,
            duration_s: 0.5,
            ..Measured::default()
        }
    }

    fn case(workers: usize) -> Case {
        Case { cores: vec![1], workers: Some(workers), ..Case::default() }
    }

    #[test]
    fn every_packet_has_a_place_or_the_trial_is_at_fault() {
        let sensors = Duts::shipped();
        let (ours, theirs) = (sensors.get("wirelane-count").unwrap(), sensors.get("tcpdump").unwrap());
        let mut exact = measured();
        account(&mut exact, ours, &case(1), false, false);
        assert_eq!((exact.unaccounted, exact.fault.as_str(), exact.counts()), (0, "", true));
        let mut short = Measured { captured: 899, ..measured() };
        account(&mut short, ours, &case(1), false, false);
        assert!(
            short.unaccounted == 1 && short.fault.contains("990 packets were sent") && !short.counts(),
            "{short:?}"
        );
        let mut on_the_way = Measured { captured: 899, ..measured() };
        account(&mut on_the_way, ours, &case(1), false, true);
        assert_eq!((on_the_way.unaccounted, on_the_way.fault.as_str()), (1, ""));
        let mut more = Measured { captured: 901, ..measured() };
        account(&mut more, ours, &case(1), false, true);
        assert!(more.unaccounted == -1 && more.fault.contains("not exact"), "{more:?}");
        let mut others = Measured { captured: 899, ..measured() };
        account(&mut others, theirs, &case(1), false, false);
        assert_eq!((others.unaccounted, others.fault.as_str()), (1, ""));
        let mut copies = Measured { captured: 2880, ..measured() };
        account(&mut copies, sensors.get("wirelane-count-copy").unwrap(), &case(3), false, false);
        assert_eq!((copies.unaccounted, copies.fault.as_str()), (0, ""));
    }

    #[test]
    fn what_came_before_a_trial_is_none_of_it() {
        let counts =
            Counts { seen: Some(1010), captured: 1006, analysed: 1006, lost: 4, ..Counts::default() };
        let taken = Taken { counts, ..Taken::default() };
        let announced = Sent { offered: 6, sent: 6, ..Sent::default() };
        let rest = without(taken.clone(), &announced, 1).unwrap().counts;
        assert_eq!((rest.seen, rest.captured, rest.analysed, rest.lost), (Some(1004), 1000, 1000, 4));
        assert_eq!(without(taken.clone(), &announced, 2).unwrap().counts.captured, 994);
        let few = Taken { counts: Counts { captured: 5, ..taken.counts.clone() }, ..taken.clone() };
        assert!(without(few, &announced, 1).unwrap_err().to_string().contains("captured 5"));
        let short = Sent { sent: 5, ..announced };
        assert!(without(taken, &short, 1).unwrap_err().to_string().contains("1 of 6 messages"));
    }

    #[test]
    fn idle_time_is_the_mean_of_the_cores() {
        let load = |cores| Load { cores, ..Load::default() };
        assert_eq!(idle(&load(vec![(0, 0.5), (1, 1.0)])), Some(0.25));
        assert_eq!(idle(&load(vec![])), None);
    }

    #[test]
    fn cores_of_two_machines_are_told_apart() {
        let load = |worked| Load { cores: vec![(0, worked)], ..Load::default() };
        assert_eq!(cores(&load(0.5), &load(1.0), true), "injector/0:0.50 sensor/0:1.00");
        assert_eq!(cores(&load(0.5), &load(1.0), false), "0:0.50 0:1.00");
    }

    #[test]
    fn what_disturbs_a_trial_is_named() {
        let seconds = Duration::from_millis(500);
        let pps = Rate::Pps(2000.0);
        assert_eq!(disturbance(&measured(), &pps, seconds, false), "");
        assert_eq!(disturbance(&measured(), &Rate::Pps(2020.0), seconds, false), FELL_SHORT);
        assert_eq!(disturbance(&measured(), &Rate::Speed("10x".into()), seconds, true), FELL_SHORT);
        assert_eq!(
            disturbance(&Measured { steal: 0.1, ..measured() }, &pps, seconds, false),
            "hypervisor took time"
        );
        assert_eq!(
            disturbance(&Measured { others: 0.2, ..measured() }, &Rate::Full, seconds, false),
            "other programs ran"
        );
    }

    #[test]
    fn rates_are_per_second_of_sending() {
        let one = measured();
        assert!((one.captured_pps() - 1800.0).abs() < 1e-9 && (one.offered_pps() - 2000.0).abs() < 1e-9);
        assert!((one.loss() - 0.09).abs() < 1e-9, "{}", one.loss());
        let cpu = Measured { sensor_cpu_s: 0.0009, napi_cpu_s: 0.0009, ..one };
        assert!((cpu.cpu_ns() - 2000.0).abs() < 1e-6);
        // 900 packets in half a second plus another half.
        let late = Measured { late_s: 0.5, ..measured() };
        assert!((late.captured_pps() - 900.0).abs() < 1e-9 && (late.offered_pps() - 2000.0).abs() < 1e-9);
        assert!(Measured::failed("x".into()).captured_pps() == 0.0);
    }
}
