//! Statements about curves over the offered rate: the capacity of each sensor, its loss of capacity under more load,
//! and the rates from which one sensor is ahead of another.

use std::collections::BTreeMap;

use crate::chart;
use crate::duts::Duts;
use crate::suite::{Axis, Quantity, Rate, Suite};
use crate::summary::{Line, Summary};

/// Two sensors that differ by less than this fraction of the higher value are equal: it is the spread of repetitions.
const EQUAL: f64 = 0.05;

/// Results under the same conditions, except for the rate and the sensor.
struct Group<'s> {
    name: String,
    curves: Vec<Curve<'s>>,
}

/// Packets that a sensor analysed per second, by packets offered per second, in order.
struct Curve<'s> {
    title: &'s str,
    points: Vec<(f64, f64)>,
}

/// Sentences with the conditions to which they apply; empty if a suite has no such curves.
pub fn sentences(suite: &Suite, sensors: &Duts, summary: &Summary) -> Vec<(String, Vec<String>)> {
    let draws = chart::charts(suite)
        .iter()
        .any(|chart| chart.quantity == Quantity::Analysed && chart.over == Some(Axis::Rate));
    if !draws {
        return Vec::new();
    }
    let mut all = Vec::new();
    for group in groups(suite, sensors, summary) {
        let mut said: Vec<String> = group.curves.iter().filter_map(alone).collect();
        for (at, one) in group.curves.iter().enumerate() {
            said.extend(group.curves[..at].iter().filter_map(|other| against(one, other)));
        }
        if !said.is_empty() {
            all.push((group.name, said));
        }
    }
    all
}

fn groups<'s>(suite: &Suite, sensors: &'s Duts, summary: &'s Summary) -> Vec<Group<'s>> {
    let mut groups: Vec<Group<'s>> = Vec::new();
    let paced = summary.lines.iter().filter(|line| matches!(line.case.rate, Rate::Pps(_)));
    for line in paced {
        let (Some(offered), Some(analysed)) = (line.place(Axis::Rate), line.value(Quantity::Analysed)) else {
            continue;
        };
        let title = sensors.get(&line.case.sensor).map_or(&*line.case.sensor, |adapter| &*adapter.title);
        let name = conditions(line);
        let at = groups.iter().position(|group| group.name == name).unwrap_or_else(|| {
            groups.push(Group { name, curves: Vec::new() });
            groups.len() - 1
        });
        let curves = &mut groups[at].curves;
        let point = (offered, analysed.median);
        match curves.iter_mut().find(|curve| curve.title == title) {
            Some(curve) => curve.points.push(point),
            None => curves.push(Curve { title, points: vec![point] }),
        }
    }
    let places: Vec<&str> =
        suite.sensors.iter().filter_map(|name| Some(&*sensors.get(name)?.title)).collect();
    for group in &mut groups {
        group.curves.sort_by_key(|curve| places.iter().position(|title| *title == curve.title));
    }
    for curve in groups.iter_mut().flat_map(|group| &mut group.curves) {
        curve.points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    groups
}

/// All conditions of a case except the sensor, the rate, and settings that a sensor does not support.
fn conditions(line: &Line) -> String {
    let case = &line.case;
    let cores: Vec<String> = case.cores.iter().map(ToString::to_string).collect();
    let mut words = Vec::new();
    words.extend(case.loops.map(|loops| format!("{loops} loops")));
    words.push(format!("core{} {}", if cores.len() == 1 { "" } else { "s" }, cores.join("+")));
    words.extend(case.size.map(|size| format!("{size} bytes")));
    words.extend(case.calls.map(|calls| format!("{calls} calls")));
    if case.queues > 1 {
        words.push(format!("{} RX queues", case.queues));
    }
    words.join(", ")
}

fn kpps(pps: f64) -> String {
    format!("{:.0} kpps", pps / 1e3)
}

/// Capacity of one sensor, and its throughput under more load.
fn alone(curve: &Curve<'_>) -> Option<String> {
    let title = curve.title;
    let (at, peak) =
        curve.points.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.total_cmp(&a.0)))?;
    if peak <= 0.0 {
        return Some(format!("{title}: analysed nothing"));
    }
    let beyond =
        curve.points.iter().filter(|(offered, _)| *offered >= 2.0 * peak).map(|(_, value)| value / peak);
    let least = beyond.fold(f64::INFINITY, f64::min);
    let rest = if least.is_finite() {
        format!("{least:.2} of that or more at twice as much and beyond")
    } else {
        "twice as much was not offered".to_owned()
    };
    Some(format!("{title}: at most {}, at {} offered; {rest}", kpps(peak), kpps(at)))
}

/// Ranges of rates in which one sensor is ahead of another, over the rates that both were offered.
fn against(one: &Curve<'_>, other: &Curve<'_>) -> Option<String> {
    let theirs: BTreeMap<u64, f64> = other.points.iter().map(|(at, value)| (*at as u64, *value)).collect();
    let both = one.points.iter().filter_map(|(at, value)| Some((*at, *value, *theirs.get(&(*at as u64))?)));
    // Ranges of rates with the same relation: relation, start, end, and maximum factor.
    let mut stretches: Vec<(&str, f64, f64, f64)> = Vec::new();
    for (at, ours, theirs) in both {
        let (low, high) = (ours.min(theirs), ours.max(theirs));
        let what = if high - low <= EQUAL * high {
            "equal"
        } else if ours > theirs {
            "ahead"
        } else {
            "behind"
        };
        let times = if low > 0.0 { high / low } else { f64::INFINITY };
        match stretches.last_mut().filter(|last| last.0 == what) {
            Some(last) => (last.2, last.3) = (at, last.3.max(times)),
            None => stretches.push((what, at, at, times)),
        }
    }
    let told: Vec<String> = stretches
        .iter()
        .map(|(what, from, to, times)| {
            let rates = match from == to {
                true => format!("at {}", kpps(*from)),
                false => format!("from {:.0} to {}", from / 1e3, kpps(*to)),
            };
            let times = match *what {
                "equal" => String::new(),
                _ => format!(", {times:.2} times at most"),
            };
            format!("{what} {rates}{times}")
        })
        .collect();
    (!told.is_empty()).then(|| format!("{} against {}: {}", one.title, other.title, told.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(title: &str, points: impl IntoIterator<Item = (u32, u32)>) -> Curve<'_> {
        let points = points.into_iter().map(|(at, value)| (f64::from(at) * 1e3, f64::from(value) * 1e3));
        Curve { title, points: points.collect() }
    }

    #[test]
    fn a_curve_has_a_peak_and_what_is_left_of_it() {
        let falls = curve("a", [(100, 100), (200, 160), (300, 150), (400, 80), (500, 96)]);
        let text =
            "a: at most 160 kpps, at 200 kpps offered; 0.50 of that or more at twice as much and beyond";
        assert_eq!(alone(&falls).unwrap(), text);
        let flat = curve("b", [(100, 100), (200, 160), (300, 160)]);
        assert_eq!(
            alone(&flat).unwrap(),
            "b: at most 160 kpps, at 200 kpps offered; twice as much was not offered"
        );
        assert_eq!(alone(&curve("c", [(100, 0)])).unwrap(), "c: analysed nothing");
        assert_eq!(alone(&curve("d", [])), None);
    }

    #[test]
    fn where_one_is_ahead_is_told_by_stretches() {
        let one = curve("a", [(100, 100), (200, 196), (300, 280), (400, 300), (600, 100)]);
        let other = curve("b", [(100, 100), (200, 200), (300, 200), (400, 150), (500, 150), (600, 150)]);
        assert_eq!(
            against(&one, &other).unwrap(),
            "a against b: equal from 100 to 200 kpps; ahead from 300 to 400 kpps, 2.00 times at most; behind at 600 \
             kpps, 1.50 times at most"
        );
        assert_eq!(against(&one, &curve("c", [(150, 1)])), None);
    }
}
