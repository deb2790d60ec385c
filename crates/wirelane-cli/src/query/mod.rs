//! `wirelane query`: questions about a store, or about all stores that are shipped to a server.

mod at;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
#[cfg(feature = "store")]
use wirelane_monitor::asked;

#[cfg(feature = "store")]
use crate::values::wrong;
use crate::values::{Moment, time};

/// Heading of the help.
const RANGE: &str = "Time span (default: everything)";
/// Heading of the help.
const OUTPUT: &str = "Output";

/// Query a store of flows, calls, transactions and probe results, in SQL or ready-made
///
/// A store is what 'wirelane flows --store DIR' writes (table 'flows'), 'wirelane voip' ('calls', 'streams'), 'wirelane
/// http' ('transactions') and 'wirelane probe' ('measurements', 'alarms', 'ledgers'). It needs only the right to read
/// the files, and can run while they are written; a file counts once it is complete. --at asks the server to which stores
/// are shipped, and has the same answers over all probes.
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// A query in SQL
    #[arg(value_name = "SQL")]
    sql: Option<String>,

    /// The store's folder, or s3://BUCKET/PREFIX to which stores are shipped
    #[arg(long, value_name = "DIR", global = true)]
    store: Option<PathBuf>,

    /// Only what ended at this time or later: 2026-11-23, '2026-11-23 04:00' or 2026-11-23T04:00:30Z. In UTC unless
    /// --local-time is given
    #[arg(long, value_name = "TIME", value_parser = Moment::parse, global = true, help_heading = RANGE)]
    from: Option<Moment>,

    /// Only what ended before this time
    #[arg(long, value_name = "TIME", value_parser = Moment::parse, global = true, help_heading = RANGE)]
    to: Option<Moment>,

    /// Only what ended within this time until now, as in 15m, 1h or 7d
    #[arg(long, value_name = "TIME", value_parser = time, conflicts_with_all = ["from", "to"], global = true, help_heading = RANGE)]
    last: Option<Duration>,

    /// Only what this probe stored: the name of its host, or of --store-probe
    #[arg(long, value_name = "NAME", global = true)]
    probe: Option<String>,

    /// Print a JSON object per row, without NULL values
    #[arg(long, conflicts_with = "csv", global = true, help_heading = OUTPUT)]
    json: bool,

    /// Print CSV; NULL values are empty
    #[arg(long, global = true, help_heading = OUTPUT)]
    csv: bool,

    /// Print and read times in the time zone of this machine, or in that of the variable TZ. The columns date and hour, and the
    /// steps of 'over time', stay those of UTC
    #[arg(id = "local_time", long = "local-time", conflicts_with_all = ["json", "csv"], global = true, help_heading = OUTPUT)]
    _local_time: bool,

    /// Rows of a ready-made query
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10, global = true, help_heading = OUTPUT)]
    limit: u64,

    /// Memory for the answer, in MiB. Beyond it, sorting and grouping go on in temporary files (TMPDIR)
    #[arg(long, value_name = "MIB", default_value = "1024", value_parser = crate::values::query_memory, global = true)]
    memory: u32,

    #[command(flatten)]
    at: at::AtArgs,

    #[command(subcommand)]
    ready: Option<Ready>,
}

/// Ready questions.
#[derive(Clone, Debug, clap::Subcommand)]
enum Ready {
    /// Top talkers (addresses by sent bytes), ports (the lower of a flow's two), pairs of addresses, or HTTP hosts by
    /// transactions
    Top {
        /// Of what
        #[arg(value_enum)]
        what: Top,
    },
    /// Bytes by network, application, protocol or device; transactions by status
    By {
        /// By what
        #[arg(value_enum)]
        what: By,

        /// Bits of an IPv4 network
        #[arg(long, value_name = "BITS", default_value_t = 24, value_parser = clap::value_parser!(u8).range(0..=32))]
        bits4: u8,

        /// Bits of an IPv6 network
        #[arg(long, value_name = "BITS", default_value_t = 48, value_parser = clap::value_parser!(u8).range(0..=128))]
        bits6: u8,
    },
    /// Flows, packets and bytes over time, by the end of flows
    Over {
        /// The word 'time'
        #[arg(value_enum)]
        time: Over,

        /// A row for so much time, as in 10s, 5m or 1h. Default: what makes some dozen rows of the time that was asked for, or an
        /// hour
        #[arg(long, value_name = "TIME", value_parser = time)]
        step: Option<Duration>,
    },
    /// Calls (by their worst stream) or streams with the lowest MOS
    Worst {
        /// Of what
        #[arg(value_enum)]
        what: Worst,
    },
    /// Calls by state and status
    Calls {
        /// The word 'by'
        #[arg(value_enum, value_name = "BY")]
        by: ByWord,

        /// The word 'status'
        #[arg(value_enum, value_name = "STATUS")]
        status: StatusWord,
    },
    /// Slowest transactions
    Slowest {
        /// The word 'transactions'
        #[arg(value_enum)]
        what: Slowest,
    },
    /// What is missing, by hour and probe: packets that were lost or shed, rows that were removed before they were shipped or
    /// did not arrive, and hours without anything. With --from or --last, whole hours, up to the last one that is over
    Missing,
    /// Peers of an address or a network: who talked to ADDRESS
    Who {
        /// The word 'talked'
        #[arg(value_enum, value_name = "TALKED")]
        talked_word: Talked,

        /// The word 'to'
        #[arg(value_enum, value_name = "TO")]
        to_word: To,

        /// An address, or a network: 192.0.2.1, 2001:db8::/32
        #[arg(value_name = "ADDRESS")]
        address: String,
    },
}

/// Values of `top`.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Top {
    /// Addresses
    Talkers,
    /// Ports
    Ports,
    /// Pairs of addresses
    Pairs,
    /// Hosts of HTTP
    Hosts,
}

/// Values of `worst`.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Worst {
    /// Calls
    Calls,
    /// RTP streams
    Streams,
}

/// A word of `calls by status`.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum ByWord {
    /// By
    By,
}

/// A word of `calls by status`.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum StatusWord {
    /// Status
    Status,
}

/// Values of `slowest`.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Slowest {
    /// HTTP transactions
    Transactions,
}

/// Values of `by`.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum By {
    /// Networks
    Network,
    /// Applications
    Application,
    /// Protocols
    Protocol,
    /// Devices
    Device,
    /// Statuses of HTTP responses
    Status,
}

/// A word of `over time`.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Over {
    /// Time
    Time,
}

/// A word of `who talked to`.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Talked {
    /// Talked
    Talked,
}

/// A word of `who talked to`.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum To {
    /// To
    To,
}

/// Text after the options in the long help.
pub const HELP: &str = "\
Tables: flows, calls, streams (of RTP), transactions (of HTTP); of probes
measurements, alarms, ledgers. A table that was not written is empty. Rows of
measurements have a kind: 'all' is a whole interval, 'key' one of the keys that
are shown, 'other' the rest, and 'list' an entry of a top-list or a histogram;
select one of them. DESCRIBE calls, for example, lists the columns of a table
with their types; names are those of the JSON output.

Columns of flows:
  start_time end_time start_ns duration_ns device queue direction vlan src dst
  protocol src_port dst_port packets bytes wire_bytes tcp_flags application
  community_id end_reason; reverse_packets, reverse_bytes and so on of the other
  direction (flows --biflow); date and hour of the end. Times are in UTC, or
  local with --local-time.
  network(src, 24, 48) is the network of an address, with so many bits for IPv4
  and IPv6; in_network(src, '10.0.0.0/8') is whether it is in that network.
  step(end_time, 300) is the start of the 5 minutes that contain a time.

Columns of all tables: start_time end_time start_ns duration_ns date hour
probe schema_version. probe is who stored the row. A row of streams has the
call_id and call_start_ns of its call.

The SQL dialect is SQLite's, and read-only. A file that cannot be read is left
out and named.

Examples:
  wirelane query top talkers --store flows.db
  wirelane query top ports -n 20 --last 1h --store flows.db
  wirelane query by network --bits4 16 --store flows.db
  wirelane query over time --step 5m --from 2026-11-23 --store flows.db
  wirelane query who talked to 192.0.2.1 --json --store flows.db
  wirelane query worst calls --last 1d --store calls.db
  wirelane query top talkers --probe edge-1 --store flows.db
  wirelane query calls by status --store calls.db
  wirelane query top hosts --store web.db
  wirelane query missing --last 1d --password-file ch.password
      --at clickhouse+https://me@ch.example.net/wirelane
  wirelane query \"SELECT key, max(pps) FROM measurements WHERE kind = 'key'
      AND measurement = 'syns' GROUP BY key\" --store probe.db
  wirelane query \"SELECT src, count(DISTINCT dst_port) AS ports FROM flows
      GROUP BY src ORDER BY ports DESC LIMIT 5\" --store flows.db

Exit status: 0 answered, 1 failed, 2 wrong usage or invalid SQL.";

/// Runs the command.
#[cfg(not(feature = "store"))]
pub fn run(_args: &Args) -> Result<()> {
    Err(wirelane_monitor::store::not_built())
}

/// Runs the command.
///
/// # Errors
/// If there is no store, the SQL is invalid, there is too little memory, or an output fails.
#[cfg(feature = "store")]
pub fn run(args: &Args) -> Result<()> {
    use wirelane_screen::table::printable;
    use wirelane_store::query::{AskSettings, Form, Shipped};

    let (mut from_ns, mut to_ns) = range(args.from, args.to, args.last)?;
    if matches!(args.ready, Some(Ready::Missing)) {
        (from_ns, to_ns) = asked::hours(from_ns, to_ns, asked::now_ns());
    }
    let question = args.ready.as_ref().map(|ready| question(ready, from_ns, to_ns)).transpose()?;
    let form = match (args.json, args.csv) {
        (true, _) => Form::Json,
        (_, true) => Form::Csv,
        _ => Form::Table,
    };
    let mut gone = false;
    let mut sink = |text: &[u8]| {
        wirelane_monitor::out::print(text).map_err(|error| {
            gone = error.is::<wirelane_monitor::out::ReaderGone>();
            error.into_boxed_dyn_error()
        })
    };
    let probe = args.probe.clone();
    let sql = match (&args.sql, &question) {
        (Some(sql), None) => sql.as_str(),
        (None, Some(_)) => "",
        _ => {
            let reason = "ask in SQL, or one of: top talkers, top ports, top pairs, by network, by application, \
                          by protocol, by device, by status, over time, who talked to ADDRESS, worst calls, worst streams, \
                          calls by status, top hosts, slowest transactions, missing";
            return Err(wrong("query", reason));
        }
    };
    let answered = match (&args.store, &args.at.at) {
        (Some(_), Some(_)) => return Err(wrong("--at", "it excludes --store")),
        (None, None) => {
            return Err(wrong("--store", "name the folder of the store, or a server with --at"));
        }
        (None, Some(at)) => {
            let reason = "a server is asked ready-made queries; its own client (clickhouse-client) takes SQL";
            let question = question.as_ref().ok_or_else(|| wrong("--at", reason))?;
            let rows = Shipped { from_ns, to_ns, probe, ..Shipped::default() };
            args.at.ask(at, question, rows, args.limit, form, &mut sink)
        }
        (Some(folder), None) => {
            let (folder, memory_mib) = (folder.clone(), args.memory as usize);
            let mut asker = args.at.asker(AskSettings { folder, memory_mib, from_ns, to_ns, probe })?;
            let mut named = |path: &std::path::Path, why: &str| {
                let path = path.display().to_string();
                tracing::warn!("{} cannot be read and is left out: {}", printable(&path), printable(why));
            };
            match &question {
                Some(question) => asker.answer(question, args.limit, form, &mut sink, &mut named),
                None => asker.ask(sql, form, &mut sink, &mut named),
            }
            .map_err(Into::into)
        }
    };
    let Err(error) = answered else { return Ok(()) };
    match error.downcast::<wirelane_store::Error>() {
        Ok(wirelane_store::Error::Output(_)) if gone => Err(wirelane_monitor::out::ReaderGone.into()),
        Ok(wirelane_store::Error::Sql { message, at, hint }) => {
            Err(wrong("SQL", asked::mistake(sql, &message, at, hint.as_deref())))
        }
        Ok(error) => Err(error.into()),
        Err(error) => Err(error),
    }
}

/// The requested time span, in nanoseconds since 1970.
#[cfg(feature = "store")]
pub fn range(
    from: Option<Moment>,
    to: Option<Moment>,
    last: Option<Duration>,
) -> Result<(Option<i64>, Option<i64>)> {
    let (from_ns, to_ns) = match last {
        Some(last) => {
            (Some(asked::now_ns().saturating_sub(i64::try_from(last.as_nanos()).unwrap_or(i64::MAX))), None)
        }
        None => (from.map(Moment::ns).transpose()?, to.map(Moment::ns).transpose()?),
    };
    if let (Some(from), Some(to)) = (from_ns, to_ns)
        && from >= to
    {
        return Err(wrong("--to", "no time is left between --from and --to"));
    }
    Ok((from_ns, to_ns))
}

#[cfg(feature = "store")]
fn question(
    ready: &Ready,
    from_ns: Option<i64>,
    to_ns: Option<i64>,
) -> Result<wirelane_store::query::Question> {
    use wirelane_store::query::{Peer, Question};

    Ok(match ready {
        Ready::Top { what: Top::Talkers } => Question::Talkers,
        Ready::Top { what: Top::Ports } => Question::Ports,
        Ready::Top { what: Top::Pairs } => Question::Pairs,
        Ready::Top { what: Top::Hosts } => Question::Hosts,
        Ready::Worst { what: Worst::Calls } => Question::WorstCalls,
        Ready::Worst { what: Worst::Streams } => Question::WorstStreams,
        Ready::Calls { .. } => Question::CallStatus,
        Ready::Slowest { .. } => Question::Slowest,
        Ready::By { what: By::Network, bits4, bits6 } => Question::Networks { bits4: *bits4, bits6: *bits6 },
        Ready::By { what: By::Application, .. } => Question::Applications,
        Ready::By { what: By::Protocol, .. } => Question::Protocols,
        Ready::By { what: By::Device, .. } => Question::Devices,
        Ready::By { what: By::Status, .. } => Question::HttpStatus,
        Ready::Missing => Question::Missing,
        Ready::Over { step, .. } => {
            let step = step.map_or_else(|| asked::step_of(from_ns, to_ns), |step| step.as_secs().max(1));
            Question::OverTime { step }
        }
        Ready::Who { address, .. } => {
            let peer = Peer::parse(address).ok_or_else(|| {
                wrong("who talked to", format!("'{address}' is neither an address nor a network"))
            })?;
            Question::WhoTalkedTo(peer)
        }
    })
}
