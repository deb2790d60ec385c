//! The studies in docs/measured/receivers.md: a line for each, what there is to say in one, and the charts.

use super::report::{self, DISTURBED, middle, none, offered, percent, ratio};
use super::summary::Line;
use super::{FULL_SPEED, Series, Study};
use crate::bed::Setup;
use crate::machine::Machine;
use crate::options::Options;
use crate::report::table;

/// The overload that the page shows, in percent of what the analysis can do.
const TWICE: u32 = 200;

/// The studies of rules, or those of parallelism; empty where none of them was made. `folder`: the results as seen from
/// the page.
pub fn section(of_rules: bool, lines: &[Line], options: &Options, machine: &Machine, folder: &str) -> String {
    let studies = || Study::ALL.into_iter().filter(move |study| study.is_of_rules() == of_rules);
    let rows: Vec<Vec<String>> = studies().filter_map(|study| row(study, lines)).collect();
    if rows.is_empty() {
        return String::new();
    }
    let mut text = format!(
        "\n{}, Linux {}, {}. {}{}\n",
        if of_rules { "Rules and filters in the kernel" } else { "Parallelism" },
        machine.kernel,
        machine.date,
        report::cores(of_rules, options, machine),
        if options.disturbed { DISTURBED } else { "" }
    );
    text += &table(&["study", "what", "Wirelane", "beside it"], rows.into_iter());
    text.push('\n');
    for study in studies() {
        if lines.iter().any(|line| line.study == study) {
            text += &format!(
                "![{}]({folder}/{})\n\n",
                super::chart::title(study),
                super::chart::file_name(study)
            );
        }
    }
    text
}

fn row(study: Study, lines: &[Line]) -> Option<Vec<String>> {
    let of: Vec<&Line> = lines.iter().filter(|line| line.study == study).collect();
    // The setups of Table 2 are always in A.
    let (table_2, of): (Vec<&Line>, Vec<&Line>) =
        of.into_iter().partition(|line| line.series.is_of_table_2());
    let setup: Setup = of.iter().map(|line| line.setup).min()?;
    let of: Vec<&Line> = of.into_iter().filter(|line| line.setup == setup).collect();
    let of_one_reader = |series| {
        table_2.iter().find(|line| line.series == series).map_or_else(none, |line| middle(line.of_one))
    };
    let most = of.iter().map(|line| line.x).filter(|x| *x != FULL_SPEED).max()?;
    let at = |x: u32, series: Series| of.iter().copied().find(|line| (line.x, line.series) == (x, series));
    let of_one = |series| at(most, series).map_or_else(none, |line| middle(line.of_one));
    let of_limit = |x: u32, series: Series| at(x, series).map_or_else(none, |line| ratio(line.of_limit));
    let setup = setup.name();
    let row = |what: String, ours: String, beside: String| vec![study.name().to_owned(), what, ours, beside];
    Some(match study {
        Study::Queues => row(
            format!("{most} queues, of one; setup {setup}"),
            format!(
                "{}; a process per queue {}; Table 2 (d), of (a): {}",
                of_one(Series::Ring),
                of_one(Series::RingPerQueue),
                of_one_reader(Series::Tuned)
            ),
            format!(
                "AF_XDP {}; TPACKET_V3 {}; XDP_DROP {}; Table 2 (b) {}, (c) {}",
                of_one(Series::Xsk),
                of_one(Series::Fanout),
                of_one(Series::Drop),
                of_one_reader(Series::Locked),
                of_one_reader(Series::Unplaced)
            ),
        ),
        Study::Workers => row(
            format!("one queue, {most} workers, of one; setup {setup}"),
            of_one(Series::Ring),
            format!("TPACKET_V3 {}", of_one(Series::Fanout)),
        ),
        Study::Congestion => {
            let both = |wanted: Series| {
                let of = of.iter().filter(|line| (line.series, line.x) == (wanted, TWICE));
                let texts: Vec<String> = of
                    .map(|line| {
                        let whole = line.whole_flows.map_or_else(none, |whole| percent(whole.median));
                        let most = middle(line.of_most);
                        format!("{} loops: {most} of the most, {whole} of flows whole", line.load)
                    })
                    .collect();
                if texts.is_empty() { none() } else { texts.join("; ") }
            };
            row(
                format!("{} of what it can analyse; setup {setup}", offered(TWICE)),
                both(Series::Controlled),
                format!("without control {}", both(Series::Uncontrolled)),
            )
        }
        Study::Skew => {
            let late = |series| {
                at(most, series).map_or_else(none, |line| {
                    let (all, aside) =
                        line.imbalance_settled.map_or((line.imbalance_late, line.aside_late), |all| {
                            (Some(all), line.aside_settled)
                        });
                    let reordered = line.reordered.map_or_else(none, |packets| packets.to_string());
                    format!("{}, elephant's aside {}, reordered {reordered}", ratio(all), ratio(aside))
                })
            };
            row(
                format!("{most} workers and an elephant, busiest over mean; setup {setup}"),
                late(Series::Adaptive),
                format!("static {}", late(Series::Static)),
            )
        }
        Study::Sharing => {
            let cost = |series| {
                at(most, series)
                    .and_then(|line| line.further_ns)
                    .map_or_else(none, |ns| format!("{ns:.0} ns"))
            };
            row(
                format!("{most} applications, cost of a further one; setup {setup}"),
                cost(Series::RingGroups),
                format!("TPACKET_V3 {}; tcpdump {}", cost(Series::Packet), cost(Series::Tcpdump)),
            )
        }
        Study::PreciseRules => row(
            format!("{most} precise rules, of one; setup {setup}"),
            format!(
                "one of them hit {}; all hit in turn {}",
                of_one(Series::RuleHit),
                of_one(Series::RuleSpread)
            ),
            format!("one rule, of XDP_DROP: {}", of_limit(1, Series::RuleHit)),
        ),
        Study::WildcardRules => row(
            format!("{most} wildcard rules, the last hit, of one; setup {setup}"),
            format!(
                "others ask for other addresses {}; others miss by one field {}",
                of_one(Series::RulesApart),
                of_one(Series::RulesNear)
            ),
            format!("one rule, of XDP_DROP: {}", of_limit(1, Series::RulesApart)),
        ),
        Study::NamedSets => row(
            format!("a named set of {most} entries, of one; setup {setup}"),
            format!("no packet in it {}; all in turn {}", of_one(Series::SetMiss), of_one(Series::SetHit)),
            format!(
                "confirmed: {}; one entry, of XDP_DROP: {}",
                of_one(Series::SetSure),
                of_limit(1, Series::SetMiss)
            ),
        ),
        Study::Forwarding => {
            let mut sizes: Vec<u32> = of.iter().map(|line| line.x).collect();
            sizes.sort_unstable();
            sizes.dedup();
            let each = |series| {
                let size = |size: &u32| format!("{size} bytes {}", of_limit(*size, series));
                sizes.iter().map(size).collect::<Vec<_>>().join(", ")
            };
            row(
                format!("one flow of 256 forwarded, of XDP_DROP; setup {setup}"),
                each(Series::ForwardTaken),
                format!("the others left to the host's stack: {}", each(Series::ForwardLeft)),
            )
        }
        Study::Filters => {
            let rate = |series| {
                at(most, series).map_or_else(none, |line| {
                    format!("{:.2} Mpps, {:.0} ns of CPU", line.pps.median / 1e6, line.receiver_ns)
                })
            };
            row(
                format!("a tcpdump expression that wants 1 packet in {most}; setup {setup}"),
                format!("kernel {}; user space {}", rate(Series::FilterKernel), rate(Series::FilterWorker)),
                format!("tcpdump {}", rate(Series::Tcpdump)),
            )
        }
    })
}
