//! From trials of the studies to medians, spreads, and ratios within the same round.

use std::collections::BTreeMap;

use super::{Point, Series, Study, imbalance, imbalance_aside};
use crate::bed::Setup;
use crate::summary::Spread;

/// One cell of a study over all rounds that count.
#[derive(Clone, Debug)]
pub struct Line {
    /// See [`Point`].
    pub study: Study,
    /// See [`Point`].
    pub setup: Setup,
    /// See [`Point`].
    pub load: u32,
    /// See [`Point`].
    pub x: u32,
    /// See [`Point`].
    pub series: Series,
    /// Rounds that count.
    pub trials: usize,
    /// Packets received per second by all receivers together, or decided about by a filter or rule; in the studies of
    /// congestion and skew, analysed per second of analysis.
    pub pps: Spread,
    /// Packets offered per second; the median, as all that follow.
    pub offered_pps: f64,
    /// Of XDP_DROP under the same traffic in the same round.
    pub of_limit: Option<f64>,
    /// Of the same receiver with one queue, worker, application or rule in the same round; of Table 2, of its first
    /// setup.
    pub of_one: Option<Spread>,
    /// Of the highest rate of analysis in the same round and setup with the same loops, with or without congestion control.
    pub of_most: Option<Spread>,
    /// Parts of the packets at receivers' hooks.
    pub lost_share: f64,
    /// See `lost_share`.
    pub shed_share: f64,
    /// Part of what was offered that the device's queue dropped.
    pub device_share: f64,
    /// Receivers' CPU time per packet received, or decided about by a filter or rule, in nanoseconds.
    pub receiver_ns: f64,
    /// What a packet took on the way to all receivers, in nanoseconds: in setup A at full speed the generator's core
    /// makes it and brings it to all receivers.
    pub kernel_ns: f64,
    /// How much more that is for each further application than for one.
    pub further_ns: Option<f64>,
    /// Of flows that were analysed at all, those that were analysed whole.
    pub whole_flows: Option<Spread>,
    /// The busiest worker's packets over the mean.
    pub imbalance: Option<f64>,
    /// The same in the second half of the packets, and of the workers but the elephant's.
    pub imbalance_late: Option<f64>,
    /// See `imbalance_late`.
    pub aside_late: Option<f64>,
    /// The same two of the packets from two seconds after the first on.
    pub imbalance_settled: Option<f64>,
    /// See `imbalance_settled`.
    pub aside_settled: Option<f64>,
    /// Parts of the packets in the second half, of each worker, the busiest first.
    pub shares_late: Vec<f64>,
    /// Packets of all trials that were analysed after a later one of their flow.
    pub reordered: Option<u64>,
    /// Buckets that were moved.
    pub moves: Option<f64>,
    /// Whether every packet of every trial was in exactly one place.
    pub exact: bool,
}

/// Study, setup, loops per packet, what varies, who receives.
type Cell = (Study, Setup, u32, u32, Series);

fn rate(point: &Point) -> f64 {
    match point.study {
        Study::Congestion | Study::Skew => point.analysed_pps(),
        _ => point.handled_pps(),
    }
}

/// Summarises the trials that count; `disturbed`: also those that something else than the receiver decided.
pub fn summarise(points: &[Point], disturbed: bool) -> Vec<Line> {
    let mut cells: BTreeMap<Cell, BTreeMap<usize, &Point>> = BTreeMap::new();
    // The last one of a round stands, and one that counts is the last of its round.
    for point in points.iter().filter(|point| disturbed || point.invalid.is_none()) {
        let cell = (point.study, point.setup, point.load, point.x, point.series);
        cells.entry(cell).or_default().insert(point.round, point);
    }
    cells.iter().filter_map(|(cell, rounds)| line(&cells, *cell, rounds)).collect()
}

fn line(
    cells: &BTreeMap<Cell, BTreeMap<usize, &Point>>,
    cell: Cell,
    rounds: &BTreeMap<usize, &Point>,
) -> Option<Line> {
    let (study, setup, load, x, series) = cell;
    let all = |value: &dyn Fn(&Point) -> Option<f64>| {
        Spread::of(rounds.values().filter_map(|point| value(point)).collect())
    };
    let median = |value: &dyn Fn(&Point) -> f64| {
        all(&|point| Some(value(point))).map_or(f64::NAN, |spread| spread.median)
    };
    // The ratio to another cell, in rounds in which both count.
    let to = |other: Cell, value: &dyn Fn(&Point, &Point) -> f64| {
        let other = cells.get(&other)?;
        let pairs = rounds.iter().filter_map(|(round, point)| Some(value(point, other.get(round)?)));
        Spread::of(pairs.filter(|value| value.is_finite()).collect())
    };
    let ratio = |point: &Point, other: &Point| rate(point) / rate(other);
    let most = |round: usize| {
        let same = cells.iter().filter(|(other, _)| (other.0, other.1, other.2) == (study, setup, load));
        same.filter_map(|(_, rounds)| rounds.get(&round)).map(|point| rate(point)).reduce(f64::max)
    };
    let analysis = |value: &dyn Fn(&crate::receive::Analysis) -> Option<f64>| {
        all(&|point| value(point.analysis.as_ref()?)).map(|spread| spread.median)
    };
    let middle = rounds.values().nth(rounds.len() / 2)?;
    let mut late = middle.analysis.as_ref().map_or_else(Vec::new, |one| one.steered_late.clone());
    late.sort_unstable_by(|a, b| b.cmp(a));
    let sum: u64 = late.iter().sum();
    Some(Line {
        study,
        setup,
        load,
        x,
        series,
        trials: rounds.len(),
        pps: all(&|point| Some(rate(point)))?,
        offered_pps: median(&|point| point.offered as f64 / point.duration_s),
        of_limit: to((study, setup, load, x, Series::Drop), &ratio).map(|spread| spread.median),
        of_one: to((study, setup, load, 1, series.reference()), &ratio),
        of_most: if study == Study::Congestion {
            all(&|point| Some(rate(point) / most(point.round)?))
        } else {
            None
        },
        lost_share: median(&|point| point.share(point.lost)),
        shed_share: median(&|point| point.share(point.shed)),
        device_share: median(&|point| point.device_dropped as f64 / point.offered.max(1) as f64),
        receiver_ns: median(&|point| point.receiver_cpu_s * 1e9 / point.handled().max(1) as f64),
        kernel_ns: median(&kernel_ns),
        further_ns: if study == Study::Sharing && x > 1 {
            to((study, setup, load, 1, series), &|point, one| {
                (kernel_ns(point) - kernel_ns(one)) / f64::from(x - 1)
            })
            .map(|spread| spread.median)
        } else {
            None
        },
        whole_flows: all(&Point::whole_flows),
        imbalance: analysis(&|one| imbalance(&one.steered)),
        imbalance_late: analysis(&|one| imbalance(&one.steered_late)),
        aside_late: analysis(&|one| imbalance_aside(&one.steered_late, one.elephant)),
        imbalance_settled: analysis(&|one| imbalance(&one.steered_settled)),
        aside_settled: analysis(&|one| imbalance_aside(&one.steered_settled, one.elephant)),
        reordered: rounds
            .values()
            .filter_map(|point| point.analysis.as_ref()?.reordered)
            .reduce(|sum, packets| sum + packets),
        shares_late: late.iter().map(|packets| *packets as f64 / sum.max(1) as f64).collect(),
        moves: analysis(&|one| Some(one.moves as f64)),
        exact: rounds.values().all(|point| point.is_exact()),
    })
}

fn kernel_ns(point: &Point) -> f64 {
    point.duration_s * 1e9 / point.offered.max(1) as f64
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::flows::WHOLE;
    use crate::receive::Analysis;
    use crate::study::FULL_SPEED;

    /// A trial of a second in which `received` packets of 1000 were received and the others lost.
    pub(crate) fn point(study: Study, series: Series, x: u32, round: usize, received: u64) -> Point {
        Point {
            study,
            setup: Setup::A,
            load: 0,
            x,
            series,
            round,
            asked_pps: None,
            offered: 1000,
            device_dropped: 0,
            copies: 1,
            received,
            lost: 1000 - received,
            shed: 0,
            filtered: 0,
            absorbed: 0,
            unaccounted: 0,
            duration_s: 1.0,
            span_s: None,
            receiver_cpu_s: 0.5,
            napi_cpu_s: 0.0,
            generator_cpu_s: 1.0,
            analysis: None,
            others_share: 0.0,
            steal_share: 0.0,
            invalid: None,
            load_average: 0.0,
        }
    }

    fn find(lines: &[Line], x: u32, series: Series) -> &Line {
        lines.iter().find(|line| (line.x, line.series) == (x, series)).unwrap()
    }

    #[test]
    fn ratios_are_to_one_worker_and_to_the_limit_of_the_same_round() {
        let of = |series, x, round, received| point(Study::Queues, series, x, round, received);
        let points = [
            of(Series::Ring, 1, 0, 400),
            of(Series::Ring, 2, 0, 800),
            of(Series::Drop, 2, 0, 1000),
            // The machine is half as fast.
            of(Series::Ring, 1, 1, 200),
            of(Series::Ring, 2, 1, 400),
            of(Series::Drop, 2, 1, 500),
            Point { invalid: Some("steal"), ..of(Series::Ring, 2, 2, 1) },
        ];
        let lines = summarise(&points, false);
        let two = find(&lines, 2, Series::Ring);
        assert_eq!((two.of_limit, two.of_one.map(|spread| spread.median)), (Some(0.8), Some(2.0)));
        assert_eq!((two.trials, two.pps.low, two.pps.high), (2, 400.0, 800.0));
        // Unless asked for, a trial that was disturbed does not count.
        assert_eq!(find(&summarise(&points, true), 2, Series::Ring).trials, 3);
        assert_eq!(find(&lines, 1, Series::Ring).of_limit, None);
        assert!((two.lost_share - 0.4).abs() < 1e-9);
    }

    #[test]
    fn analysis_is_held_against_the_most_of_its_round_and_takes_until_the_rings_are_empty() {
        let flows = |sets: &[(u64, u64)]| Analysis { flows: sets.to_vec(), ..Analysis::default() };
        let of = |series, x, received, span| Point {
            span_s: Some(span),
            // The first half, in which the ring fills, does not count.
            offered: 3 * WHOLE,
            analysis: Some(flows(&[(256, 256), (50, 40), (50, 50)])),
            ..point(Study::Congestion, series, x, 0, received)
        };
        let points = [
            of(Series::Uncontrolled, 100, 1000, 1.0),
            // 900 packets in 1.25 seconds.
            of(Series::Controlled, FULL_SPEED, 900, 1.25),
            // Fewer loops, for which another rate is the most.
            Point { load: 10, ..of(Series::Controlled, 200, 500, 1.0) },
        ];
        let lines = summarise(&points, false);
        assert_eq!(find(&lines, 200, Series::Controlled).of_most.unwrap().median, 1.0);
        let line = find(&lines, FULL_SPEED, Series::Controlled);
        assert!((line.of_most.unwrap().median - 0.72).abs() < 1e-9);
        assert!((line.whole_flows.unwrap().median - 0.9).abs() < 1e-9);
        assert_eq!(line.of_one, None);
    }

    #[test]
    fn a_further_application_costs_what_it_slows_the_generator() {
        let of = |x: u32, offered| Point {
            offered,
            copies: u64::from(x),
            received: offered * u64::from(x),
            lost: 0,
            ..point(Study::Sharing, Series::RingGroups, x, 0, 0)
        };
        // 100, 125 and 175 ns a packet.
        let lines = summarise(&[of(1, 10_000_000), of(2, 8_000_000), of(4, 5_714_286)], false);
        let further = |x| find(&lines, x, Series::RingGroups).further_ns;
        assert_eq!(further(1), None);
        assert!((further(2).unwrap() - 25.0).abs() < 0.01 && (further(4).unwrap() - 25.0).abs() < 0.01);
        assert_eq!(find(&lines, 2, Series::RingGroups).of_one.unwrap().median, 1.6);
    }

    #[test]
    fn what_rules_decided_about_counts_and_is_held_against_one_rule() {
        let of = |x, round, absorbed| Point {
            absorbed,
            lost: 0,
            offered: absorbed,
            ..point(Study::PreciseRules, Series::RuleSpread, x, round, 0)
        };
        let lines =
            summarise(&[of(1, 0, 1000), of(40_000, 0, 900), of(1, 1, 500), of(40_000, 1, 450)], false);
        let many = find(&lines, 40_000, Series::RuleSpread);
        assert_eq!((many.of_one.unwrap().median, many.pps.high), (0.9, 900.0));
        // Half a second of CPU time.
        assert!((many.receiver_ns - f64::midpoint(0.5e9 / 900.0, 0.5e9 / 450.0)).abs() < 1.0);
    }

    #[test]
    fn imbalance_is_the_busiest_over_the_mean() {
        assert_eq!(imbalance(&[10, 10]), Some(1.0));
        assert_eq!(imbalance(&[30, 10]), Some(1.5));
        assert_eq!(imbalance(&[0, 0]), None);
        assert_eq!(imbalance(&[]), None);
        let mut skewed = point(Study::Skew, Series::Static, 2, 0, 1000);
        skewed.analysis =
            Some(Analysis { steered: vec![400, 600], steered_late: vec![100, 300], ..Analysis::default() });
        let lines = summarise(&[skewed], false);
        assert_eq!((lines[0].imbalance, lines[0].imbalance_late), (Some(1.2), Some(1.5)));
        assert_eq!(lines[0].shares_late, [0.75, 0.25]);
        assert_eq!((lines[0].imbalance_settled, lines[0].reordered), (None, None));
    }

    #[test]
    fn the_elephants_worker_stands_aside_where_it_cannot_but_have_more() {
        assert_eq!(imbalance_aside(&[400, 150, 300, 150], Some(0)), Some(1.5));
        assert_eq!(imbalance_aside(&[400, 200], Some(0)), None);
        assert_eq!(imbalance_aside(&[400, 150, 300, 150], None), None);
        assert_eq!(imbalance_aside(&[], Some(0)), None);
        let trial = |round, reordered| {
            let analysis = Analysis {
                steered_late: vec![1, 1, 6],
                steered_settled: vec![2, 2, 8],
                reordered: Some(reordered),
                elephant: Some(2),
                ..Analysis::default()
            };
            let skewed = point(Study::Skew, Series::Adaptive, 3, round, 1000);
            Point { analysis: Some(analysis), ..skewed }
        };
        let lines = summarise(&[trial(0, 1), trial(1, 2)], false);
        assert_eq!((lines[0].imbalance_late, lines[0].aside_late), (Some(2.25), Some(1.0)));
        assert_eq!((lines[0].imbalance_settled, lines[0].aside_settled), (Some(2.0), Some(1.0)));
        assert_eq!(lines[0].reordered, Some(3), "of all rounds");
    }
}
