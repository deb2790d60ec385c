//! Behaviour of a sensor at twice its highest rate, and after the load has decreased again.

use std::time::Duration;

use anyhow::Result;

use crate::duts::Adapter;
use crate::orders::{send_order, sensor_order};
use crate::roles::{DutOrder, Failure, SendOrder};
use crate::schedule::Case;
use crate::site::Site;
use crate::suite::{Rate, Suite};
use crate::trial::per_second;

/// Durations of the phases of an overload. The start of the generator takes the rest of a second.
const OVERLOAD: Duration = Duration::from_secs(1);
const RECOVERY: Duration = Duration::from_millis(800);
const RECOVERED: Duration = Duration::from_millis(900);
/// Time after which a sensor with reports has certainly sent one.
const TOLD: Duration = Duration::from_millis(250);

/// Behaviour of a sensor at twice its highest rate with a small loss, and after that.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Overload {
    /// Packets captured per second at twice the rate, relative to the rate: less than 0.9 is a collapse.
    pub captured: f64,
    /// Fraction of the packets lost more than a second after the load decreased to four fifths of the rate; `None`: the
    /// sensor does not report while it runs.
    pub lost_after: Option<f64>,
    /// Packets that are in none of the counts.
    pub unaccounted: i64,
}

/// Sends at twice this rate for a second, then at four fifths of it for almost two seconds.
///
/// # Errors
/// As of [`run`]; a failure of the sensor is the inner error.
pub fn measure(
    place: &mut Site,
    suite: &Suite,
    adapter: &Adapter,
    case: &Case,
    rate: f64,
) -> Result<Result<Overload>> {
    let mut course = || -> Result<Overload, Failure> {
        let full = Rate::Full;
        let taken = DutOrder { reports: true, ..sensor_order(suite, case, &full, OVERLOAD) };
        let order = |factor: f64, duration| send_order(suite, case, &Rate::Pps(rate * factor), duration);
        place.start(adapter, &taken)?;
        place.begin()?;
        // During the overload, sensor and generator have equal priority on the cores.
        let sent = place.send(&SendOrder { first: false, ..order(2.0, OVERLOAD)? })?;
        let mut all = vec![sent.clone()];
        let mut told = || -> Result<_, Failure> {
            std::thread::sleep(TOLD);
            place.told()
        };
        let mut captured = told()?.map(|(captured, _)| captured);
        let mut lost_by_then = 0;
        if captured.is_some() {
            place.settle(&DutOrder { paced: true, ..taken.clone() })?;
            all.push(place.send(&order(0.8, RECOVERY)?)?);
            std::thread::sleep(TOLD);
            lost_by_then = place.told()?.map_or(0, |(_, lost)| lost);
            all.push(place.send(&order(0.8, RECOVERED)?)?);
        }
        place.sent()?;
        let end = place.end()?.counts;
        let captured = captured.get_or_insert(end.captured);
        let last = all.last().filter(|_| all.len() > 1);
        let lost_after = last.map(|last| {
            let lost = (last.offered - last.sent) + end.lost.saturating_sub(lost_by_then);
            lost as f64 / last.offered.max(1) as f64
        });
        let sent_all: u64 = all.iter().map(|one| one.sent).sum();
        Ok(Overload {
            captured: per_second(*captured, sent.duration_s) / rate,
            lost_after,
            unaccounted: sent_all.cast_signed() - (end.captured + end.lost + end.aside).cast_signed(),
        })
    };
    match course() {
        Ok(overload) => Ok(Ok(overload)),
        Err(Failure::Trial(error)) => Ok(Err(error)),
        Err(Failure::Testbed(error)) => Err(error),
    }
}
