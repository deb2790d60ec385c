//! The studies as text: a table for each, and what it says and does not say on this machine.

use super::run::Studied;
use super::summary::Line;
use super::{FULL_SPEED, Study, rules};
use crate::machine::Machine;
use crate::options::Options;
use crate::report::table;
use crate::summary::Spread;

/// Targets: the rate with many precise rules, and with many wildcard rules, of that with one; with one flow of 256
/// forwarded, of XDP_DROP.
pub const MANY_PRECISE: f64 = 0.9;
/// See [`MANY_PRECISE`].
pub const MANY_WILDCARD: f64 = 0.8;
/// The rate with many entries of a named set, of that with one.
pub const MANY_ENTRIES: f64 = 0.9;
/// See [`MANY_PRECISE`].
pub const FORWARDED: f64 = 0.9;

pub(super) const DISTURBED: &str = "\n**Trials count here that other programs or the hypervisor disturbed (--disturbed): rates \
                         and ratios say little.**\n";

/// Who has which cores, and what that leaves out.
pub fn cores(of_rules: bool, options: &Options, machine: &Machine) -> String {
    if of_rules {
        return format!(
            "Processor: {}, {} cores. Generator and kernel on core {}, receiver on core {}.\n",
            machine.cpu, machine.cores, options.cores[0], options.cores[1]
        );
    }
    let workers = options.worker_cores();
    let list: Vec<String> = workers.iter().map(ToString::to_string).collect();
    let (cores, one) = if workers.len() == 1 { ("core", true) } else { ("cores", false) };
    let mut text = format!(
        "Processor: {}, {} cores. Generator on core {}; workers and receivers in turn on {cores} {}.",
        machine.cpu,
        machine.cores,
        options.cores[0],
        list.join(", ")
    );
    if one {
        text += " All workers share that one core, so nothing here can grow with their number: what these studies show \
                 on this machine is what several queues, workers and applications cost, and that the accounts hold.";
    } else if workers.len() < options.most {
        text += &format!(" More than {} workers share cores.", workers.len());
    }
    text + "\n"
}

/// All studies that were made, as Markdown.
pub fn page(options: &Options, machine: &Machine, lines: &[Line], studied: &Studied) -> String {
    let mut text = String::new();
    if studied.points.is_empty() {
        return text;
    }
    for of_rules in [false, true] {
        let made: Vec<(Study, Vec<&Line>)> = Study::ALL
            .into_iter()
            .filter(|study| study.is_of_rules() == of_rules)
            .map(|study| (study, lines.iter().filter(|line| line.study == study).collect()))
            .filter(|(_, lines): &(Study, Vec<&Line>)| !lines.is_empty())
            .collect();
        if made.is_empty() {
            continue;
        }
        text += &format!(
            "\n## Studies of {}\n\n{}\nRounds: {}. Medians, and ratios within the same round. Every trial accounts \
             for every packet: offered = dropped by the device's queue + received + lost + {}.\n{}",
            if of_rules { "rules" } else { "parallelism" },
            cores(of_rules, options, machine),
            options.rounds,
            if of_rules { "filtered + absorbed" } else { "shed" },
            if options.disturbed { DISTURBED } else { "" }
        );
        for (study, lines) in made {
            text += &section(study, options, &lines);
        }
    }
    text + &notes(options, lines, studied)
}

fn section(study: Study, options: &Options, lines: &[&Line]) -> String {
    let (heading, explanation) = match study {
        Study::Queues => (
            "RX queues, each to a worker of its own",
            "The generator's one core spreads bursts of cloned sk_buffs over the queues. \"A process per eth@N\" is Fusco \
             and Deri's arrangement: an application for each virtual device, pinned. In setup B each queue has a NAPI \
             thread on its worker's core. `of one`: of the same receiver with one queue. (a) to (d) are the setups of \
             Fusco and Deri's Table 2, whose readers only count: in (b) each reader copies a batch under the lock; in \
             (c) the scheduler places the readers; in (d) each queue has a NAPI thread, and `tune` places threads and \
             readers; `of one`: of (a). Target: (d) beats all others, which takes cores for its threads."
                .to_owned(),
        ),
        Study::Workers => (
            "One RX queue to several workers, by flow",
            "Live frames of 4096 flows at full speed. Target: 8 workers at 0.9 of one or more, where each has a core."
                .to_owned(),
        ),
        Study::Congestion => (
            "Overload of the analysis",
            format!(
                "A worker that spins {} loops a packet, offered parts of what it can analyse with a core of its own; flows \
                 of 16 packets, 256 at a time. `analysed`: packets per second of analysis, until the ring is empty. \
                 `of most`: of the highest rate of those loops, that setup and round, with or without control. `whole flows`: of the \
                 flows of which anything was analysed, those of which all was, in the second half of a trial, \
                 when the ring has filled; where the device's queue drops packets nobody has whole flows. Targets at \
                 overload: 0.95 and 95 %. In setup B at a rate each packet may wake NAPI's thread, whose way in and \
                 out takes more of the worker's core than the packets do; at full speed it handles many in one go.",
                options.load.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or ")
            ),
        ),
        Study::Skew => (
            "Skewed flows over workers",
            "One flow, the elephant, has 40 % of the packets, and 4096 others the rest, the k-th as much as goes with 1/k; \
             at 0.5 of what the workers' cores can analyse with 1000 loops a packet. `max/mean`: packets steered to the \
             busiest worker over the mean; 1 is even. `aside`: of the workers but the elephant's, from which nothing \
             more can be taken once it has only that flow; where the elephant is more than an even part. In the second \
             half of a trial, and from 2 s after its first packet on, where it lasts so long. Target from then on: 1.10 \
             aside. `reordered`: packets of all trials that were analysed after a later one of their flow; must be 0."
                .to_owned(),
        ),
        Study::Sharing => (
            "Applications that share a device",
            "Each gets every packet of the same 4096 flows. `Mpps together` adds up what all received. `ns a packet`: \
             the generator's time per packet, within which in setup A the kernel brings it to all applications; `per \
             further`: how much each application after the first adds."
                .to_owned(),
        ),
        Study::PreciseRules => (
            "Precise rules",
            format!(
                "Rules that ask for both addresses, both ports and the protocol, of which each counts what hits it: in \
                 the packets of one flow all hit the same rule, those of all rules' flows hit each in turn, so that \
                 none is in the processor's caches once there are many. `of one`: of one rule in the same round. \
                 Target: {MANY_PRECISE}. `ns a packet`: the generator's time, within which the kernel judges."
            ),
        ),
        Study::WildcardRules => (
            "Wildcard rules",
            format!(
                "All packets hit the last rule, which counts them. The rules before it ask for addresses that no packet \
                 has, as lists of hosts and networks do; or they fit but for one of four fields, so that no field alone \
                 rules many of them out. `of one`: of one rule. Target: {MANY_WILDCARD}."
            ),
        ),
        Study::NamedSets => (
            "Named sets",
            format!(
                "A rule asks whether the destination is in a set, by the kernel's bloom filter with its default share of \
                 false positives: of no packet it is, or of all packets, entry by entry, so that nothing is in the \
                 processor's caches once there are many; or the same with confirmation, by a hash table of all \
                 entries. Each packet is counted, whatever comes of it. `of one`: of one entry in the same round. \
                 Target: {MANY_ENTRIES}."
            ),
        ),
        Study::Forwarding => (
            "One flow of 256 forwarded",
            format!(
                "4096 flows, with a precise rule for each: 16 are delivered. The others are counted and taken, which is \
                 what XDP_DROP does with all; target: {FORWARDED} of it. Or they are dropped by their rules, which leaves \
                 them to the host's stack: it makes an sk_buff of each, whoever captures, and XDP_DROP is no bound."
            ),
        ),
        Study::Filters => (
            "A filter in the kernel and in user space",
            format!(
                "`{}` and the like, which wants so many of the packets. Nobody takes packets from the host's stack. \
                 `Mpps`: packets judged. `ns a packet`: the generator's time, within which the kernel judges and the \
                 stack gets the packet; `CPU ns`: that of the receiver's process on its own core. tcpdump's socket does \
                 not count what it rejects: its account is that it was told of exactly what the expression wants.",
                rules::expression(rules::FILTERED[1])
            ),
        ),
    };
    let mut text = format!("\n### {heading} (`{}`)\n\n{explanation}\n\n", study.name());
    let rows = lines.iter().map(|line| row(study, line));
    text += &table(heads(study), rows);
    text
}

fn heads(study: Study) -> &'static [&'static str] {
    match study {
        Study::Queues => &[
            "receiver",
            "setup",
            "queues",
            "Mpps",
            "spread",
            "of XDP_DROP",
            "of one",
            "lost",
            "CPU ns",
            "account",
        ],
        Study::Workers => {
            &["receiver", "setup", "workers", "Mpps", "spread", "of one", "lost", "CPU ns", "account"]
        }
        Study::Congestion => &[
            "Wirelane",
            "setup",
            "loops",
            "offered",
            "kpps offered",
            "kpps analysed",
            "of most",
            "spread",
            "whole flows",
            "shed",
            "lost",
            "device",
            "account",
        ],
        Study::Skew => &[
            "Wirelane",
            "setup",
            "workers",
            "Mpps",
            "max/mean, half",
            "aside, half",
            "max/mean, 2 s",
            "aside, 2 s",
            "reordered",
            "moves",
            "lost",
            "account",
        ],
        Study::Sharing => &[
            "receiver",
            "setup",
            "applications",
            "Mpps together",
            "spread",
            "of one",
            "ns a packet",
            "per further",
            "lost",
            "CPU ns",
            "account",
        ],
        Study::PreciseRules | Study::WildcardRules => &[
            "traffic and rules",
            "setup",
            "rules",
            "Mpps",
            "spread",
            "of one",
            "of XDP_DROP",
            "ns a packet",
            "account",
        ],
        Study::NamedSets => &[
            "packets",
            "setup",
            "entries",
            "Mpps",
            "spread",
            "of one",
            "of XDP_DROP",
            "ns a packet",
            "account",
        ],
        Study::Forwarding => &[
            "receiver",
            "setup",
            "bytes",
            "Mpps",
            "spread",
            "of XDP_DROP",
            "ns a packet",
            "lost",
            "CPU ns",
            "account",
        ],
        Study::Filters => {
            &["filter", "setup", "wanted", "Mpps", "spread", "ns a packet", "lost", "CPU ns", "account"]
        }
    }
}

fn row(study: Study, line: &Line) -> Vec<String> {
    let label = line.series.label().to_owned();
    let setup = line.setup.name().to_owned();
    let account = if line.exact { "exact" } else { "not exact" }.to_owned();
    let spread = |unit: f64| format!("{:.3} to {:.3}", line.pps.low / unit, line.pps.high / unit);
    let mpps = format!("{:.3}", line.pps.median / 1e6);
    let lost = percent(line.lost_share);
    let ns = format!("{:.0}", line.receiver_ns);
    let of_one = middle(line.of_one);
    let count = line.x.to_string();
    let of_limit = ratio(line.of_limit);
    let kernel_ns = format!("{:.0}", line.kernel_ns);
    match study {
        Study::Queues => {
            vec![label, setup, count, mpps, spread(1e6), of_limit, of_one, lost, ns, account]
        }
        Study::Workers => vec![label, setup, count, mpps, spread(1e6), of_one, lost, ns, account],
        Study::Congestion => vec![
            label,
            setup,
            line.load.to_string(),
            offered(line.x),
            format!("{:.0}", line.offered_pps / 1e3),
            format!("{:.1}", line.pps.median / 1e3),
            middle(line.of_most),
            line.of_most.map_or_else(none, |most| format!("{:.2} to {:.2}", most.low, most.high)),
            line.whole_flows.map_or_else(none, |whole| percent(whole.median)),
            percent(line.shed_share),
            lost,
            percent(line.device_share),
            account,
        ],
        Study::Skew => vec![
            label,
            setup,
            count,
            mpps,
            ratio(line.imbalance_late),
            ratio(line.aside_late),
            ratio(line.imbalance_settled),
            ratio(line.aside_settled),
            line.reordered.map_or_else(none, |packets| packets.to_string()),
            line.moves.map_or_else(none, |moves| format!("{moves:.0}")),
            lost,
            account,
        ],
        Study::Sharing => vec![
            label,
            setup,
            count,
            mpps,
            spread(1e6),
            of_one,
            kernel_ns,
            line.further_ns.map_or_else(none, |ns| format!("{ns:.0}")),
            lost,
            ns,
            account,
        ],
        Study::PreciseRules | Study::WildcardRules | Study::NamedSets => {
            vec![label, setup, count, mpps, spread(1e6), of_one, of_limit, kernel_ns, account]
        }
        Study::Forwarding => {
            vec![label, setup, count, mpps, spread(1e6), of_limit, kernel_ns, lost, ns, account]
        }
        Study::Filters => {
            let wanted = format!("1 in {count}");
            vec![label, setup, wanted, mpps, spread(1e6), kernel_ns, lost, ns, account]
        }
    }
}

/// A value that there is not.
pub(super) fn none() -> String {
    "-".to_owned()
}

/// A ratio.
pub(super) fn ratio(value: Option<f64>) -> String {
    value.map_or_else(none, |value| format!("{value:.2}"))
}

/// The median of ratios.
pub(super) fn middle(value: Option<Spread>) -> String {
    ratio(value.map(|spread| spread.median))
}

/// A part as a percentage.
pub(super) fn percent(part: f64) -> String {
    format!("{:.1} %", part * 100.0)
}

/// An offered rate of the study of congestion.
pub fn offered(x: u32) -> String {
    if x == FULL_SPEED { "full speed".to_owned() } else { format!("{:.1}x", f64::from(x) / 100.0) }
}

/// What was left out, what failed, what did not count.
fn notes(options: &Options, lines: &[Line], studied: &Studied) -> String {
    let mut notes: Vec<String> = studied.left_out.iter().map(|one| format!("left out: {one}")).collect();
    notes.extend(studied.failed.iter().map(|(_, message)| format!("failed: {message}")));
    for line in lines.iter().filter(|line| !line.exact) {
        notes.push(format!(
            "not exact: {}, {}, setup {}, {}: its counters do not hold every packet; see studies.csv",
            line.study.name(),
            line.series.label(),
            line.setup.name(),
            line.x
        ));
    }
    let invalid = studied.points.iter().filter(|point| point.invalid.is_some()).count();
    if invalid > 0 {
        let all = studied.points.len();
        notes.push(if options.disturbed {
            format!(
                "something else disturbed {invalid} of {all} trials, which count all the same (--disturbed)"
            )
        } else {
            format!("not counted: {invalid} of {all} trials, which something else disturbed")
        });
    }
    if notes.is_empty() {
        return "\nEvery packet of every trial of the studies is accounted for.\n".to_owned();
    }
    format!("\nOf the studies:\n\n- {}\n", notes.join("\n- "))
}
