//! `wirelane send`: numbered packets at a stated rate, or a capture replayed.

use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use wirelane::FileInput;
use wirelane::sandbox::Work;
use wirelane_monitor::files;
use wirelane_monitor::send::{print_interval, print_json, print_replay, print_report};
use wirelane_send::{
    Interval, MacAddr, MapAddress, MapPort, Method, Packet, Pattern, Plan, ReplayPlan, ReplaySpeed, Rewrite,
    Sizes, Traffic, Transport, Vlans, generate, generate_confined, replay, replay_confined, streams_of,
};

use crate::rights::RightsArgs;
use crate::source::OUTPUT;
use crate::values::seconds;

/// Send numbered packets, or replay a capture
///
/// Every packet carries its number, so that a receiver ('wirelane receive') can account for each one: the twelve bytes after
/// the UDP or TCP header are "WLn1" and the number as a big-endian 64-bit integer. With --timestamps or --stream they are
/// "WLn2" and the number, and the time of sending and the stream follow. Sizes are those of Ethernet frames without FCS: 60
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

    /// Megabits per second instead, of frames without FCS, as in 100 or 2.5
    #[arg(long, value_name = "MBPS", conflicts_with = "rate", help_heading = HOW)]
    mbps: Option<f64>,

    /// Bytes of a frame, several alternating sizes (60,1514), or imix: 60, 566 and 1514 in 28:16:4. Default: the
    /// smallest that carries a number, 60 for UDP and 66 for TCP over IPv4
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

    /// Threads that send, each on a core of its own and flows of its own, so that the packets of a flow keep their order
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

    /// Destination MAC address. Default: 02:57:4c:00:00:02
    #[arg(long, value_name = "MAC", help_heading = WHAT)]
    dst_mac: Option<MacAddr>,

    /// Source address, or the first of them: IPv4 or IPv6. Default: 10.0.0.1, or fd57:4c00::1 if --dst is IPv6
    #[arg(long, value_name = "ADDRESS", help_heading = WHAT)]
    src: Option<IpAddr>,

    /// Destination address, or the first of them. Default: 10.1.0.0, or fd57:4c00:0:1:: if --src is IPv6
    #[arg(long, value_name = "ADDRESS", help_heading = WHAT)]
    dst: Option<IpAddr>,

    /// Source port, or the first of them
    #[arg(long, value_name = "PORT", default_value_t = Traffic::default().src_port, help_heading = WHAT)]
    src_port: u16,

    /// Destination port
    #[arg(long, value_name = "PORT", default_value_t = Traffic::default().dst_port, help_heading = WHAT)]
    dst_port: u16,

    /// Put an 802.1Q tag with this VLAN id into every frame; with two ids (100,7) an 802.1ad tag outside of it (QinQ)
    #[arg(long, value_name = "ID", help_heading = WHAT)]
    vlan: Option<Vlans>,

    /// Put the time of sending into every packet, for the latency and jitter that 'wirelane receive' reports
    #[arg(long, help_heading = WHAT)]
    timestamps: bool,

    /// A stream of packets, in turn with others by weight, as in weight=3,dst=10.2.0.0,size=60+1514; repeat it. Keys:
    /// weight, id, size, flows, pattern, proto, src, dst, src-port, dst-port, src-mac, dst-mac, vlan; the others are those of
    /// the options. Each stream numbers its packets, which carry the time
    #[arg(long, value_name = "KEY=VALUE,...", help_heading = WHAT)]
    stream: Vec<Packet>,

    /// Send the frames of pcap or pcapng files, in time order, instead of numbered packets: a file, a pattern in quotes,
    /// or a folder; several by repeating the option; '-' is standard input
    #[arg(short = 'r', long, visible_alias = "read", value_name = "FILE", help_heading = REPLAY, conflicts_with_all = ["size", "flows", "packets", "duration",
        "pattern", "proto", "method", "threads", "cores", "no_retry", "src", "dst", "src_port",
        "dst_port", "vlan", "timestamps", "stream", "interval"])]
    replay: Vec<PathBuf>,

    /// Speed of the replay: recorded, a factor such as 10x or 0.5x, or max; or give --rate or --mbps
    #[arg(long, value_name = "SPEED", requires = "replay", default_value = "recorded", conflicts_with_all = ["rate", "mbps"], help_heading = REPLAY)]
    speed: Speed,

    /// Send the frames of servers from this device, and those of clients from -i. Clients send the SYN or the first packet
    /// of a conversation
    #[arg(long, value_name = "DEV", requires = "replay", help_heading = REPLAY)]
    server_interface: Option<String>,

    /// Change addresses, as in 10.1.0.0/16=192.168.0.0/16 or fd00::1=fd00::2; checksums are updated. Repeat it: the first
    /// that fits is used. --src-mac and --dst-mac change the Ethernet header
    #[arg(long, value_name = "FROM=TO", requires = "replay", help_heading = REPLAY)]
    map_address: Vec<MapAddress>,

    /// Change ports of TCP and UDP, as in 80=8080
    #[arg(long, value_name = "FROM=TO", requires = "replay", help_heading = REPLAY)]
    map_port: Vec<MapPort>,

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
  wirelane send -i eth1 --dst fd00::1 --vlan 100,7 --mbps 50
  wirelane send -i eth1 --rate 10k --stream weight=3,size=imix \\
      --stream weight=1,dst=fd00::1,proto=tcp
  wirelane send -i eth1 --replay capture.pcapng   as recorded
  wirelane send -i eth1 --replay capture.pcapng --speed 10x --loop 3
  wirelane send -i eth1 -r capture.pcapng --server-interface eth2 \\
      --map-address 10.0.0.0/8=172.0.0.0/8 --map-port 80=8080

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
    let base = Packet {
        weight: None,
        id: None,
        size: args.size.clone(),
        flows: Some(args.flows),
        pattern: Some(match args.pattern {
            PatternArg::Papers => Pattern::Papers,
            PatternArg::Sources => Pattern::Sources,
            PatternArg::Ports => Pattern::Ports,
        }),
        proto: Some(match args.proto {
            ProtoArg::Udp => Transport::Udp,
            ProtoArg::Tcp => Transport::Tcp,
        }),
        src_mac: args.src_mac,
        dst_mac: args.dst_mac,
        src: args.src,
        dst: args.dst,
        src_port: Some(args.src_port),
        dst_port: Some(args.dst_port),
        vlans: args.vlan.clone(),
    };
    let traffic = streams_of(&args.interface, &args.stream, &base, args.timestamps)?;
    let pps = match args.mbps {
        Some(mbps) => {
            ensure!(mbps.is_finite() && mbps > 0.0, "--mbps: {mbps} is not possible; give more than 0");
            let weights: f64 = traffic.iter().map(|one| f64::from(one.weight)).sum();
            let bytes: f64 = traffic.iter().map(|one| f64::from(one.weight) * one.mean_size()).sum();
            Some(mbps * 1e6 / (8.0 * bytes / weights))
        }
        None => args.rate,
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
        pps,
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
    let plan = ReplayPlan {
        device: args.interface.clone(),
        server_device: args.server_interface.clone(),
        rewrite: Rewrite {
            src_mac: args.src_mac,
            dst_mac: args.dst_mac,
            addresses: args.map_address.clone(),
            ports: args.map_port.clone(),
        },
        speed: match (args.rate, args.mbps) {
            (Some(pps), _) => ReplaySpeed::Pps(pps),
            (_, Some(mbps)) => ReplaySpeed::Mbps(mbps),
            (None, None) => args.speed.0,
        },
        passes: args.passes,
    };
    // Opened with the privileges of the caller, and parsed without them.
    let inputs = files::open(&files::expand(&args.replay)?)?;
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
