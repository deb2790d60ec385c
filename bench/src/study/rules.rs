//! What the studies of rules judge by: rule files, which a run makes for itself, and expressions; and what they leave of
//! a trial's packets, which its account must come to.
//!
//! All traffic is that of `wirelane send`: packet `n` is of flow `n % flows`, and flow `k` goes to the k-th address after
//! the first.

use std::fmt::Write as _;
use std::fs;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use anyhow::{Context, Result};
use wirelane_send::Traffic;

use super::{Series, Study};

/// Flows of the traffic, where there is not one for each rule.
pub const FLOWS: u32 = 4096;

/// Of so many flows one is forwarded.
pub const ONE_IN: u32 = 256;

/// Of so many packets a filter wants one: powers of two up to [`FLOWS`].
pub const FILTERED: [u32; 2] = [2, 256];

/// Numbers of precise and of wildcard rules.
pub const PRECISE: [u32; 4] = [1, 1000, 40_000, 1_000_000];
/// See [`PRECISE`].
pub const WILDCARD: [u32; 3] = [1, 1000, 4096];

/// The expression that wants one packet of so many: those of the first flows.
pub fn expression(one_in: u32) -> String {
    let prefix = 32 - (FLOWS / one_in).trailing_zeros();
    format!("udp and dst net {}/{prefix} and not port 53", Traffic::default().dst)
}

/// How many of the first so many packets are to be delivered.
fn wanted(study: Study, x: u32, packets: u64) -> u64 {
    match study {
        Study::Forwarding => packets.div_ceil(ONE_IN.into()),
        Study::Filters => {
            let (flows, first) = (u64::from(FLOWS), u64::from(FLOWS / x));
            packets / flows * first + (packets % flows).min(first)
        }
        _ => 0,
    }
}

/// What a receiver made of a trial's packets.
#[derive(Clone, Copy, Debug)]
pub struct Judged {
    /// What the generator made.
    pub offered: u64,
    /// What of it did not reach the receiver.
    pub device_dropped: u64,
    /// See [`super::Point`].
    pub received: u64,
    /// See [`super::Point`].
    pub lost: u64,
    /// See [`super::Point`].
    pub filtered: u64,
    /// See [`super::Point`].
    pub absorbed: u64,
}

/// At least how many packets are not where rules and filters say. What was dropped on the way may have been wanted or
/// not.
pub fn astray(study: Study, series: Series, x: u32, judged: &Judged) -> u64 {
    if !study.is_of_rules() || series == Series::Drop {
        return 0;
    }
    let wanted = wanted(study, x, judged.offered);
    let delivered = judged.received + judged.lost;
    // What an application lost it has not judged.
    let surely = if series == Series::FilterWorker { judged.received } else { delivered };
    let elsewhere = match series {
        Series::ForwardLeft | Series::FilterKernel | Series::FilterWorker | Series::Tcpdump => {
            judged.absorbed
        }
        _ => judged.filtered,
    };
    wanted.saturating_sub(judged.device_dropped + delivered) + surely.saturating_sub(wanted) + elsewhere
}

/// Numbers of entries of a named set.
pub const ENTRIES: [u32; 3] = [1, 1000, 1_000_000];

/// Which packets' destinations are in the named set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InSet {
    /// None: the entries are other addresses.
    None,
    /// Those of as many flows as there are entries.
    All,
    /// The same, of a set that confirms.
    Confirmed,
}

/// How the wildcard rules before the packets' own one fail to fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Others {
    /// They ask for addresses that no packet has, as lists of hosts and networks do.
    Apart,
    /// They fit but for one field, not all for the same one. In each field most of them fit, and no word of them is
    /// ruled out by one field alone.
    Near,
}

/// What becomes of the flows that are not forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// Counted by their rules, and taken from the host's stack.
    Counted,
    /// Dropped by their rules: left to the stack.
    Dropped,
}

/// Rule files in a folder of their own, which is removed at the end. A file that is there already stays.
#[derive(Debug)]
pub struct RuleFiles {
    folder: PathBuf,
}

impl RuleFiles {
    /// No files so far.
    pub fn new() -> RuleFiles {
        RuleFiles {
            folder: std::env::temp_dir().join(format!("wirelane-bench-rules-{}", std::process::id())),
        }
    }

    /// So many precise rules, one for each of as many flows, which all count.
    ///
    /// # Errors
    /// Where a file cannot be written, as of the others.
    pub fn precise(&self, rules: u32) -> Result<PathBuf> {
        let table = format!("precise-{rules}.csv");
        self.write(&table, &|| flows_csv(0..rules))?;
        self.write(&format!("precise-{rules}.toml"), &|| precise_table(1, &table, "count"))
    }

    /// So many wildcard rules, of which the last one fits all packets and counts them. The others would drop them.
    ///
    /// # Errors
    /// See [`RuleFiles::precise`].
    pub fn wildcard(&self, rules: u32, others: Others) -> Result<PathBuf> {
        self.write(&format!("wildcard-{rules}-{others:?}.toml"), &|| wildcard(rules, others))
    }

    /// A set of so many addresses, which a rule asks; whatever comes of it, the packet is counted.
    ///
    /// # Errors
    /// See [`RuleFiles::precise`].
    pub fn named_set(&self, entries: u32, which: InSet) -> Result<PathBuf> {
        let list = if which == InSet::None {
            format!("strange-{entries}.txt")
        } else {
            format!("hosts-{entries}.txt")
        };
        self.write(&list, &|| {
            let host = |n| if which == InSet::None { strange(n) } else { destination(n) };
            (0..entries).map(|n| format!("{}\n", host(n))).collect()
        })?;
        self.write(&format!("set-{entries}-{which:?}.toml"), &|| named_set(&list, which == InSet::Confirmed))
    }

    /// A precise rule for each flow: one of [`ONE_IN`] passes.
    ///
    /// # Errors
    /// See [`RuleFiles::precise`].
    pub fn forwarding(&self, rest: Rest) -> Result<PathBuf> {
        let is_forwarded = |flow: &u32| flow.is_multiple_of(ONE_IN);
        let (forwarded, others) = ("forwarded.csv", "others.csv");
        self.write(forwarded, &|| flows_csv((0..FLOWS).filter(is_forwarded)))?;
        self.write(others, &|| flows_csv((0..FLOWS).filter(|flow| !is_forwarded(flow))))?;
        let action = match rest {
            Rest::Counted => "count",
            Rest::Dropped => "drop",
        };
        self.write(&format!("forwarding-{rest:?}.toml"), &|| {
            precise_table(1, forwarded, "pass") + &precise_table(FLOWS + 1, others, action)
        })
    }

    fn write(&self, name: &str, text: &dyn Fn() -> String) -> Result<PathBuf> {
        let path = self.folder.join(name);
        if !path.exists() {
            fs::create_dir_all(&self.folder)
                .and_then(|()| fs::write(&path, text()))
                .with_context(|| path.display().to_string())?;
        }
        Ok(path)
    }
}

impl Drop for RuleFiles {
    fn drop(&mut self) {
        // Where none were made there is no folder.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The destination of a flow.
fn destination(flow: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(u32::from(Traffic::default().dst) + flow)
}

/// An address that no packet goes to.
fn strange(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(u32::from(Ipv4Addr::new(100, 64, 0, 0)) + number)
}

/// What the bloom filter takes for an entry by mistake is counted like the rest, so that the account stays exact.
fn named_set(list: &str, confirm: bool) -> String {
    format!(
        "[[sets]]\nname = \"set\"\nentries = \"@{list}\"\nconfirm = {confirm}\n\n\
         [[rule]]\nid = 1\ndst-in = \"set\"\naction = \"count\"\n\n[[rule]]\nid = 2\naction = \"count\"\n"
    )
}

/// The destinations of these flows, as a table of precise rules.
fn flows_csv(flows: impl Iterator<Item = u32>) -> String {
    let mut text = "dst\n".to_owned();
    for flow in flows {
        let _ = writeln!(text, "{}", destination(flow));
    }
    text
}

/// The precise rules of a table, with what else is the same in all packets.
fn precise_table(id: u32, table: &str, action: &str) -> String {
    let Traffic { src, src_port, dst_port, .. } = Traffic::default();
    format!(
        "[[precise]]\nid = {id}\nfile = \"{table}\"\nsrc = \"{src}\"\nsrc-port = {src_port}\ndst-port = {dst_port}\n\
         protocol = \"udp\"\naction = \"{action}\"\n\n"
    )
}

fn wildcard(rules: u32, others: Others) -> String {
    let Traffic { src, dst, src_port, dst_port, .. } = Traffic::default();
    // All that packets have, and of each rule a network and a port that they do not have.
    let all = format!("{dst}/{}", 32 - FLOWS.trailing_zeros());
    let fitting = [
        format!("src = \"{src}\""),
        format!("dst = \"{all}\""),
        format!("src-port = {src_port}"),
        format!("dst-port = {dst_port}"),
    ];
    let mut text = String::new();
    for number in 0..rules - 1 {
        let network = |first: [u8; 2]| {
            let [.., third, fourth] = number.to_be_bytes();
            format!("{}.{}.{fourth}.0/24", first[0], first[1] + third)
        };
        let strange = [
            format!("src = \"{}\"", network([172, 16])),
            format!("dst = \"{}\"", network([100, 64])),
            format!("src-port = {}", 20_000 + number),
            format!("dst-port = {}", 40_000 + number),
        ];
        let which = (number % 4) as usize;
        let fields = match others {
            // A source, a destination with a service, a destination alone, or services of a source.
            Others::Apart => match which {
                0 => vec![strange[0].clone()],
                1 => vec![strange[1].clone(), strange[3].clone()],
                2 => vec![strange[1].clone()],
                _ => vec![strange[0].clone(), format!("dst-port = \"{}-{}\"", 1024 + number, 1034 + number)],
            },
            Others::Near => {
                let mut fields = fitting.to_vec();
                fields[which].clone_from(&strange[which]);
                fields
            }
        };
        let _ = writeln!(
            text,
            "[[rule]]\nid = {}\n{}\nprotocol = \"udp\"\naction = \"drop\"\n",
            number + 1,
            fields.join("\n")
        );
    }
    let [_, dst, _, dst_port] = fitting;
    let _ =
        writeln!(text, "[[rule]]\nid = {rules}\n{dst}\nprotocol = \"udp\"\n{dst_port}\naction = \"count\"\n");
    text
}

#[cfg(test)]
mod tests {
    use wirelane::rules::{Action, RuleSet};

    use super::*;

    #[test]
    fn expressions_want_the_first_flows() {
        assert_eq!(expression(1), "udp and dst net 10.1.0.0/20 and not port 53");
        assert_eq!(expression(256), "udp and dst net 10.1.0.0/28 and not port 53");
        let of = |x, packets| wanted(Study::Filters, x, packets);
        assert_eq!((of(2, 4096), of(256, 4096), of(256, 4097), of(256, 5000)), (2048, 16, 17, 32));
        let of = |packets| wanted(Study::Forwarding, 60, packets);
        assert_eq!((of(0), of(1), of(256), of(257)), (0, 1, 1, 2));
        assert_eq!(wanted(Study::PreciseRules, 1000, 9999), 0);
    }

    #[test]
    fn packets_where_the_rules_do_not_want_them_are_astray() {
        let all =
            Judged { offered: 2560, device_dropped: 0, received: 8, lost: 2, filtered: 0, absorbed: 2550 };
        let of = |series, judged: Judged| astray(Study::Forwarding, series, 60, &judged);
        assert_eq!(of(Series::ForwardTaken, all), 0);
        assert_eq!(of(Series::ForwardTaken, Judged { received: 9, absorbed: 2549, ..all }), 1);
        assert_eq!(of(Series::ForwardTaken, Judged { received: 7, absorbed: 2551, ..all }), 1);
        assert_eq!(of(Series::ForwardTaken, Judged { received: 7, device_dropped: 1, ..all }), 0);
        assert_eq!(of(Series::ForwardLeft, all), 2550, "absorbed, not filtered");
        // Half of 4096 are wanted. The application does not know what it lost.
        let half = Judged { offered: 4096, received: 1900, lost: 500, filtered: 1696, absorbed: 0, ..all };
        assert_eq!(astray(Study::Filters, Series::FilterWorker, 2, &half), 0);
        assert_eq!(astray(Study::Filters, Series::FilterKernel, 2, &half), 352);
        assert_eq!(astray(Study::Queues, Series::Ring, 2, &all), 0);
    }

    #[test]
    fn rule_files_are_right_and_the_last_wildcard_rule_is_the_packets_own() {
        for others in [Others::Apart, Others::Near] {
            let set = RuleSet::parse(&wildcard(4096, others)).unwrap();
            assert_eq!(set.rules.len(), 4096);
            assert!(set.check().is_ok());
            let counting: Vec<u32> =
                set.rules.iter().filter(|rule| rule.action == Action::Count).map(|rule| rule.id).collect();
            assert_eq!(counting, [4096]);
        }
        assert_eq!(RuleSet::parse(&wildcard(1, Others::Near)).unwrap().rules.len(), 1);

        let files = RuleFiles::new();
        let set = RuleSet::read(files.precise(300).unwrap()).unwrap();
        assert_eq!((set.precise.len(), set.precise[299].id), (300, 300));
        assert_eq!(set.precise[299].fields.dst, Some(Ipv4Addr::new(10, 1, 1, 43).into()));
        let set = RuleSet::read(files.forwarding(Rest::Dropped).unwrap()).unwrap();
        assert_eq!(set.precise.len(), 4096);
        let passed: Vec<u32> =
            set.precise.iter().filter(|rule| rule.action == Action::Pass).map(|rule| rule.id).collect();
        assert_eq!(passed, (1..=16).collect::<Vec<_>>());
        for (which, dst, confirm) in
            [(InSet::None, [100, 64, 1, 43], false), (InSet::Confirmed, [10, 1, 1, 43], true)]
        {
            let set = RuleSet::read(files.named_set(300, which).unwrap()).unwrap();
            let lines = set.set_lines();
            assert_eq!((lines[0].entries, lines[0].confirm, lines[0].in_use), (300, confirm, true));
            let wirelane::rules::Entries::Address(list) = &set.sets[0].entries else { panic!("addresses") };
            assert!(list.contains(Ipv4Addr::from(dst).into()) && list.len() == 1);
        }
        let folder = files.folder.clone();
        assert!(folder.exists());
        drop(files);
        assert!(!folder.exists());
    }
}
