//! The results as text and CSV.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::{Cell, Compared, Whose};
use crate::report::table;
use crate::search::{Bound, Found};
use crate::summary::Spread;

const EXPLANATION: &str = "\
The same programs on the system's libpcap, on Wirelane's (`wirelane run`), and on Wirelane's with `wirelane run --take`. \
Traffic: live frames of 256 flows. Full speed: Mpps that were judged, neither dropped by the device's queue nor lost, while \
the generator made as many as it could; the ratio to the system's is the median of those within each round. Mpps without \
loss, and with 0.5 %: every packet made was judged, and every one wanted was received; with `?` unconfirmed. Packets go on to \
the host's stack, also those that a filter rejects, but where they are taken. Time for each packet judged: at full speed, the \
program's and that of NAPI's thread (in setup B), which is what the capture and the host's stack cost; and the program's where \
all run at the same rate, in turn.
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

/// The table: a row for each library.
pub fn cells(cells: &[Cell]) -> String {
    let heads = [
        "program",
        "setup",
        "bytes",
        "libpcap",
        "full speed",
        "ratio",
        "0 loss",
        "ratio",
        "0.5 %",
        "ratio",
        "target",
        "full speed, program ns",
        "NAPI ns",
        "same rate, program ns",
    ];
    let row = |cell: &Cell, whose: Whose| {
        let target = cell.work.target();
        let of = |goal: usize, whose| cell.found.get(&whose).and_then(|found| found.get(goal));
        let ratio = |goal: usize| ratio(of(goal, Whose::System), of(goal, whose), whose, target);
        let spread = |of: &BTreeMap<Whose, Spread>, show: &dyn Fn(f64) -> String| {
            of.get(&whose).map_or_else(|| "-".into(), |spread| show(spread.median))
        };
        vec![
            cell.work.label().to_owned(),
            cell.setup.name().to_owned(),
            cell.size.to_string(),
            whose.label().to_owned(),
            spread(&cell.full, &|pps| format!("{:.3}", pps / 1e6)),
            spread(&cell.ratios, &|ratio| judged(ratio, whose, target)),
            rate(of(1, whose)),
            ratio(1),
            rate(of(0, whose)),
            ratio(0),
            if whose.is_ours() { format!("{target:.1}") } else { "-".into() },
            spread(&cell.full_ns, &|ns| format!("{ns:.0}")),
            spread(&cell.napi_ns, &|ns| format!("{ns:.0}")),
            spread(&cell.cpu_ns, &|ns| format!("{ns:.0}")),
        ]
    };
    let rows = cells.iter().flat_map(|cell| {
        let with = Whose::ALL
            .into_iter()
            .filter(|whose| cell.full.contains_key(whose) || cell.found.contains_key(whose));
        with.map(move |whose| row(cell, whose))
    });
    table(&heads, rows)
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

/// Of ours it says whether the target was missed.
fn judged(ratio: f64, whose: Whose, target: f64) -> String {
    if ratio >= target || !whose.is_ours() { format!("{ratio:.2}") } else { format!("{ratio:.2}, missed") }
}

/// Its rate to the system's.
fn ratio(system: Option<&Found>, its: Option<&Found>, whose: Whose, target: f64) -> String {
    match (system.and_then(|found| found.rate), its.and_then(|found| found.rate)) {
        (Some(system), Some(its)) if whose != Whose::System => judged(its / system, whose, target),
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
