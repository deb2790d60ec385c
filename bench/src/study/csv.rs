//! The trials of the studies as CSV.

use std::fmt::Write as _;

use super::summary::Line;
use super::{FULL_SPEED, Point};

const COLUMNS: &str = "study,round,setup,load,x,receiver,asked_pps,offered,device_dropped,copies,received,lost,shed,filtered,absorbed,unaccounted,\
duration_s,span_s,received_pps,analysed_pps,receiver_cpu_s,napi_cpu_s,generator_cpu_s,late_flows,late_flows_whole,\
steered,steered_late,steered_settled,elephant_worker,reordered,moves,others_share,steal_share,invalid,load_average\n";

/// Every trial, with the columns' names. Lists have semicolons between their values.
pub fn points(points: &[Point]) -> String {
    let mut text = COLUMNS.to_owned();
    for point in points {
        let list = |values: &[u64]| values.iter().map(ToString::to_string).collect::<Vec<_>>().join(";");
        let analysis = point.analysis.clone().unwrap_or_default();
        let flows = point
            .late_flows()
            .map_or_else(|| ",".to_owned(), |(touched, whole)| format!("{touched},{whole}"));
        let _ = writeln!(
            text,
            "{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{:.6},{},{:.0},{:.0},{:.6},{:.6},{:.6},{},{},{},{},{},{},{},{:.4},{:.4},{},{:.2}",
            point.study.name(),
            point.round + 1,
            point.setup.name(),
            point.load,
            if point.x == FULL_SPEED { "full".to_owned() } else { point.x.to_string() },
            point.series.name(),
            point.asked_pps.map_or_else(String::new, |pps| format!("{pps:.0}")),
            point.offered,
            point.device_dropped,
            point.copies,
            point.received,
            point.lost,
            point.shed,
            point.filtered,
            point.absorbed,
            point.unaccounted,
            point.duration_s,
            point.span_s.map_or_else(String::new, |span| format!("{span:.6}")),
            point.received_pps(),
            point.analysed_pps(),
            point.receiver_cpu_s,
            point.napi_cpu_s,
            point.generator_cpu_s,
            flows,
            list(&analysis.steered),
            list(&analysis.steered_late),
            list(&analysis.steered_settled),
            analysis.elephant.map_or_else(String::new, |worker| worker.to_string()),
            analysis.reordered.map_or_else(String::new, |packets| packets.to_string()),
            analysis.moves,
            point.others_share,
            point.steal_share,
            point.invalid.unwrap_or_default(),
            point.load_average,
        );
    }
    text
}

/// The medians.
pub fn summary(lines: &[Line]) -> String {
    let mut text = "study,setup,load,x,receiver,trials,offered_pps,median_pps,low_pps,high_pps,of_xdp_drop,of_one,of_most,\
whole_flows,lost_share,shed_share,device_share,receiver_ns_per_packet,ns_per_packet,ns_per_further,max_over_mean,\
max_over_mean_late,aside_late,max_over_mean_settled,aside_settled,reordered,moves,exact\n"
        .to_owned();
    let or_empty = |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:.4}"));
    for line in lines {
        let _ = writeln!(
            text,
            "{},{},{},{},{},{},{:.0},{:.0},{:.0},{:.0},{},{},{},{},{:.6},{:.6},{:.6},{:.1},{:.1},{},{},{},{},{},{},{},{},{}",
            line.study.name(),
            line.setup.name(),
            line.load,
            if line.x == FULL_SPEED { "full".to_owned() } else { line.x.to_string() },
            line.series.name(),
            line.trials,
            line.offered_pps,
            line.pps.median,
            line.pps.low,
            line.pps.high,
            or_empty(line.of_limit),
            or_empty(line.of_one.map(|spread| spread.median)),
            or_empty(line.of_most.map(|spread| spread.median)),
            or_empty(line.whole_flows.map(|spread| spread.median)),
            line.lost_share,
            line.shed_share,
            line.device_share,
            line.receiver_ns,
            line.kernel_ns,
            or_empty(line.further_ns),
            or_empty(line.imbalance),
            or_empty(line.imbalance_late),
            or_empty(line.aside_late),
            or_empty(line.imbalance_settled),
            or_empty(line.aside_settled),
            line.reordered.map_or_else(String::new, |packets| packets.to_string()),
            or_empty(line.moves),
            line.exact,
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::{Series, Study};

    #[test]
    fn every_line_has_a_field_for_every_column() {
        let point =
            crate::study::summary::tests::point(Study::Congestion, Series::Controlled, FULL_SPEED, 0, 9);
        let text = points(std::slice::from_ref(&point));
        let fields: Vec<usize> = text.lines().map(|line| line.split(',').count()).collect();
        assert_eq!((fields.len(), fields[0]), (2, fields[1]), "{text}");
        let medians = summary(&crate::study::summary::summarise(&[point], false));
        let counts: Vec<usize> = medians.lines().map(|line| line.split(',').count()).collect();
        assert_eq!((counts.len(), counts[0]), (2, counts[1]), "{medians}");
        assert!(
            text.lines()
                .nth(1)
                .unwrap()
                .starts_with("congestion,1,A,0,full,controlled,,1000,0,1,9,991,0,0,0,0,")
        );
    }
}
