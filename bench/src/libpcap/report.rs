//! The results as text and CSV.

use std::fmt::Write as _;

use super::{Cell, Compared};
use crate::report::table;
use crate::search::{Bound, Found};
use crate::summary::Spread;

const EXPLANATION: &str = "\
The same programs on the system's libpcap and on Wirelane's (`wirelane run`). Traffic: live frames of 256 flows. Full \
speed: Mpps that were judged, neither dropped by the device's queue nor lost, while the generator made as many as it could; \
the ratio is the median of those within each round. Mpps without loss, and with 0.5 %: every packet made was judged, and \
every one wanted was received; with `?` unconfirmed. Packets go on to the host's stack with both libraries, also those that \
a filter rejects. CPU: the program's time for each packet judged, both libraries at the same rate, in turn.
";

/// The part of the page; empty where nothing was measured.
pub fn page(compared: &Compared) -> String {
    if compared.cells.is_empty() && compared.failed.is_empty() {
        return String::new();
    }
    let mut page = format!("\n## Programs of libpcap's (`libpcap`)\n\n{EXPLANATION}\n");
    page += &cells(&compared.cells);
    let invalid = compared.points.iter().filter(|point| point.invalid.is_some()).count();
    let _ =
        writeln!(page, "\n{invalid} of {} trials were disturbed by other programs.", compared.points.len());
    for failed in &compared.failed {
        let _ = writeln!(page, "\nFailed: {failed}");
    }
    page
}

/// The table.
pub fn cells(cells: &[Cell]) -> String {
    let heads = [
        "program",
        "setup",
        "bytes",
        "full speed, system's",
        "Wirelane's",
        "ratio",
        "0 loss, system's",
        "Wirelane's",
        "ratio",
        "0.5 %, system's",
        "Wirelane's",
        "ratio",
        "target",
        "CPU ns, system's",
        "Wirelane's",
    ];
    let row = |cell: &Cell| {
        let [lenient, strict] = [0, 1].map(|goal| (cell.system.get(goal), cell.ours.get(goal)));
        let ns = |spread: Option<Spread>| {
            spread.map_or_else(|| "-".into(), |spread| format!("{:.0}", spread.median))
        };
        vec![
            cell.work.label().to_owned(),
            cell.setup.name().to_owned(),
            cell.size.to_string(),
            mpps(cell.full[0]),
            mpps(cell.full[1]),
            cell.full[2].map_or_else(|| "-".into(), |ratio| judged(ratio.median, cell.work.target())),
            rate(strict.0),
            rate(strict.1),
            ratio(strict, cell.work.target()),
            rate(lenient.0),
            rate(lenient.1),
            ratio(lenient, cell.work.target()),
            format!("{:.1}", cell.work.target()),
            ns(cell.system_ns),
            ns(cell.ours_ns),
        ]
    };
    table(&heads, cells.iter().map(row))
}

fn rate(found: Option<&Found>) -> String {
    match found.map(|found| (found.rate, found.bound)) {
        None => "-".into(),
        Some((None, Bound::Loss | Bound::Generator)) => "none".into(),
        Some((None, Bound::Trials)) => "not found".into(),
        Some((Some(rate), Bound::Generator)) => format!(">= {:.3}", rate / 1e6),
        Some((Some(rate), Bound::Loss)) => format!("{:.3}", rate / 1e6),
        Some((Some(rate), Bound::Trials)) => format!("{:.3}?", rate / 1e6),
    }
}

fn mpps(spread: Option<Spread>) -> String {
    spread.map_or_else(|| "-".into(), |spread| format!("{:.3}", spread.median / 1e6))
}

fn judged(ratio: f64, target: f64) -> String {
    if ratio >= target { format!("{ratio:.2}") } else { format!("{ratio:.2}, missed") }
}

/// Ours to the system's, and whether the target is met.
fn ratio(found: (Option<&Found>, Option<&Found>), target: f64) -> String {
    let rates = (found.0.and_then(|found| found.rate), found.1.and_then(|found| found.rate));
    match rates {
        (Some(system), Some(ours)) => judged(ours / system, target),
        _ => "-".into(),
    }
}

/// Every trial.
pub fn csv(compared: &Compared) -> String {
    let mut text =
        "setup,work,library,size,asked_pps,offered,device_dropped,wanted,received,lost,duration_s,\
                    receiver_cpu_s,napi_cpu_s,generator_cpu_s,receiver_ns_per_packet,loss,invalid\n"
            .to_owned();
    for point in &compared.points {
        let _ = writeln!(
            text,
            "{},{:?},{:?},{},{},{},{},{},{},{},{:.6},{:.6},{:.6},{:.6},{:.1},{:.6},{}",
            point.setup.name(),
            point.work,
            point.whose,
            point.size,
            point.asked_pps.map(|pps| format!("{pps:.0}")).unwrap_or_default(),
            point.offered,
            point.device_dropped,
            point.wanted,
            point.received,
            point.lost,
            point.duration_s,
            point.receiver_cpu_s,
            point.napi_cpu_s,
            point.generator_cpu_s,
            point.receiver_ns(),
            point.loss(),
            point.invalid.unwrap_or_default(),
        );
    }
    text
}
