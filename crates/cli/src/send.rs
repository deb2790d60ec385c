//! `wirelane send`: numbered packets at a stated rate, or a capture replayed.

use std::io::{Write, stdout};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use wirelane::send::{
    IMIX, Interface, Interval, MacAddr, Method, Pattern, Plan, ReplayPlan, ReplayReport, ReplaySpeed, Report,
    Traffic, Transport, allowed_cpus, generate, replay,
};
use wirelane::{FileOptions, FileSource};

/// Send numbered packets, or replay a capture
///
/// Every packet carries its number, so that a receiver can account for each one: the twelve bytes behind the
/// UDP or TCP header are "WLn1" and the number as a big-endian 64-bit integer. Sizes are those of Ethernet
/// frames without FCS: 60 is the smallest.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Device to send from
    #[arg(short, value_name = "DEV")]
    interface: String,

    /// Packets per second of all threads together (as in 250000, 250k, 1.4M); full speed where it is left out
    #[arg(long, value_name = "PPS", value_parser = parse_rate)]
    rate: Option<f64>,

    /// Bytes of a frame, several sizes that take turns (60,1514), or imix: 60, 566 and 1514 in 28:16:4; the
    /// smallest that carries a number where it is left out: 60 for UDP, 66 for TCP
    #[arg(long, value_name = "BYTES")]
    size: Option<Sizes>,

    /// Flows that take turns, packet by packet
    #[arg(long, value_name = "N", default_value_t = 4096)]
    flows: u32,

    /// End after as many packets
    #[arg(long, value_name = "N")]
    packets: Option<u64>,

    /// End after as many seconds
    #[arg(long, value_name = "S", value_parser = parse_seconds)]
    duration: Option<Duration>,

    /// What tells the flows apart: the destination address (one source, the traffic of the papers), the source
    /// address, or the source port
    #[arg(long, value_enum, default_value_t = PatternArg::Papers)]
    pattern: PatternArg,

    /// Transport protocol
    #[arg(long, value_enum, default_value_t = ProtoArg::Udp)]
    proto: ProtoArg,

    /// How packets get to the device: from inside the kernel (XDP live frames), through a packet socket, or
    /// what is best of these
    #[arg(long, value_enum, default_value_t = MethodArg::Auto)]
    method: MethodArg,

    /// Threads that send, each on a CPU of its own
    #[arg(long, value_name = "N", default_value_t = 1)]
    threads: usize,

    /// CPUs to send from, as in 1,3: one thread each
    #[arg(long, value_name = "LIST", value_delimiter = ',', conflicts_with = "threads")]
    cores: Vec<usize>,

    /// Source MAC address; the device's own where it is left out
    #[arg(long, value_name = "MAC")]
    src_mac: Option<MacAddr>,

    /// Destination MAC address
    #[arg(long, value_name = "MAC", default_value_t = Traffic::default().dst_mac)]
    dst_mac: MacAddr,

    /// Source address, or the first of them
    #[arg(long, value_name = "ADDRESS", default_value_t = Traffic::default().src)]
    src: Ipv4Addr,

    /// Destination address, or the first of them
    #[arg(long, value_name = "ADDRESS", default_value_t = Traffic::default().dst)]
    dst: Ipv4Addr,

    /// Source port, or the first of them
    #[arg(long, value_name = "PORT", default_value_t = Traffic::default().src_port)]
    src_port: u16,

    /// Destination port
    #[arg(long, value_name = "PORT", default_value_t = Traffic::default().dst_port)]
    dst_port: u16,

    /// Put an 802.1Q tag with this VLAN id into every frame
    #[arg(long, value_name = "ID")]
    vlan: Option<u16>,

    /// Send the frames of this capture (pcap or pcapng) instead of numbered packets
    #[arg(long, value_name = "FILE", conflicts_with_all = ["rate", "size", "flows", "packets", "duration",
        "pattern", "proto", "method", "threads", "cores", "src_mac", "dst_mac", "src", "dst", "src_port",
        "dst_port", "vlan", "interval"])]
    replay: Option<PathBuf>,

    /// Speed of the replay: recorded, a factor such as 10x or 0.5x, or max
    #[arg(long, value_name = "SPEED", requires = "replay", default_value = "recorded")]
    speed: Speed,

    /// How many times to replay the capture
    #[arg(long = "loop", value_name = "N", requires = "replay", default_value_t = 1)]
    passes: u64,

    /// Seconds between two lines of progress
    #[arg(long, value_name = "S", default_value = "1", value_parser = parse_seconds)]
    interval: Duration,

    /// One JSON object a line, the last one with "final": true
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum PatternArg {
    Papers,
    Sources,
    Ports,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum ProtoArg {
    Udp,
    Tcp,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum MethodArg {
    Auto,
    Kernel,
    Socket,
}

/// Sizes that take turns.
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
                .map_err(|_| format!("'{text}' is no frame size; give bytes from 60 to 65535, or imix"))
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
                let wrong = || format!("'{text}' is no speed; give recorded, a factor such as 10x, or max");
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
    let wrong = || format!("'{text}' is no rate; give packets per second, as in 250000, 250k or 1.4M");
    digits.parse::<f64>().map(|rate| rate * factor).map_err(|_| wrong())
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let wrong = || format!("'{text}' is no time; give seconds, as in 10 or 0.5");
    text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).ok_or_else(wrong)
}

/// Runs the command until it is done or a signal ends it.
pub fn run(args: Args) -> Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("catching SIGINT and SIGTERM")?;
    }
    match &args.replay {
        Some(path) => run_replay(&args, path.clone(), &stop),
        None => run_generator(&args, &stop),
    }
}

fn run_generator(args: &Args, stop: &AtomicBool) -> Result<()> {
    let plan = plan(args)?;
    let report = generate(&plan, stop, |interval| {
        // A reader that has gone away is noticed at the end; the traffic does not depend on it.
        let _ = if args.json { print_json(interval, false) } else { print_interval(interval) };
    })?;
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
        },
        pps: args.rate,
        packets: args.packets,
        duration: args.duration,
        cpus: cpus(args)?,
        interval: args.interval,
    })
}

fn cpus(args: &Args) -> Result<Vec<usize>> {
    if !args.cores.is_empty() {
        return Ok(args.cores.clone());
    }
    let allowed = allowed_cpus();
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

fn run_replay(args: &Args, path: PathBuf, stop: &AtomicBool) -> Result<()> {
    ensure!(args.passes > 0, "--loop: give 1 or more");
    let piped = path.as_os_str() == "-";
    ensure!(
        !piped || args.passes == 1,
        "--loop: standard input can be replayed once only; write it to a file first"
    );
    let plan = ReplayPlan { device: args.interface.clone(), speed: args.speed.0, passes: args.passes };
    let report = replay(&plan, || FileSource::open(&path, FileOptions::default()), stop)?;
    if args.json { print_json(&report, true) } else { print_replay(&report) }
}

/// An object of the JSON output: its own fields and whether it is the last.
#[derive(Serialize)]
struct Line<'a, T> {
    r#final: bool,
    #[serde(flatten)]
    fields: &'a T,
}

fn print_json(fields: &impl Serialize, last: bool) -> Result<()> {
    let line = serde_json::to_string(&Line { r#final: last, fields })?;
    let mut out = stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).context("writing to standard output")
}

fn print_interval(interval: &Interval) -> Result<()> {
    writeln!(
        stdout(),
        "{:>4}  offered {:>12}  sent {:>12}  dropped {:>10}  {:>9.3} Mpps  {:>9.3} Gbit/s",
        interval.interval,
        interval.offered,
        interval.sent,
        interval.dropped,
        interval.pps / 1e6,
        interval.bps / 1e9
    )
    .context("writing to standard output")
}

fn print_report(report: &Report) -> Result<()> {
    let mut text = format!("device    {}\nmethod    {}", report.device, report.method);
    if let Some(reason) = &report.method_reason {
        text += &format!(" ({reason})");
    }
    let rate = report.asked_pps.map_or("full speed".to_owned(), |pps| format!("{pps} packets/s"));
    text += &format!("\nasked     {rate}");
    if let Some(packets) = report.asked_packets {
        text += &format!(", {packets} packets");
    }
    if let Some(seconds) = report.asked_duration_s {
        text += &format!(", {seconds} s");
    }
    text += &format!("\noffered   {} packets, {} bytes", report.offered, report.bytes);
    if let (Some(first), Some(last)) = (report.first_sequence, report.last_sequence) {
        text += &format!(", numbers {first} to {last}");
    }
    text += &format!(
        "\nsent      {}\ndropped   {}\nin        {:.3} s: {:.3} Mpps, {:.3} Gbit/s",
        report.sent,
        report.dropped,
        report.duration_s,
        report.pps / 1e6,
        report.bps / 1e9
    );
    if report.unaccounted > 0 {
        text += &format!(
            "\nunaccounted {}: offered, but neither sent nor dropped by the device",
            report.unaccounted
        );
    }
    if report.others > 0 {
        text +=
            &format!("\nothers    {}: packets of other senders, counted by the device too", report.others);
    }
    if report.refused > 0 {
        text += &format!("\nrefused   {} times: no room in the device, tried again", report.refused);
    }
    if report.fell_short {
        text += &format!(
            "\nfell short: {} packets/s were asked for, {:.0} were reached",
            report.asked_pps.unwrap_or(0.0),
            report.pps
        );
    }
    writeln!(stdout(), "{text}").context("writing to standard output")
}

fn print_replay(report: &ReplayReport) -> Result<()> {
    let mut text = format!(
        "device    {}\nread      {} frames, {} passes\noffered   {} frames, {} bytes\nsent      {}\ndropped   {}\n\
         in        {:.3} s: {:.3} Mpps, {:.3} Gbit/s",
        report.device,
        report.read,
        report.passes,
        report.offered,
        report.bytes,
        report.sent,
        report.dropped,
        report.duration_s,
        report.pps / 1e6,
        report.bps / 1e9
    );
    let left_out = [
        (report.too_large, "larger than the device's MTU allows; raise it with: ip link set DEV mtu N"),
        (report.too_short, "shorter than an Ethernet header"),
        (report.not_ethernet, "not Ethernet frames"),
        (report.cut, "captured in part only"),
    ];
    for (count, reason) in left_out.into_iter().filter(|(count, _)| *count > 0) {
        text += &format!("\nleft out  {count}: {reason}");
    }
    if report.unaccounted > 0 {
        text += &format!(
            "\nunaccounted {}: offered, but neither sent nor dropped by the device",
            report.unaccounted
        );
    }
    if report.others > 0 {
        text +=
            &format!("\nothers    {}: packets of other senders, counted by the device too", report.others);
    }
    if report.fell_short {
        text += &format!(
            "\nfell short: {} frames were more than 1 ms late, up to {:.3} s",
            report.late, report.most_late_s
        );
    }
    writeln!(stdout(), "{text}").context("writing to standard output")
}
