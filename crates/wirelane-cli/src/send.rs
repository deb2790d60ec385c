//! `wirelane send`: numbered packets at a stated rate, or a capture replayed.

use std::fmt::Display;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use wirelane::FileInput;
use wirelane::escape::to_json;
use wirelane::sandbox::Work;
use wirelane_send::{
    IMIX, Interface, Interval, MacAddr, Method, Pattern, Plan, ReplayPlan, ReplayReport, ReplaySpeed, Report,
    Traffic, Transport, generate, generate_confined, replay, replay_confined,
};

use crate::rights::RightsArgs;
use crate::source::{OUTPUT, expand, open_files};
use crate::values::seconds;
use wirelane_monitor::out;
use wirelane_screen::table::{amount, rate, wrap};

/// Send numbered packets, or replay a capture
///
/// Every packet carries its number, so that a receiver can account for each one: the twelve bytes after the UDP or TCP
/// header are "WLn1" and the number as a big-endian 64-bit integer. Sizes are those of Ethernet frames without FCS: 60
/// is the smallest.
#[derive(clap::Args, Debug)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// Device to send from
    #[arg(short, long, value_name = "DEV")]
    interface: String,

    /// Packets per second of all threads together, as in 250000, 250k or 1.4M. Default: full speed
    #[arg(long, value_name = "PPS", value_parser = parse_rate, help_heading = HOW)]
    rate: Option<f64>,

    /// Bytes of a frame, several alternating sizes (60,1514), or imix: 60, 566 and 1514 in 28:16:4. Default: the
    /// smallest that carries a number, 60 for UDP and 66 for TCP
    #[arg(long, value_name = "BYTES", help_heading = WHAT)]
    size: Option<Sizes>,

    /// Number of flows, which alternate packet by packet
    #[arg(long, value_name = "N", default_value_t = 4096, help_heading = WHAT)]
    flows: u32,

    /// Stop after this many packets
    #[arg(short = 'c', long, value_name = "N", help_heading = STOP)]
    packets: Option<u64>,

    /// Stop after this time, as in 10 (seconds), 500ms, 10m or 1h
    #[arg(long, value_name = "TIME", value_parser = seconds, help_heading = STOP)]
    duration: Option<Duration>,

    /// The field in which flows differ
    #[arg(long, value_enum, default_value_t = PatternArg::Papers, help_heading = WHAT)]
    pattern: PatternArg,

    /// Transport protocol
    #[arg(long, value_enum, default_value_t = ProtoArg::Udp, help_heading = WHAT)]
    proto: ProtoArg,

    /// How packets are sent
    #[arg(long, value_enum, default_value_t = MethodArg::Auto, help_heading = HOW)]
    method: MethodArg,

    /// Threads that send, each on a core of its own
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = HOW)]
    threads: usize,

    /// Cores to send from, as in 1,3: one thread each
    #[arg(long, value_name = "LIST", value_delimiter = ',', conflicts_with = "threads", help_heading = HOW)]
    cores: Vec<usize>,

    /// Drop packets when the device is full, as a wire does, instead of retrying and falling behind
    #[arg(long, help_heading = HOW)]
    no_retry: bool,

    /// Source MAC address. Default: the device's own
    #[arg(long, value_name = "MAC", help_heading = WHAT)]
    src_mac: Option<MacAddr>,

    /// Destination MAC address
    #[arg(long, value_name = "MAC", default_value_t = Traffic::default().dst_mac, help_heading = WHAT)]
    dst_mac: MacAddr,

    /// Source address, or the first of them
    #[arg(long, value_name = "ADDRESS", default_value_t = Traffic::default().src, help_heading = WHAT)]
    src: Ipv4Addr,

    /// Destination address, or the first of them
    #[arg(long, value_name = "ADDRESS", default_value_t = Traffic::default().dst, help_heading = WHAT)]
    dst: Ipv4Addr,

    /// Source port, or the first of them
    #[arg(long, value_name = "PORT", default_value_t = Traffic::default().src_port, help_heading = WHAT)]
    src_port: u16,

    /// Destination port
    #[arg(long, value_name = "PORT", default_value_t = Traffic::default().dst_port, help_heading = WHAT)]
    dst_port: u16,

    /// Put an 802.1Q tag with this VLAN id into every frame
    #[arg(long, value_name = "ID", help_heading = WHAT)]
    vlan: Option<u16>,

    /// Send the frames of pcap or pcapng files, in time order, instead of numbered packets: a file, a pattern in quotes,
    /// or a folder; several by repeating the option; '-' is standard input
    #[arg(short = 'r', long, visible_alias = "read", value_name = "FILE", help_heading = REPLAY, conflicts_with_all = ["rate", "size", "flows", "packets", "duration",
        "pattern", "proto", "method", "threads", "cores", "no_retry", "src_mac", "dst_mac", "src", "dst", "src_port",
        "dst_port", "vlan", "interval"])]
    replay: Vec<PathBuf>,

    /// Speed of the replay: recorded, a factor such as 10x or 0.5x, or max
    #[arg(long, value_name = "SPEED", requires = "replay", default_value = "recorded", help_heading = REPLAY)]
    speed: Speed,

    /// How many times to replay the capture
    #[arg(long = "loop", value_name = "N", requires = "replay", default_value_t = 1, help_heading = REPLAY)]
    passes: u64,

    /// Time between progress reports
    #[arg(long, value_name = "TIME", default_value = "1", value_parser = seconds, help_heading = OUTPUT)]
    interval: Duration,

    /// Print one JSON object a line: one per interval, and the last one with "final": true
    #[arg(long, help_heading = OUTPUT)]
    json: bool,

    #[command(flatten)]
    rights: RightsArgs,
}

const WHAT: &str = "Packets";
const HOW: &str = "Sending";
const STOP: &str = "End (default: Ctrl-C)";
const REPLAY: &str = "Replay of a capture file instead of numbered packets";

/// Text after the options in the long help.
pub const HELP: &str = "\
In the report, 'offered' packets were handed to the kernel; 'sent' and 'dropped'
are the device's own counts.

Examples:
  wirelane send -i eth1 --rate 1M --duration 10   to 4096 destinations in turn
  wirelane send -i eth1 --packets 1000000         as fast as possible
  wirelane send -i eth1 --size imix --flows 100000 --rate 200k
  wirelane send -i eth1 --replay capture.pcapng   as recorded
  wirelane send -i eth1 --replay capture.pcapng --speed 10x --loop 3

Exit status: 0 done (also after Ctrl-C), 1 failed, 2 wrong usage.";

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum PatternArg {
    /// The destination address, with one source: the traffic of published measurements
    Papers,
    /// The source address
    Sources,
    /// The source port
    Ports,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum ProtoArg {
    /// UDP
    Udp,
    /// TCP segments that belong to no connection
    Tcp,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum MethodArg {
    /// 'kernel' where it works and the rate is worth it, else 'socket'; the report says which and why
    Auto,
    /// From inside the kernel, as XDP live frames
    Kernel,
    /// Through a packet socket
    Socket,
    /// Through an AF_XDP socket for each thread, on the TX queue of its number; zero copy where the driver has it
    Xsk,
}

/// Frame sizes in rotation.
#[derive(Clone, Debug)]
struct Sizes(Vec<u16>);

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Sizes, String> {
        if text.eq_ignore_ascii_case("imix") {
            return Ok(Sizes(IMIX.to_vec()));
        }
        let size = |text: &str| {
            text.parse()
                .map_err(|_| format!("invalid frame size '{text}': expected bytes from 60 to 65535, or imix"))
        };
        text.split(',').map(size).collect::<Result<_, _>>().map(Sizes)
    }
}

/// Speed of a replay.
#[derive(Clone, Copy, Debug)]
struct Speed(ReplaySpeed);

impl FromStr for Speed {
    type Err = String;

    fn from_str(text: &str) -> Result<Speed, String> {
        let speed = match text {
            "recorded" => ReplaySpeed::Factor(1.0),
            "max" => ReplaySpeed::Max,
            factor => {
                let number = factor.strip_suffix('x').and_then(|number| number.parse().ok());
                let wrong =
                    || format!("invalid speed '{text}': expected recorded, a factor such as 10x, or max");
                ReplaySpeed::Factor(number.ok_or_else(wrong)?)
            }
        };
        Ok(Speed(speed))
    }
}

fn parse_rate(text: &str) -> Result<f64, String> {
    let (digits, factor) = match text.char_indices().next_back() {
        Some((at, 'k' | 'K')) => (&text[..at], 1e3),
        Some((at, 'm' | 'M')) => (&text[..at], 1e6),
        _ => (text, 1.0),
    };
    let wrong = || format!("invalid rate '{text}': expected packets per second, e.g. 250000, 250k or 1.4M");
    digits.parse::<f64>().map(|rate| rate * factor).map_err(|_| wrong())
}

/// Runs the command until it is done or a signal ends it.
pub fn run(args: Args) -> Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("catching signals")?;
    }
    if args.replay.is_empty() { run_generator(&args, &stop) } else { run_replay(&args, &stop) }
}

fn run_generator(args: &Args, stop: &AtomicBool) -> Result<()> {
    let plan = plan(args)?;
    let mut elapsed_s = 0.0;
    let on_interval = |interval: &Interval| {
        elapsed_s += interval.duration_s;
        // A closed reader is noticed at the end; the traffic does not depend on it.
        let _ = if args.json { print_json(interval, false) } else { print_interval(interval, elapsed_s) };
    };
    let report = match args.rights.confinement(Work::Send, None)? {
        Some(confinement) => generate_confined(&plan, &confinement, stop, on_interval)?,
        None => generate(&plan, stop, on_interval)?,
    };
    if args.json { print_json(&report, true) } else { print_report(&report) }
}

fn plan(args: &Args) -> Result<Plan> {
    let mut traffic = Traffic {
        transport: match args.proto {
            ProtoArg::Udp => Transport::Udp,
            ProtoArg::Tcp => Transport::Tcp,
        },
        pattern: match args.pattern {
            PatternArg::Papers => Pattern::Papers,
            PatternArg::Sources => Pattern::Sources,
            PatternArg::Ports => Pattern::Ports,
        },
        flows: args.flows,
        src_mac: match args.src_mac {
            Some(mac) => mac,
            None => Interface::find(&args.interface)?.mac,
        },
        dst_mac: args.dst_mac,
        vlan: args.vlan,
        src: args.src,
        dst: args.dst,
        src_port: args.src_port,
        dst_port: args.dst_port,
        ..Traffic::default()
    };
    traffic.sizes = match &args.size {
        Some(sizes) => sizes.0.clone(),
        None => vec![traffic.smallest_size()],
    };
    Ok(Plan {
        device: args.interface.clone(),
        traffic,
        method: match args.method {
            MethodArg::Auto => Method::Auto,
            MethodArg::Kernel => Method::Kernel,
            MethodArg::Socket => Method::Socket,
            MethodArg::Xsk => Method::Xsk,
        },
        pps: args.rate,
        packets: args.packets,
        duration: args.duration,
        cpus: cpus(args)?,
        retries: !args.no_retry,
        interval: args.interval,
    })
}

fn cpus(args: &Args) -> Result<Vec<usize>> {
    if !args.cores.is_empty() {
        return Ok(args.cores.clone());
    }
    let allowed = wirelane::device::allowed_cpus();
    ensure!(args.threads > 0, "--threads: give 1 or more");
    ensure!(
        args.threads <= allowed.len(),
        "--threads: {} threads are more than the {} CPUs that this process may run on; name CPUs twice in \
         --cores where that is meant",
        args.threads,
        allowed.len()
    );
    Ok(allowed[..args.threads].to_vec())
}

fn run_replay(args: &Args, stop: &AtomicBool) -> Result<()> {
    ensure!(args.passes > 0, "--loop: give 1 or more");
    let piped = args.replay.iter().any(|path| path.as_os_str() == "-");
    ensure!(
        !piped || args.passes == 1,
        "--loop: standard input can be replayed once only; write it to a file first"
    );
    let plan = ReplayPlan { device: args.interface.clone(), speed: args.speed.0, passes: args.passes };
    // Opened with the privileges of the caller, and parsed without them.
    let inputs = open_files(&expand(&args.replay)?)?;
    let passes = || {
        let again: wirelane_pcapng::Result<_> = inputs.iter().map(FileInput::again).collect();
        Ok(wirelane_pcapng::MergedReader::read(again?)?)
    };
    let report = match args.rights.confinement(Work::Send, None)? {
        Some(confinement) => replay_confined(&plan, &confinement, passes, stop)?,
        None => replay(&plan, passes, stop)?,
    };
    if args.json { print_json(&report, true) } else { print_replay(&report) }
}

/// A JSON object of the output: its own fields, and whether it is the last.
#[derive(Serialize)]
struct Line<'a, T> {
    r#final: bool,
    #[serde(flatten)]
    fields: &'a T,
}

fn print_json(fields: &impl Serialize, last: bool) -> Result<()> {
    let line = to_json(&Line { r#final: last, fields })?;
    out::print(line + "\n")
}

/// A progress line, the first one after the header.
fn print_interval(interval: &Interval, elapsed_s: f64) -> Result<()> {
    let mut text = String::new();
    if interval.interval == 1 {
        text = format!(
            "{:>9}  {:>14}  {:>14}  {:>11}  {:>8}  {:>8}\n",
            "seconds", "offered", "sent", "dropped", "pps", "bit/s"
        );
    }
    text += &format!(
        "{elapsed_s:>9.1}  {:>14}  {:>14}  {:>11}  {:>8}  {:>8}",
        amount(interval.offered),
        amount(interval.sent),
        amount(interval.dropped),
        rate(interval.pps),
        rate(interval.bps)
    );
    out::print(text + "\n")
}

/// Lines of a report: a name and a text.
#[derive(Default)]
struct Lines(String);

impl Lines {
    fn line(&mut self, name: &str, text: impl Display) {
        self.0 += &format!("{name:<11}  {}\n", wrap(&text.to_string(), 13));
    }

    fn device(&mut self, sent: u64, dropped: u64, unaccounted: u64, others: u64) {
        self.line("sent", amount(sent));
        self.line("dropped", amount(dropped));
        if unaccounted > 0 {
            let what = "offered, but neither sent nor dropped by the device";
            self.line("unaccounted", format!("{}: {what}", amount(unaccounted)));
        }
        if others > 0 {
            self.line(
                "others",
                format!("{}: other senders' packets, counted by the device too", amount(others)),
            );
        }
    }

    fn speed(&mut self, duration_s: f64, pps: f64, bps: f64) {
        self.line("took", format!("{duration_s:.3} s: {} packets/s, {} bit/s", rate(pps), rate(bps)));
    }

    fn print(self) -> Result<()> {
        out::print(self.0)
    }
}

/// Packets per second as a whole number, if the exact value matters.
fn whole(pps: f64) -> String {
    amount(pps.round() as u64)
}

fn print_report(report: &Report) -> Result<()> {
    let mut lines = Lines::default();
    lines.line("device", &report.device);
    match &report.method_reason {
        Some(reason) => lines.line("method", format!("{} ({reason})", report.method)),
        None => lines.line("method", report.method),
    }
    let mut asked =
        report.asked_pps.map_or("full speed".to_owned(), |pps| format!("{} packets/s", whole(pps)));
    if let Some(packets) = report.asked_packets {
        asked += &format!(", {} packets", amount(packets));
    }
    if let Some(seconds) = report.asked_duration_s {
        asked += &format!(", {seconds} s");
    }
    lines.line("asked", asked);
    let mut offered = format!("{} packets, {} bytes", amount(report.offered), amount(report.bytes));
    if let (Some(first), Some(last)) = (report.first_sequence, report.last_sequence) {
        offered += &format!(", numbers {first} to {last}");
    }
    lines.line("offered", offered);
    lines.device(report.sent, report.dropped, report.unaccounted, report.others);
    if report.refused > 0 {
        lines.line("refused", format!("{} times: the device was full, tried again", amount(report.refused)));
    }
    lines.speed(report.duration_s, report.pps, report.bps);
    if report.fell_short {
        lines.line(
            "fell short",
            format!(
                "{} packets/s were asked for, {} were reached",
                whole(report.asked_pps.unwrap_or(0.0)),
                whole(report.pps)
            ),
        );
    }
    lines.print()
}

fn print_replay(report: &ReplayReport) -> Result<()> {
    let mut lines = Lines::default();
    lines.line("device", &report.device);
    let passes = if report.passes == 1 { "1 pass".to_owned() } else { format!("{} passes", report.passes) };
    lines.line("read", format!("{} frames in {passes}", amount(report.read)));
    let left_out = [
        (report.too_large, "larger than the device's MTU allows; raise it with: ip link set DEV mtu N"),
        (report.too_short, "shorter than an Ethernet header"),
        (report.not_ethernet, "not Ethernet frames"),
        (report.cut, "captured in part only"),
    ];
    for (count, reason) in left_out.into_iter().filter(|(count, _)| *count > 0) {
        lines.line("left out", format!("{}: {reason}", amount(count)));
    }
    lines.line("offered", format!("{} frames, {} bytes", amount(report.offered), amount(report.bytes)));
    lines.device(report.sent, report.dropped, report.unaccounted, report.others);
    lines.speed(report.duration_s, report.pps, report.bps);
    if report.fell_short {
        lines.line(
            "fell short",
            format!(
                "{} frames were more than 1 ms late, up to {:.3} s",
                amount(report.late),
                report.most_late_s
            ),
        );
    }
    lines.print()
}
