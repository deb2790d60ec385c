//! Results as tables of text and as CSV.

use std::fmt::Write as _;

use anyhow::Result;

use crate::duts::Duts;
use crate::schedule::Case;
use crate::search::Bound;
use crate::suite::{Named, Quantity, Suite};
use crate::summary::{Line, Spread, Summary};

/// Columns after the conditions.
const VALUES: [&str; 4] = ["captured kpps", "analysed kpps", "passed on kpps", "notes"];
/// Columns that are left out where they are empty in all lines.
const OPTIONAL: [&str; 5] = ["calls", "entries", "napi", "devices", "passed on kpps"];

/// Names of the columns with conditions.
fn conditions() -> Vec<String> {
    let names = Case::default().conditions().map(|(name, _)| name.to_owned());
    ["sensor".to_owned()].into_iter().chain(names).collect()
}

/// The words for a column, for people.
pub fn words(column: &str) -> &str {
    match column {
        "size" => "frame, bytes",
        "rate" => "offered",
        "loops" => "loops per packet",
        "queues" => "RX queues",
        "napi" => "NAPI",
        other => other,
    }
}

/// Cell with a median in thousands.
fn kpps(line: &Line, quantity: Quantity) -> String {
    line.value(quantity).map_or_else(|| "-".to_owned(), |spread| format!("{:.1}", spread.median / 1e3))
}

/// Notes about a line, for people.
fn notes(line: &Line) -> String {
    let mut notes = Vec::new();
    for (goal, rate, bound) in &line.found {
        let rate = rate.map_or("no rate".to_owned(), |rate| format!("{:.0} kpps", rate.median / 1e3));
        let bound = match bound {
            Bound::Generator => " (the generator's most)",
            Bound::Trials => " (unconfirmed)",
            Bound::Loss => "",
        };
        notes.push(format!("loss {} %: {rate}{bound}", goal * 100.0));
    }
    for (reference, ratio) in &line.of {
        notes.push(format!("{ratio:.2} of {reference}"));
    }
    notes.extend(line.of_first.map(|ratio| format!("{ratio:.2} of the first")));
    if let (Some(captured), lost) = line.overload {
        let lost = lost.map_or(String::new(), |lost| format!(", then {:.2} % lost", lost.median * 100.0));
        notes.push(format!("at twice that {:.2} of it{lost}", captured.median));
    }
    let captured = line.value(Quantity::Captured);
    if let Some(loss) = line.value(Quantity::Loss).filter(|loss| loss.median > 0.0) {
        notes.push(format!("loss {:.2} %", loss.median * 100.0));
    }
    let has_packets = captured.is_some_and(|captured| captured.median > 0.0);
    if let Some(cpu) = line.value(Quantity::Cpu).filter(|_| has_packets) {
        let [user, kernel, napi] = line.cpu_parts.unwrap_or_default();
        let napi = if napi > 0.0 { format!(" + NAPI {napi:.0}") } else { String::new() };
        notes.push(format!("{:.0} ns/packet (user {user:.0} + kernel {kernel:.0}{napi})", cpu.median));
    }
    if let Some(idle) = line.value(Quantity::Idle).filter(|_| has_packets) {
        notes.push(format!("idle {:.0} %", idle.median * 100.0));
    }
    for (name, value) in &line.figures {
        notes.push(format!("{name} {}", (value.median * 1000.0).round() / 1000.0));
    }
    if line.disturbed {
        notes.push("disturbed".to_owned());
    }
    if line.left_out > 0 {
        let all = if captured.is_none() && line.found.is_empty() { "all " } else { "" };
        notes.push(format!("{all}{} left out", line.left_out));
    }
    notes.join(", ")
}

/// Cells of a line with its conditions.
fn cells(line: &Line) -> Vec<String> {
    let values = line.case.conditions().map(|(_, value)| value.unwrap_or_else(|| "-".to_owned()));
    [line.case.sensor.clone()].into_iter().chain(values).collect()
}

/// Table with a header, and a row for each line.
pub fn rows(summary: &Summary) -> Vec<Vec<String>> {
    let mut rows = vec![[conditions(), VALUES.map(str::to_owned).to_vec()].concat()];
    rows.extend(summary.lines.iter().map(|line| {
        let values = [Quantity::Captured, Quantity::Analysed, Quantity::PassedOn];
        [cells(line), values.map(|quantity| kpps(line, quantity)).to_vec(), vec![notes(line)]].concat()
    }));
    let is_kept = |(at, name): (usize, &String)| {
        !OPTIONAL.contains(&name.as_str()) || rows[1..].iter().any(|row| row[at] != "-")
    };
    let kept: Vec<bool> = rows[0].iter().enumerate().map(is_kept).collect();
    for row in &mut rows {
        let mut kept = kept.iter();
        row.retain(|_| *kept.next().unwrap_or(&true));
    }
    rows
}

/// The whole summary as text.
pub fn table(suite: &Suite, summary: &Summary) -> String {
    let rows = rows(summary);
    let columns = rows[0].len();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = format!("{}\n\n", suite.title);
    for row in &rows {
        let mut line = String::new();
        for (at, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let space = " ".repeat(width - cell.chars().count());
            // Names are aligned to the left, numbers to the right.
            let is_name = at == 0 || at + 1 == columns;
            line += &if is_name { format!("{cell}{space}  ") } else { format!("{space}{cell}  ") };
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    if !summary.judgements.is_empty() {
        text += "\nPublished conclusions:\n";
    }
    for judgement in &summary.judgements {
        let _ = writeln!(text, "  {}", judgement.sentence());
    }
    for (conditions, said) in &summary.said {
        let _ = writeln!(text, "\n{conditions}, analysed:");
        for sentence in said {
            let _ = writeln!(text, "  {sentence}");
        }
    }
    for (name, why) in &summary.skipped {
        let _ = writeln!(text, "{name}: skipped, {why}");
    }
    if !summary.faults.is_empty() {
        let _ = writeln!(text, "\n{} trials went wrong:", summary.faults.len());
        for fault in &summary.faults {
            let _ = writeln!(text, "  {fault}");
        }
    }
    if summary.missing > 0 {
        let _ = writeln!(text, "\n{} trials are not there yet: go on with --resume", summary.missing);
    }
    text
}

/// Text like `a=1.000000; b=2.000000`.
fn list<'a>(all: impl Iterator<Item = (&'a String, f64)>) -> String {
    all.map(|(name, value)| format!("{name}={value:.6}")).collect::<Vec<_>>().join("; ")
}

/// Medians and their ranges as CSV.
pub fn csv(sensors: &Duts, summary: &Summary) -> Result<String> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let quantities = [
        Quantity::Captured,
        Quantity::Analysed,
        Quantity::Loss,
        Quantity::Cpu,
        Quantity::PassedOn,
        Quantity::Generator,
        Quantity::Idle,
    ];
    let mut head = conditions();
    head.extend(["title", "trials", "left_out", "disturbed", "goal", "found_pps"].map(str::to_owned));
    for quantity in quantities {
        head.extend(["", "_low", "_high"].map(|end| format!("{}{end}", quantity.name())));
    }
    head.extend(["of_references", "of_first", "overload", "lost_after", "figures"].map(str::to_owned));
    writer.write_record(&head)?;
    for line in &summary.lines {
        let title = sensors.get(&line.case.sensor).map_or("", |adapter| adapter.title.as_str());
        let goals: Vec<(String, String)> = if line.found.is_empty() {
            vec![(String::new(), String::new())]
        } else {
            let number =
                |rate: &Option<Spread>| rate.map_or(String::new(), |rate| format!("{:.0}", rate.median));
            line.found.iter().map(|(goal, rate, _)| (goal.to_string(), number(rate))).collect()
        };
        for (goal, rate) in goals {
            let mut row = cells(line);
            row.extend([
                title.to_owned(),
                line.trials.to_string(),
                line.left_out.to_string(),
                line.disturbed.to_string(),
                goal,
                rate,
            ]);
            for quantity in quantities {
                match line.value(quantity) {
                    Some(spread) => {
                        row.extend([spread.median, spread.low, spread.high].map(|n| format!("{n:.6}")))
                    }
                    None => row.extend([String::new(), String::new(), String::new()]),
                }
            }
            let number = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.6}"));
            row.extend([
                list(line.of.iter().map(|(name, ratio)| (name, *ratio))),
                number(line.of_first),
                number(line.overload.0.map(|spread| spread.median)),
                number(line.overload.1.map(|spread| spread.median)),
                list(line.figures.iter().map(|(name, value)| (name, value.median))),
            ]);
            writer.write_record(&row)?;
        }
    }
    Ok(String::from_utf8(writer.into_inner()?)?)
}
