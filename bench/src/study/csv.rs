//! The trials of the studies as CSV.

use std::fmt::Write as _;

use super::{FULL_SPEED, Point, Study};

const COLUMNS: &str = "study,round,setup,x,receiver,asked_pps,offered,device_dropped,copies,received,lost,shed,unaccounted,\
duration_s,span_s,received_pps,analysed_pps,receiver_cpu_s,napi_cpu_s,generator_cpu_s,flows_touched,flows_whole,\
steered,steered_late,moves,others_share,steal_share,invalid,load_average\n";

/// Every trial, with the columns' names. Lists have semicolons between their values.
pub fn points(points: &[Point]) -> String {
    let mut text = COLUMNS.to_owned();
    for point in points {
        let list = |values: &[u64]| values.iter().map(ToString::to_string).collect::<Vec<_>>().join(";");
        let analysis = point.analysis.clone().unwrap_or_default();
        let flows_end = point.study == Study::Congestion;
        let flows = |count: u64| if flows_end { count.to_string() } else { String::new() };
        let _ = writeln!(
            text,
            "{},{},{},{},{},{},{},{},{},{},{},{},{},{:.6},{},{:.0},{:.0},{:.6},{:.6},{:.6},{},{},{},{},{},{:.4},{:.4},{},{:.2}",
            point.study.name(),
            point.round + 1,
            point.setup.name(),
            if point.x == FULL_SPEED { "full".to_owned() } else { point.x.to_string() },
            point.series.name(),
            point.asked_pps.map_or_else(String::new, |pps| format!("{pps:.0}")),
            point.offered,
            point.device_dropped,
            point.copies,
            point.received,
            point.lost,
            point.shed,
            point.unaccounted,
            point.duration_s,
            point.span_s.map_or_else(String::new, |span| format!("{span:.6}")),
            point.received_pps(),
            point.analysed_pps(),
            point.receiver_cpu_s,
            point.napi_cpu_s,
            point.generator_cpu_s,
            flows(analysis.flows_touched),
            flows(analysis.flows_whole),
            list(&analysis.steered),
            list(&analysis.steered_late),
            analysis.moves,
            point.others_share,
            point.steal_share,
            point.invalid.unwrap_or_default(),
            point.load_average,
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::Series;

    #[test]
    fn every_line_has_a_field_for_every_column() {
        let point =
            crate::study::summary::tests::point(Study::Congestion, Series::Controlled, FULL_SPEED, 0, 9);
        let text = points(&[point]);
        let fields: Vec<usize> = text.lines().map(|line| line.split(',').count()).collect();
        assert_eq!((fields.len(), fields[0]), (2, fields[1]), "{text}");
        assert!(
            text.lines().nth(1).unwrap().starts_with("congestion,1,A,full,controlled,,1000,0,1,9,991,0,0,")
        );
    }
}
