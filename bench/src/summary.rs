//! From trials to what a reader wants: medians, spread, and ratios within the same round.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::bed::Setup;
use crate::overload::Overload;
use crate::receiver::Receiver;
use crate::search::Found;
use crate::trial::{Load, Trial};

/// One receiver under one load in one setup, over all rounds.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    /// Who did what where.
    pub setup: Setup,
    /// The traffic.
    pub load: Load,
    /// The receiver.
    pub receiver: Receiver,
    /// Trials.
    pub trials: usize,
    /// Packets received per second: median, lowest and highest.
    pub pps: Spread,
    /// Median over rounds of the ratio to XDP_DROP in the same round.
    pub of_limit: Option<f64>,
    /// The same to AF_XDP in copy mode, the faster of poll and busy.
    pub of_xsk: Option<f64>,
    /// The same to TPACKET_V3.
    pub of_packet: Option<f64>,
    /// CPU time of the receiver's process per packet received, in nanoseconds; the median.
    pub receiver_ns: f64,
    /// CPU time of NAPI's thread in setup B, as a part of the time of the trial; the median.
    pub napi_share: f64,
    /// Packets that the receiver's own counters call lost, as a part of those at its hook; the median.
    pub lost_share: f64,
    /// Whether each packet of each trial was in exactly one place.
    pub exact: bool,
}

/// Middle and ends of a set of values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The median.
    pub median: f64,
    /// The smallest.
    pub low: f64,
    /// The largest.
    pub high: f64,
}

/// A search's result.
#[derive(Clone, Debug, Serialize)]
pub struct LossFree {
    /// Who did what where.
    pub setup: Setup,
    /// The traffic.
    pub load: Load,
    /// The receiver.
    pub receiver: Receiver,
    /// What was found.
    #[serde(flatten)]
    pub found: Found,
    /// What happened at twice the rate without loss, where the receiver and not the generator bounds it.
    pub overload: Option<Overload>,
}

impl Spread {
    /// Of these values; none of no values.
    pub fn of(mut values: Vec<f64>) -> Option<Spread> {
        values.sort_by(f64::total_cmp);
        Some(Spread { median: median(&values)?, low: *values.first()?, high: *values.last()? })
    }
}

/// Of sorted values.
fn median(sorted: &[f64]) -> Option<f64> {
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

fn median_of(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    median(&values).unwrap_or(f64::NAN)
}

/// Summarises the trials of all rounds that count, each with the number of its round.
pub fn summarise(trials: &[(usize, Trial)]) -> Vec<Line> {
    let mut cells: BTreeMap<(Setup, Load, Receiver), BTreeMap<usize, &Trial>> = BTreeMap::new();
    for (round, trial) in trials.iter().filter(|(_, trial)| trial.invalid.is_none()) {
        cells.entry((trial.setup, trial.load, trial.receiver)).or_default().insert(*round, trial);
    }
    let lines = cells.iter().filter_map(|((setup, load, receiver), rounds)| {
        let of = |peers: &[Receiver]| {
            let ratio = |(round, trial): (&usize, &&Trial)| {
                let best = peers
                    .iter()
                    .filter_map(|peer| cells.get(&(*setup, *load, *peer))?.get(round))
                    .map(|trial| trial.received_pps())
                    .max_by(f64::total_cmp)?;
                (best > 0.0).then(|| trial.received_pps() / best)
            };
            Spread::of(rounds.iter().filter_map(ratio).collect()).map(|spread| spread.median)
        };
        Some(Line {
            setup: *setup,
            load: *load,
            receiver: *receiver,
            trials: rounds.len(),
            pps: Spread::of(rounds.values().map(|trial| trial.received_pps()).collect())?,
            of_limit: of(&[Receiver::Drop]),
            of_xsk: of(&[Receiver::XskPoll, Receiver::XskBusy]),
            of_packet: of(&[Receiver::Packet]),
            receiver_ns: median_of(rounds.values().map(|trial| trial.receiver_ns())),
            napi_share: median_of(rounds.values().map(|trial| trial.napi_cpu_s / trial.duration_s)),
            lost_share: median_of(
                rounds
                    .values()
                    .map(|trial| trial.lost as f64 / (trial.offered - trial.device_dropped).max(1) as f64),
            ),
            exact: rounds.values().all(|trial| trial.is_exact()),
        })
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::tests::trial;

    #[test]
    fn ratios_are_of_the_same_round() {
        // The machine is half as fast in the second round; the ratio is the same.
        let trials = vec![
            (0, trial(Receiver::Drop, 2000)),
            (0, trial(Receiver::RingNative, 1800)),
            (1, trial(Receiver::Drop, 1000)),
            (1, trial(Receiver::RingNative, 900)),
            (2, trial(Receiver::RingNative, 100)),
            (3, Trial { invalid: Some("steal"), ..trial(Receiver::RingNative, 1) }),
        ];
        let lines = summarise(&trials);
        let ring = lines.iter().find(|line| line.receiver == Receiver::RingNative).unwrap();
        assert_eq!(ring.of_limit, Some(0.9));
        assert_eq!(ring.pps, Spread { median: 1800.0, low: 200.0, high: 3600.0 });
        assert_eq!((ring.of_packet, ring.trials, ring.exact), (None, 3, true));
    }

    #[test]
    fn medians() {
        let of = |values: &[f64]| Spread::of(values.to_vec()).map(|spread| spread.median);
        assert_eq!(of(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(of(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(of(&[]), None);
    }
}
