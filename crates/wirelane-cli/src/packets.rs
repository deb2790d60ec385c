//! `wirelane packets`: a line for each packet, with its parsed headers and the results of rules.

use anyhow::Result;
use clap::ArgAction;
use wirelane::Error;

use crate::metrics::MetricsArgs;
use crate::outputs::TimesArgs;
use crate::source::{self, BalanceArg, SourceArgs, SteeringArg};
use wirelane_monitor::packets::{self, Style};
use wirelane_screen::packet::{Clock, Dump, Times};

/// Print each packet: headers, matching rule, tag, patterns
///
/// The line shows the results of the kernel's parser and rules; nothing is parsed again. Packets of several workers are
/// not in order. A terminal is slow: packets that it does not keep up with are lost, and counted in the ledger, which
/// goes to standard error at the end; with --json everything goes to standard output.
#[derive(clap::Args, Debug)]
#[command(after_long_help = HELP)]
pub struct Args {
    #[command(flatten)]
    source: SourceArgs,

    /// Worker threads, which read the rings, 1 to 64
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = source::CAPTURE)]
    workers: usize,

    /// Choice of the worker of a packet
    #[arg(long, value_enum, default_value_t = SteeringArg::Flow, help_heading = source::CAPTURE)]
    steering: SteeringArg,

    /// Moving load between workers
    #[arg(long, value_enum, default_value_t = BalanceArg::Static, help_heading = source::CAPTURE)]
    balance: BalanceArg,

    /// Show fields of TCP, UDP, ICMP, ARP and DNS: flags, sequence numbers, options, types, names; -vv: also those of IP
    #[arg(short, long, action = ArgAction::Count, help_heading = source::OUTPUT)]
    verbose: u8,

    /// Show the Ethernet header: addresses, EtherType, all VLAN tags
    #[arg(short = 'e', long, help_heading = source::OUTPUT)]
    link_header: bool,

    /// Show fields of HTTP, SIP and RTP: method or status, RTP header, and where header fields and bodies are, in bytes
    /// from the packet's first byte
    #[arg(long, help_heading = source::OUTPUT)]
    application: bool,

    /// Show the bytes in hexadecimal digits; -x: from the network header on, -xx: from the link header on
    #[arg(short = 'x', long, action = ArgAction::Count, conflicts_with = "json", help_heading = source::OUTPUT)]
    hex: u8,

    /// As -x, with the characters beside the digits; -XX: from the link header on
    #[arg(short = 'X', long, action = ArgAction::Count, conflicts_with_all = ["json", "hex"], help_heading = source::OUTPUT)]
    hex_and_text: u8,

    /// Show the characters of the packet; -AA: from the link header on
    #[arg(short = 'A', long, action = ArgAction::Count, conflicts_with_all = ["json", "hex", "hex_and_text"], help_heading = source::OUTPUT)]
    text: u8,

    /// Print no time; -tt: seconds since 1970, -ttt since the packet before of the same worker, -tttt date and time
    /// (the default), -ttttt since the first packet
    #[arg(short = 't', action = ArgAction::Count, conflicts_with_all = ["json", "local_time"], help_heading = source::OUTPUT)]
    times: u8,

    #[command(flatten)]
    zone: TimesArgs,

    /// Accepted for the sake of tcpdump's users: sequence numbers are always absolute
    #[arg(short = 'S', hide = true, action = ArgAction::Count)]
    _absolute: u8,

    #[command(flatten)]
    metrics: MetricsArgs,
}

impl Args {
    fn clock(&self) -> Result<Clock> {
        let times = Times::of_letters(self.times).ok_or_else(|| Error::BadOption {
            option: "-t",
            reason: "give it one to five times, as in -ttt".to_owned(),
        })?;
        Ok(Clock::new(times))
    }

    fn style(&self) -> Style {
        let dump = [(self.hex, Dump::Hex), (self.hex_and_text, Dump::HexAndText), (self.text, Dump::Text)];
        let dump = dump.into_iter().find(|(times, _)| *times > 0).map(|(times, style)| (style, times > 1));
        Style {
            json: self.source.json,
            verbose: self.verbose,
            link: self.link_header,
            application: self.application,
            dump,
        }
    }
}

/// Text after the options in the long help.
pub const HELP: &str = "\
A line has the time in UTC (or with --local-time), the RX queue, '>' for a
transmitted packet, the protocols, the addresses, the length on the wire, and
the result of rules. With -v the fields of the headers follow, in tcpdump's
words, with absolute sequence numbers. Names of hosts and ports are never looked
up.

Examples:
  wirelane packets -i eth1 -c 10             ten packets
  wirelane packets -i eth1 udp port 53       with a tcpdump filter expression
  wirelane packets -i eth1 --rules rules.toml --json | jq 'select(.rule == 7)'
  wirelane packets -r capture.pcapng --rules rules.toml
  wirelane packets -r capture.pcapng -v      TCP flags, ICMP types, DNS names
  wirelane packets -r capture.pcapng --application
                                             HTTP, SIP, RTP and their fields
  wirelane packets -r capture.pcapng -e -X   Ethernet header, and the bytes

With --json each packet is an object with \"record\": \"packet\" (or \"digest\",
if a rule delivers only the headers); fields that do not apply are left out.

Exit status: 0 done (also after Ctrl-C), 1 failed, 2 wrong usage.";

/// Runs the command.
pub fn run(mut args: Args) -> Result<()> {
    let (style, clock) = (args.style(), args.clock()?);
    args.source.headers_only = style.dump.is_none() && !style.application;
    args.source.plugin_records = true;
    let plugins = args.source.ruled.plugin_names();
    let endpoint = args.metrics.open(&mut args.source)?;
    let capture =
        args.source.open(&args.source.expression()?, args.workers, args.steering, args.balance, None)?;
    packets::run(capture, &args.source.limits(), style, &clock, &plugins, endpoint)
}
