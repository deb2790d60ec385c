//! The results as text: the table that is shown, and the page that is kept beside the numbers.

use std::fmt::Write as _;

use crate::bed::Setup;
use crate::machine::Machine;
use crate::options::Options;
use crate::run::Measured;
use crate::summary::{Line, LossFree};
use crate::trial::Load;

const EXPLANATION: &str = "\
A: generator and NAPI on one core, the receiver on the other, so each packet's whole cost in the kernel slows the \
generator. B: the generator alone on one core; NAPI's thread and the receiver share the other.

Live frames cost the generator little, so a receiver's own cost weighs more in the ratios than with an sk_buff for every \
packet. On a veth an sk_buff that shares its bytes, as a clone does, is copied before native XDP sees it \
(skb_pp_cow_data); receivers behind XDP do without that copy, so there XDP_DROP is no upper bound.

Priorities, for all receivers the same: at full speed generator, receiver and NAPI's thread have one nice value, each \
in an autogroup of the same value. In trials at a rate the generator and NAPI's thread have SCHED_FIFO priority 1 and \
the receiver has that nice value.

Medians over rounds; a ratio is the median of the ratios within each round. Trials in which the generator did not have \
its core, other programs used more than 8 % of a core, or the hypervisor took more than 2 %, are not counted and \
repeated at most twice; trials.csv has them too.
";

/// All of it, as Markdown whose tables can be read as they are.
pub fn page(options: &Options, machine: &Machine, measured: &Measured, lines: &[Line]) -> String {
    let mut page = format!("# Receivers in turn, {}\n\n```\n{}", machine.date, machine.text());
    let (before, after) = measured.load_average;
    let _ = writeln!(
        page,
        "run          {} rounds, {} s a trial, buffers of {} MiB, generator on core {}, receiver on core {}, nice {}\n\
         took         {:.0} s; load average {before:.2} before, {after:.2} after\n```\n",
        options.rounds,
        options.seconds,
        options.buffer,
        options.cores[0],
        options.cores[1],
        options.nice,
        measured.took_s,
    );
    page += EXPLANATION;
    for setup in &options.setups {
        for load in options.loads() {
            let of = |line: &&Line| (line.setup, line.load) == (*setup, load);
            let cell: Vec<&Line> = lines.iter().filter(of).collect();
            if !cell.is_empty() {
                page += &throughput(*setup, load, &cell);
            }
        }
    }
    if !measured.loss_free.is_empty() {
        page += &loss_free(&measured.loss_free);
    }
    if !measured.costs.is_empty() {
        page += "\n## Parts of a kernel program, warm, ns a packet\n\n";
        let rows = measured.costs.iter().map(|cost| {
            let ns = cost.ns;
            vec![
                cost.part.to_owned(),
                format!("{:.0}", ns.median),
                format!("{:.0} to {:.0}", ns.low, ns.high),
            ]
        });
        page += &table(&["part", "median", "spread"], rows);
    }
    page += &crate::patterns::page(&measured.searched);
    page += &crate::libpcap::report::page(&measured.compared);
    page += &crate::flow_caches::page(&measured.flow_caches);
    page += &crate::voip::page(&measured.voip);
    page += &crate::http::page(&measured.http);
    page += &crate::flow_rates::page(&measured.flow_rates, measured.flow_caches.hit());
    page += &crate::stored::page(&measured.stored);
    page += &faults(measured, lines);
    page
}

fn throughput(setup: Setup, load: Load, lines: &[&Line]) -> String {
    let made = load.method.label();
    let mut text = format!("\n## Setup {}, {} bytes, {made}, full speed\n\n", setup.name(), load.size);
    let ratio = |value: Option<f64>| value.map_or_else(|| "-".into(), |value| format!("{value:.2}"));
    let rows = lines.iter().map(|line| {
        vec![
            line.receiver.label().to_owned(),
            format!("{:.3}", line.pps.median / 1e6),
            format!("{:.3} to {:.3}", line.pps.low / 1e6, line.pps.high / 1e6),
            ratio(line.of_limit),
            ratio(line.of_xsk),
            ratio(line.of_packet),
            format!("{:.1} %", line.lost_share * 100.0),
            format!("{:.0}", line.receiver_ns),
            if setup == Setup::B { format!("{:.0} %", line.napi_share * 100.0) } else { "-".into() },
            if line.exact { "exact" } else { "not exact" }.to_owned(),
        ]
    });
    let heads = [
        "receiver",
        "Mpps",
        "spread",
        "of XDP_DROP",
        "of AF_XDP",
        "of TPACKET_V3",
        "lost",
        "CPU ns",
        "NAPI",
        "account",
    ];
    text += &table(&heads, rows);
    text
}

fn loss_free(results: &[LossFree]) -> String {
    let mut text = "\n## Highest rates: no loss, and 0.5 % of it\n\n\
        Searched to 0.5 %, confirmed by longer trials; two of three trials decide. `>=`: the generator could not go \
        faster. A machine that stalls for a millisecond loses packets in the device's queue of 256 whatever receives \
        them: a rate without loss means something only as far as that of XDP_DROP is above it.\n\n\
        At twice the rate with 0.5 % loss: what was received, as a part of that rate (below 0.9: a collapse), and of \
        ours what was lost later than one second after the load fell to 0.8 of it.\n\n"
        .to_owned();
    let mut cells: Vec<(Setup, Load, crate::receiver::Receiver)> = Vec::new();
    for result in results {
        let cell = (result.setup, result.load, result.receiver);
        if !cells.contains(&cell) {
            cells.push(cell);
        }
    }
    let rows = cells.into_iter().map(|(setup, load, receiver)| {
        let of = |goal: f64| {
            let found = results.iter().find(|one| {
                (one.setup, one.load, one.receiver) == (setup, load, receiver) && one.found.goal == goal
            });
            found.map_or_else(|| "-".to_owned(), |one| rate(&one.found))
        };
        let cell = |one: &&LossFree| (one.setup, one.load, one.receiver) == (setup, load, receiver);
        let overload = results.iter().filter(cell).find_map(|one| one.overload);
        let share = |lost: f64| format!("{:.2} %", lost * 100.0);
        vec![
            receiver.label().to_owned(),
            format!("{} {}, {}", load.size, load.method.name(), setup.name()),
            of(0.0),
            of(0.005),
            overload.map_or_else(|| "-".into(), |over| format!("{:.2}", over.received_of_rate)),
            overload.and_then(|over| over.lost_after_recovery).map_or_else(|| "-".into(), share),
        ]
    });
    let heads =
        ["receiver", "frames, setup", "0 loss, Mpps", "0.5 % loss, Mpps", "at twice that", "lost after"];
    text += &table(&heads, rows);
    text
}

/// A rate in Mpps, and what bounds it.
pub fn rate(found: &crate::search::Found) -> String {
    use crate::search::Bound;
    match (found.rate, found.bound) {
        (None, Bound::Trials) => format!("not found in {} trials", found.trials + found.invalid),
        (None, _) => "none".into(),
        (Some(rate), Bound::Generator) => format!(">= {:.3}", rate / 1e6),
        (Some(rate), Bound::Loss) => format!("{:.3}", rate / 1e6),
        (Some(rate), Bound::Trials) => format!("{:.3}, unconfirmed", rate / 1e6),
    }
}

/// What was left out, what failed, and whose counters left packets over.
fn faults(measured: &Measured, lines: &[Line]) -> String {
    let mut notes: Vec<String> = Vec::new();
    if measured.cut_short {
        notes.push("a signal ended this run before it was done".to_owned());
    }
    for (receiver, reason) in &measured.left_out {
        notes.push(format!("left out: {} ({reason})", receiver.label()));
    }
    for (_, message) in &measured.failed {
        notes.push(format!("failed: {message}"));
    }
    for line in lines.iter().filter(|line| !line.exact) {
        notes.push(format!(
            "not exact: {}, setup {}, {} bytes, {}: its counters do not hold every packet; see trials.csv",
            line.receiver.label(),
            line.setup.name(),
            line.load.size,
            line.load.method.name()
        ));
    }
    let invalid = measured.trials.iter().filter(|(_, trial)| trial.invalid.is_some()).count();
    if invalid > 0 {
        let all = measured.trials.len();
        notes.push(format!(
            "not counted: {invalid} of {all} trials at full speed, which something else disturbed"
        ));
    }
    for one in measured.loss_free.iter().filter(|one| one.overload.is_some_and(|over| over.unaccounted != 0))
    {
        notes.push(format!("not exact at twice its rate: {}", one.receiver.label()));
    }
    if notes.is_empty() && measured.trials.is_empty() && measured.loss_free.is_empty() {
        return String::new();
    }
    if notes.is_empty() {
        return "\nEvery packet of every trial is accounted for, by every receiver.\n".into();
    }
    format!("\n## Notes\n\n- {}\n", notes.join("\n- "))
}

/// A Markdown table with aligned columns: the first to the left, the others to the right.
pub fn table(heads: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let rows: Vec<Vec<String>> = rows.collect();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain([heads[column].chars().count(), 3]).max().unwrap_or(3)
    };
    let widths: Vec<usize> = (0..heads.len()).map(width).collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut text = String::from("|");
        for (column, (cell, width)) in cells.zip(&widths).enumerate() {
            let _ = if column == 0 {
                write!(text, " {cell:<width$} |")
            } else {
                write!(text, " {cell:>width$} |")
            };
        }
        text + "\n"
    };
    let mut text = line(&mut heads.iter().copied());
    text.push('|');
    for (column, width) in widths.iter().enumerate() {
        text += &if column == 0 {
            format!(" {} |", "-".repeat(*width))
        } else {
            format!(" {}: |", "-".repeat(width - 1))
        };
    }
    text.push('\n');
    for row in &rows {
        text += &line(&mut row.iter().map(String::as_str));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_aligned() {
        let text = table(
            &["name", "n"],
            [vec!["a".to_owned(), "1".into()], vec!["longer".into(), "1234".into()]].into_iter(),
        );
        assert_eq!(text, "| name   |    n |\n| ------ | ---: |\n| a      |    1 |\n| longer | 1234 |\n");
    }
}
