//! HTTP logs side by side, as text and as CSV.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::{GOALS, Measured, Point, Who};
use crate::bed::Setup;
use crate::report::table;
use crate::search::{Bound, Found};
use crate::summary::Spread;

const EXPLANATION: &str = "\
nginx's answers to wrk, recorded once and replayed as from a mirror port, as sk_buffs of a packet socket, evenly spaced; a \
veth copies each before native XDP sees it. A request is logged where it is in the log with its response. Full speed: \
thousand requests a second in the log while the generator goes as fast as it can. Without loss, and with 0.5 %: the highest \
rates, in thousand requests a second, at which all that the server has logged is in the log (`>=`: the generator could not go \
faster; `?`: unconfirmed). At one rate, four fifths of the lowest: microseconds of CPU time for each request, of the process \
and of NAPI's thread (setup B; in setup A NAPI's work is the generator's); and the share of packets that came up.
";

/// The part of the page; empty where nothing was measured.
pub fn page(measured: &Measured) -> String {
    if measured.recorded.is_none() && measured.failed.is_empty() {
        return String::new();
    }
    let mut page = format!("\n## HTTP logs side by side (`http`)\n\n{EXPLANATION}\n");
    if let Some([packets, bytes, requests]) = measured.recorded {
        let _ = writeln!(
            page,
            "The recording: {requests} requests, {packets} packets, {:.1} MB: {:.1} packets a request.\n",
            bytes as f64 / 1e6,
            packets as f64 / requests as f64
        );
    }
    page += &rows(measured);
    let all = [&measured.full, &measured.searched, &measured.costs];
    let invalid = all.iter().flat_map(|points| points.iter()).filter(|point| point.invalid.is_some()).count();
    let _ = writeln!(
        page,
        "\n{invalid} of {} trials were disturbed by other programs, or not at their rate.",
        all.iter().map(|points| points.len()).sum::<usize>()
    );
    for (_, failed) in &measured.failed {
        let _ = writeln!(page, "\nfailed: {failed}");
    }
    page
}

fn rows(measured: &Measured) -> String {
    let heads = [
        "setup, log",
        "full speed",
        "0 loss",
        "of httpry",
        "0.5 %",
        "of httpry",
        "process us",
        "NAPI us",
        "generator us",
        "came up",
    ];
    let setups: BTreeSet<Setup> = measured.full.iter().map(|point| point.setup).collect();
    let cells = setups.into_iter().flat_map(|setup| Who::ALL.map(|who| (setup, who)));
    let of = |points: &[Point], (setup, who): (Setup, Who), value: &dyn Fn(&Point) -> f64| {
        let its = points.iter().filter(|point| (point.setup, point.who) == (setup, who));
        Spread::of(its.map(value).collect())
    };
    let requests = measured.recorded.map_or(0.0, |[packets, _, requests]| requests as f64 / packets as f64);
    let found = |cell: (Setup, Who), goal: usize| measured.found.get(&cell).and_then(|found| found.get(goal));
    let ratio = |(setup, who): (Setup, Who), goal: usize| {
        let its = found((setup, who), goal).and_then(|found| found.rate);
        match (its, found((setup, Who::Httpry), goal).and_then(|found| found.rate)) {
            (Some(its), Some(httpry)) if who.is_ours() => format!("{:.2}", its / httpry),
            _ => "-".into(),
        }
    };
    let rows = cells.filter_map(|cell| {
        let full = of(&measured.full, cell, &Point::logged_rps)?;
        let cost = |value: &dyn Fn(&Point) -> f64| {
            of(&measured.costs, cell, value).map_or("-".into(), |spread| format!("{:.1}", spread.median))
        };
        let came_up = of(&measured.costs, cell, &|point| {
            point.came_up.map_or(f64::NAN, |came_up| 100.0 * came_up as f64 / point.offered as f64)
        });
        let came_up = came_up.map_or(f64::NAN, |spread| spread.median);
        Some(vec![
            format!("{}, {}", cell.0.name(), cell.1.label()),
            format!("{:.1}", full.median / 1e3),
            rate(found(cell, 1), requests),
            ratio(cell, 1),
            rate(found(cell, 0), requests),
            ratio(cell, 0),
            cost(&|point| point.us_per_request()[0]),
            if cell.0 == Setup::B { cost(&|point| point.us_per_request()[1]) } else { "-".into() },
            cost(&|point| point.generator_cpu_s * 1e6 / point.logged.max(1) as f64),
            if came_up.is_nan() { "-".into() } else { format!("{came_up:.1} %") },
        ])
    });
    table(&heads, rows)
}

/// In thousand requests a second. `requests`: of a packet.
fn rate(found: Option<&Found>, requests: f64) -> String {
    let Some(found) = found else { return "-".into() };
    let Some(pps) = found.rate else {
        return if found.bound == Bound::Trials { "not found" } else { "none" }.into();
    };
    let text = format!("{:.2}", pps * requests / 1e3);
    match found.bound {
        Bound::Generator => format!(">= {text}"),
        Bound::Loss => text,
        Bound::Trials => text + "?",
    }
}

/// Every trial, and what the searches found.
pub fn csv(measured: &Measured) -> String {
    let mut text = "what,setup,who,asked_pps,offered,device_dropped,requests,logged,lost,came_up,duration_s,receiver_cpu_s,\
                    napi_cpu_s,generator_cpu_s,loss,invalid\n"
        .to_owned();
    let kinds = [("full", &measured.full), ("search", &measured.searched), ("cost", &measured.costs)];
    for (what, point) in kinds.iter().flat_map(|(what, points)| points.iter().map(move |point| (what, point)))
    {
        let number = |value: Option<f64>| value.map(|value| format!("{value:.0}")).unwrap_or_default();
        let _ = writeln!(
            text,
            "{what},{},{:?},{},{},{},{},{},{},{},{:.6},{:.6},{:.6},{:.6},{:.6},{}",
            point.setup.name(),
            point.who,
            number(point.asked_pps),
            point.offered,
            point.device_dropped,
            point.requests,
            point.logged,
            point.lost,
            number(point.came_up.map(|packets| packets as f64)),
            point.duration_s,
            point.receiver_cpu_s,
            point.napi_cpu_s,
            point.generator_cpu_s,
            point.loss(),
            point.invalid.unwrap_or_default(),
        );
    }
    for ((setup, who), found) in &measured.found {
        for (one, goal) in found.iter().zip(GOALS) {
            let _ = writeln!(
                text,
                "found {},{},{who:?},{},,,,,,,,,,,{goal},{}",
                one.trials,
                setup.name(),
                one.rate.map(|rate| format!("{rate:.0}")).unwrap_or_default(),
                one.bound.name()
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(who: Who, logged: u64) -> Point {
        Point {
            setup: Setup::B,
            who,
            asked_pps: Some(1e5),
            offered: 14_000,
            device_dropped: 0,
            requests: 1000,
            logged,
            lost: 0,
            came_up: who.is_ours().then_some(3500),
            duration_s: 0.5,
            receiver_cpu_s: 0.01,
            napi_cpu_s: 0.02,
            generator_cpu_s: 0.5,
            invalid: None,
        }
    }

    #[test]
    fn rates_are_of_requests_and_ratios_to_httpry() {
        let found = |rate: f64, bound| {
            GOALS.map(|goal| Found { goal, rate: Some(rate), bound, trials: 9, invalid: 0 }).to_vec()
        };
        let measured = Measured {
            recorded: Some([14_000, 12_000_000, 1000]),
            full: vec![point(Who::KernelNative, 1000), point(Who::Httpry, 900)],
            costs: vec![point(Who::KernelNative, 1000)],
            found: [
                ((Setup::B, Who::KernelNative), found(280_000.0, Bound::Generator)),
                ((Setup::B, Who::Httpry), found(70_000.0, Bound::Loss)),
            ]
            .into(),
            ..Measured::default()
        };
        let page = page(&measured);
        for part in
            [">= 20.00", " 5.00 |", " 4.00 |", " 10.0 |", " 20.0 |", "25.0 %", "14.0 packets a request"]
        {
            assert!(page.contains(part), "{part}: {page}");
        }
        assert!((point(Who::Httpry, 900).loss() - 0.1).abs() < 1e-9);
        let csv = csv(&measured);
        assert_eq!(csv.lines().count(), 1 + 3 + 4);
        assert!(csv.lines().all(|line| line.matches(',').count() == 15), "{csv}");
    }
}
