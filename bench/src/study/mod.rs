//! The studies. Of parallelism: how what is received grows with RX queues and workers, what is analysed under
//! overload, how skewed flows are balanced, and what it costs that several applications share a device. Of rules: how
//! the rate falls with their number, what it takes to forward few flows, and a filter in the kernel and outside.
//!
//! ```text
//! run      each study's cells, in interleaved rounds
//! rules    rule files and expressions, and what they leave of the traffic
//! trial    one trial: receivers' processes, the generator's, and the account of every packet
//! summary  medians, and ratios within the same round
//! report, short, chart, csv
//! ```
//!
//! Ours is `wirelane-bench receive ring` here, which is built on the library and tells what `wirelane count` does not:
//! how many flows were analysed whole, how evenly workers were loaded in the second half of a trial, and what a filter
//! in the application left.

pub mod chart;
pub mod csv;
pub mod report;
pub mod rules;
pub mod run;
pub mod short;
pub mod summary;
pub mod trial;

use serde::Serialize;

use crate::bed::Setup;
use crate::flows::WHOLE;
use crate::options::Part;

/// A study.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Study {
    /// RX queues, each to a worker of its own.
    Queues,
    /// One RX queue to several workers.
    Workers,
    /// Overload of the analysis, with and without congestion control.
    Congestion,
    /// Flows that differ in size, with and without adaptive balance.
    Skew,
    /// Several applications on one device.
    Sharing,
    /// Precise rules: one to many.
    PreciseRules,
    /// Wildcard rules: one to many, of which the last one is hit.
    WildcardRules,
    /// Named sets: one entry to many.
    NamedSets,
    /// Rules that leave one flow of 256.
    Forwarding,
    /// The same expression in our engine, in tcpdump's socket and in the application.
    Filters,
}

impl Study {
    /// All of them, in the order of a run.
    pub const ALL: [Study; 10] = [
        Study::Queues,
        Study::Workers,
        Study::Congestion,
        Study::Skew,
        Study::Sharing,
        Study::PreciseRules,
        Study::WildcardRules,
        Study::NamedSets,
        Study::Forwarding,
        Study::Filters,
    ];

    /// Its name in options and files.
    pub fn name(self) -> &'static str {
        match self {
            Study::Queues => "queues",
            Study::Workers => "workers",
            Study::Congestion => "congestion",
            Study::Skew => "skew",
            Study::Sharing => "sharing",
            Study::PreciseRules => "precise-rules",
            Study::WildcardRules => "wildcard-rules",
            Study::NamedSets => "named-sets",
            Study::Forwarding => "forwarding",
            Study::Filters => "filters",
        }
    }

    /// The part of a run that it is.
    pub fn part(self) -> Part {
        match self {
            Study::Queues => Part::Queues,
            Study::Workers => Part::Workers,
            Study::Congestion => Part::Congestion,
            Study::Skew => Part::Skew,
            Study::Sharing => Part::Sharing,
            Study::PreciseRules
            | Study::WildcardRules
            | Study::NamedSets
            | Study::Forwarding
            | Study::Filters => Part::Rules,
        }
    }

    /// Whether it is one of rules and filters; the others are of parallelism.
    pub fn is_of_rules(self) -> bool {
        self.part() == Part::Rules
    }
}

/// Who receives in a study, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Series {
    /// XDP_DROP: the limit.
    Drop,
    /// Ours, one capture with several workers.
    Ring,
    /// Ours, a process per RX queue, each on its virtual device.
    RingPerQueue,
    /// Fusco and Deri's Table 2: one queue, one reader.
    OneReader,
    /// One queue, two readers that share a lock.
    Locked,
    /// Two queues, two readers, nobody placed.
    Unplaced,
    /// Two queues with a kernel thread each, two readers, all placed by `tune`.
    Tuned,
    /// Ours, a process per application, each of which gets all.
    RingGroups,
    /// Ours, without congestion control.
    Uncontrolled,
    /// Ours, with it.
    Controlled,
    /// Ours, flows stay where they are.
    Static,
    /// Ours, buckets of flows move.
    Adaptive,
    /// AF_XDP, a socket per RX queue.
    Xsk,
    /// TPACKET_V3, sockets that share the packets.
    Fanout,
    /// TPACKET_V3, sockets that each get all.
    Packet,
    /// tcpdump, processes that each get all.
    Tcpdump,
    /// Ours, all packets hit the same precise rule.
    RuleHit,
    /// Ours, packets hit all precise rules in turn.
    RuleSpread,
    /// Ours, no address of a packet is one that the wildcard rules before its own ask for.
    RulesApart,
    /// Ours, the wildcard rules before the packets' own fit but for one field.
    RulesNear,
    /// Ours, no packet's address is in the set.
    SetMiss,
    /// Ours, every packet's address is in the set, all entries in turn.
    SetHit,
    /// The same, looked up in the table of entries too.
    SetSure,
    /// Ours, what is not forwarded is counted and taken from the host's stack.
    ForwardTaken,
    /// Ours, what is not forwarded is dropped by a rule, and so left to the host's stack.
    ForwardLeft,
    /// Ours, a filter in the kernel.
    FilterKernel,
    /// Ours, the same filter in the application.
    FilterWorker,
}

impl Series {
    /// Its name in files.
    pub fn name(self) -> &'static str {
        match self {
            Series::Drop => "drop",
            Series::Ring => "ring",
            Series::RingPerQueue => "ring-per-queue",
            Series::OneReader => "one-reader",
            Series::Locked => "locked",
            Series::Unplaced => "unplaced",
            Series::Tuned => "tuned",
            Series::RingGroups => "ring-groups",
            Series::Uncontrolled => "uncontrolled",
            Series::Controlled => "controlled",
            Series::Static => "static",
            Series::Adaptive => "adaptive",
            Series::Xsk => "xsk",
            Series::Fanout => "fanout",
            Series::Packet => "packet",
            Series::Tcpdump => "tcpdump",
            Series::RuleHit => "rule-hit",
            Series::RuleSpread => "rule-spread",
            Series::RulesApart => "rules-apart",
            Series::RulesNear => "rules-near",
            Series::SetMiss => "set-miss",
            Series::SetHit => "set-hit",
            Series::SetSure => "set-sure",
            Series::ForwardTaken => "forward-taken",
            Series::ForwardLeft => "forward-left",
            Series::FilterKernel => "filter-kernel",
            Series::FilterWorker => "filter-worker",
        }
    }

    /// As people read it.
    pub fn label(self) -> &'static str {
        match self {
            Series::Drop => "XDP_DROP, counting",
            Series::Ring => "Wirelane, one capture",
            Series::RingPerQueue => "Wirelane, a process per eth@N",
            Series::OneReader => "(a) one queue, one reader",
            Series::Locked => "(b) one queue, two readers, a lock",
            Series::Unplaced => "(c) two queues, not placed",
            Series::Tuned => "(d) queue threads, placed by tune",
            Series::RingGroups => "Wirelane, groups",
            Series::Uncontrolled => "without congestion control",
            Series::Controlled => "with congestion control",
            Series::Static => "static",
            Series::Adaptive => "adaptive balance",
            Series::Xsk => "AF_XDP copy, socket per queue",
            Series::Fanout => "TPACKET_V3, PACKET_FANOUT",
            Series::Packet => "TPACKET_V3 sockets",
            Series::Tcpdump => "tcpdump",
            Series::RuleHit => "all packets hit one rule",
            Series::RuleSpread => "packets of all rules' flows",
            Series::RulesApart => "others ask for other addresses",
            Series::RulesNear => "others miss by one field",
            Series::SetMiss => "no packet is in the set",
            Series::SetHit => "all packets are in the set",
            Series::SetSure => "the same, confirmed",
            Series::ForwardTaken => "Wirelane, the others taken",
            Series::ForwardLeft => "Wirelane, the others to the stack",
            Series::FilterKernel => "Wirelane, filter in the kernel",
            Series::FilterWorker => "Wirelane, filter in user space",
        }
    }

    /// Whether it is ours, and an inexact account is thus a failure.
    pub fn is_ours(self) -> bool {
        !matches!(self, Series::Drop | Series::Xsk | Series::Fanout | Series::Packet | Series::Tcpdump)
    }

    /// Fusco and Deri's Table 2, and the RX queues that each of its setups has.
    pub const TABLE_2: [(Series, u32); 4] =
        [(Series::OneReader, 1), (Series::Locked, 1), (Series::Unplaced, 2), (Series::Tuned, 2)];

    /// Whether it is one of these.
    pub fn is_of_table_2(self) -> bool {
        Series::TABLE_2.iter().any(|(series, _)| *series == self)
    }

    /// Whom `of one` compares it with, where that has one queue, worker, application or rule.
    pub fn reference(self) -> Series {
        if self.is_of_table_2() { Series::OneReader } else { self }
    }

    /// Whether each of its receivers gets all packets.
    pub fn copies(self) -> bool {
        matches!(self, Series::RingGroups | Series::Packet | Series::Tcpdump)
    }
}

/// The offered rate as a percentage of the capacity; this one stands for full speed.
pub const FULL_SPEED: u32 = u32::MAX;

/// One trial of a study. Counts are packets; where several receivers each get all, those from `received` to
/// `unaccounted` are sums over them.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    /// The study.
    pub study: Study,
    /// Who did what where.
    pub setup: Setup,
    /// What varies: RX queues, workers, applications, the offered rate in percent of the capacity, rules, entries of a set,
    /// bytes of a frame (forwarding), or how many packets there are for one that is wanted (filters).
    pub x: u32,
    /// Loops that ours spun for each packet.
    pub load: u32,
    /// Who received.
    pub series: Series,
    /// The round, from 0.
    pub round: usize,
    /// The rate that was asked for; none: as fast as possible.
    pub asked_pps: Option<f64>,
    /// Handed to the kernel by the generator.
    pub offered: u64,
    /// Of these, dropped by the device's queue before the receiver's hook.
    pub device_dropped: u64,
    /// Receivers that each were to get all packets.
    pub copies: u64,
    /// Taken.
    pub received: u64,
    /// Found no room in a receiver's ring or buffer.
    pub lost: u64,
    /// Refused by congestion control.
    pub shed: u64,
    /// Rejected by a filter or rule, in the kernel or in the application. Of tcpdump's socket what it was not told of, as
    /// it does not count them.
    pub filtered: u64,
    /// Counted by a rule, and done with.
    pub absorbed: u64,
    /// In none of these places; a receiver that has too many does not make up for one that has too few. In the studies of
    /// rules also those that are in another place than the rules say.
    pub unaccounted: u64,
    /// Time for which the generator sent, in seconds.
    pub duration_s: f64,
    /// From the first packet that ours received to the end of the last one's analysis, in seconds.
    pub span_s: Option<f64>,
    /// CPU time of receivers' processes, of NAPI's threads (setup B) and of the generator, in seconds.
    pub receiver_cpu_s: f64,
    /// See `receiver_cpu_s`.
    pub napi_cpu_s: f64,
    /// See `receiver_cpu_s`.
    pub generator_cpu_s: f64,
    /// What ours told besides; of the only process, none where there are several.
    pub analysis: Option<crate::receive::Analysis>,
    /// Share of the cores that neither generator, receivers nor NAPI used.
    pub others_share: f64,
    /// The largest share of a core that the hypervisor took.
    pub steal_share: f64,
    /// Why this trial says nothing; none: it counts.
    pub invalid: Option<&'static str>,
    /// Load average of the machine.
    pub load_average: f64,
}

impl Point {
    /// Packets received per second, by all receivers together, while the generator sent.
    pub fn received_pps(&self) -> f64 {
        self.received as f64 / self.duration_s
    }

    /// Packets that were received, or that a filter or rule decided about.
    pub fn handled(&self) -> u64 {
        self.received + self.filtered + self.absorbed
    }

    /// These per second.
    pub fn handled_pps(&self) -> f64 {
        self.handled() as f64 / self.duration_s
    }

    /// Packets analysed per second of analysis, which goes on after the generator until the rings are empty.
    pub fn analysed_pps(&self) -> f64 {
        self.received as f64 / self.span_s.unwrap_or(0.0).max(self.duration_s)
    }

    /// Part of the packets that came to receivers' hooks.
    pub fn share(&self, packets: u64) -> f64 {
        packets as f64 / ((self.offered - self.device_dropped) * self.copies).max(1) as f64
    }

    /// Whether each packet is in exactly one place.
    pub fn is_exact(&self) -> bool {
        self.unaccounted == 0
    }

    /// Flows of the second half of the packets, when the ring has had time to fill: those of which anything was analysed,
    /// and those that were analysed whole. None where flows do not end.
    pub fn late_flows(&self) -> Option<(u64, u64)> {
        let flows = &self.analysis.as_ref().filter(|analysis| !analysis.flows.is_empty())?.flows;
        let sets = (self.offered / WHOLE) as usize;
        let late = flows.iter().take(sets).skip(sets / 2);
        Some(late.fold((0, 0), |sum, set| (sum.0 + set.0, sum.1 + set.1)))
    }

    /// Of the flows of which anything was analysed, the part that was analysed whole.
    pub fn whole_flows(&self) -> Option<f64> {
        let (touched, whole) = self.late_flows()?;
        (touched > 0).then(|| whole as f64 / touched as f64)
    }
}

/// The part of the packets that the one largest flow of the study of skew has.
pub const ELEPHANT: f64 = 0.4;

/// The largest of these over their mean: 1 is even.
pub fn imbalance(steered: &[u64]) -> Option<f64> {
    let sum: u64 = steered.iter().sum();
    let most = *steered.iter().max()?;
    (sum > 0).then(|| most as f64 * steered.len() as f64 / sum as f64)
}

/// The same where the elephant's own worker stands aside, since nothing can be taken from a flow: the busiest of the
/// others over their mean. Only where the elephant alone is more than a worker's even part.
pub fn imbalance_aside(steered: &[u64], elephant: Option<usize>) -> Option<f64> {
    let elephant = elephant.filter(|worker| *worker < steered.len())?;
    if ELEPHANT * steered.len() as f64 <= 1.0 {
        return None;
    }
    let mut others = steered.to_vec();
    others.remove(elephant);
    imbalance(&others)
}
