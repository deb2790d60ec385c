//! Rule files for adapters: many rules with every field (exact), many with ranges (wildcard), large sets, and one that
//! forwards few flows.
//!
//! All traffic is that of `wirelane send`: packet `n` belongs to flow `n % flows`, and flow `k` has the k-th address
//! after the first as its destination.

use std::fmt::Write as _;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use wirelane_send::Traffic;

/// Number of flows of the traffic, unless there is one for each rule.
const FLOWS: u32 = 4096;

/// One of this many flows is forwarded.
const ONE_IN: u32 = 256;

/// Output: `rules.toml`, and the files that it refers to.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Which rules
    #[arg(value_enum)]
    kind: Kind,
    /// Rules, or entries of a set
    count: u32,
    /// The folder
    folder: PathBuf,
}

/// Kinds of rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Kind {
    /// Exact ones, one for each of as many flows, which all count
    Exact,
    /// Wildcard ones, of which the last one fits all packets and counts them; the others ask for addresses that no packet has, as
    /// lists of hosts and networks do
    Apart,
    /// The same, but the others match in all fields except one, not the same one in all: in each field most of them
    /// match, and no word of them is excluded by one field alone
    Near,
    /// A set of addresses that no packet has, which a rule asks; whatever comes of it, the packet is counted
    SetMiss,
    /// The same with those of as many flows
    SetHit,
    /// The same, confirmed in the table of entries
    SetSure,
    /// An exact-match rule for each of 4096 flows: one of 256 passes, the others are counted and taken from the host's stack
    ForwardTaken,
    /// The same, but the others are dropped, and so left to the stack
    ForwardLeft,
}

/// Writes the files.
pub fn run(args: &Args) -> Result<()> {
    write_all(args.kind, args.count, &args.folder)
}

fn write_all(kind: Kind, count: u32, folder: &Path) -> Result<()> {
    let write = |name: &str, text: String| {
        let path = folder.join(name);
        fs::write(&path, text).with_context(|| path.display().to_string())
    };
    let is_forwarded = |flow: &u32| flow.is_multiple_of(ONE_IN);
    let rules = match kind {
        Kind::Exact => {
            write("flows.csv", flows_csv(0..count))?;
            exact_table(1, "flows.csv", "count")
        }
        Kind::Apart | Kind::Near => wildcard(count, kind),
        Kind::SetMiss | Kind::SetHit | Kind::SetSure => {
            let host = |n| if kind == Kind::SetMiss { strange(n) } else { destination(n) };
            write("set.txt", (0..count).map(|n| format!("{}\n", host(n))).collect())?;
            named_set("set.txt", kind == Kind::SetSure)
        }
        Kind::ForwardTaken | Kind::ForwardLeft => {
            write("forwarded.csv", flows_csv((0..FLOWS).filter(is_forwarded)))?;
            write("others.csv", flows_csv((0..FLOWS).filter(|flow| !is_forwarded(flow))))?;
            let rest = if kind == Kind::ForwardTaken { "count" } else { "drop" };
            exact_table(1, "forwarded.csv", "pass") + &exact_table(FLOWS + 1, "others.csv", rest)
        }
    };
    write("rules.toml", rules)
}

/// Destination of a flow.
fn destination(flow: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(u32::from(wirelane_send::DST) + flow)
}

/// An address that is not the destination of any packet.
fn strange(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(u32::from(Ipv4Addr::new(100, 64, 0, 0)) + number)
}

/// False positives of the bloom filter are counted like the other packets, so that the account stays exact.
fn named_set(list: &str, confirm: bool) -> String {
    format!(
        "[[sets]]\nname = \"set\"\nentries = \"@{list}\"\nconfirm = {confirm}\n\n\
         [[rule]]\nid = 1\ndst-in = \"set\"\naction = \"count\"\n\n[[rule]]\nid = 2\naction = \"count\"\n"
    )
}

/// Destinations of these flows, as a table of exact-match rules.
fn flows_csv(flows: impl Iterator<Item = u32>) -> String {
    let mut text = "dst\n".to_owned();
    for flow in flows {
        let _ = writeln!(text, "{}", destination(flow));
    }
    text
}

/// Exact-match rules of a table, with the fields that all packets share.
fn exact_table(id: u32, table: &str, action: &str) -> String {
    let Traffic { src, src_port, dst_port, .. } = Traffic::default();
    format!(
        "[[exact]]\nid = {id}\nfile = \"{table}\"\nsrc = \"{src}\"\nsrc-port = {src_port}\ndst-port = {dst_port}\n\
         protocol = \"udp\"\naction = \"{action}\"\n\n"
    )
}

fn wildcard(rules: u32, others: Kind) -> String {
    let Traffic { src, dst, src_port, dst_port, .. } = Traffic::default();
    // Fields of all packets, and for each rule a network and a port that they do not have.
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
            Kind::Apart => match which {
                0 => vec![strange[0].clone()],
                1 => vec![strange[1].clone(), strange[3].clone()],
                2 => vec![strange[1].clone()],
                _ => vec![strange[0].clone(), format!("dst-port = \"{}-{}\"", 1024 + number, 1034 + number)],
            },
            _ => {
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
    use wirelane::rules::{Action, Entries, RuleSet};

    use super::*;

    fn read(kind: Kind, count: u32) -> RuleSet {
        let folder = tempfile::tempdir().unwrap();
        write_all(kind, count, folder.path()).unwrap();
        RuleSet::read(folder.path().join("rules.toml")).unwrap()
    }

    #[test]
    fn rule_files_are_right_and_the_last_wildcard_rule_is_the_packets_own() {
        for others in [Kind::Apart, Kind::Near] {
            let set = read(others, 4096);
            assert!(set.rules.len() == 4096 && set.check().is_ok());
            let counting: Vec<u32> =
                set.rules.iter().filter(|rule| rule.action == Action::Count).map(|rule| rule.id).collect();
            assert_eq!(counting, [4096]);
        }
        assert_eq!(read(Kind::Near, 1).rules.len(), 1);
        let set = read(Kind::Exact, 300);
        assert_eq!((set.exact.len(), set.exact[299].id), (300, 300));
        assert_eq!(set.exact[299].fields.dst, Some(Ipv4Addr::new(10, 1, 1, 43).into()));
        let set = read(Kind::ForwardLeft, 0);
        let passed: Vec<u32> =
            set.exact.iter().filter(|rule| rule.action == Action::Pass).map(|rule| rule.id).collect();
        assert_eq!((set.exact.len(), passed), (4096, (1..=16).collect::<Vec<_>>()));
        for (kind, dst, confirm) in
            [(Kind::SetMiss, [100, 64, 1, 43], false), (Kind::SetSure, [10, 1, 1, 43], true)]
        {
            let set = read(kind, 300);
            let lines = set.set_lines();
            assert_eq!((lines[0].entries, lines[0].confirm, lines[0].in_use), (300, confirm, true));
            let Entries::Address(list) = &set.sets[0].entries else { panic!("addresses") };
            assert!(list.contains(Ipv4Addr::from(dst).into()) && list.len() == 1);
        }
    }
}
