//! `wirelane ship`: a store to ClickHouse, Kafka and S3.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;

use crate::record::options::size;
use crate::rights::RightsArgs;
use crate::values::seconds;

/// Heading of the help.
const BATCHES: &str = "Batches";

/// Ship a store to ClickHouse, Kafka or S3: every row arrives, and what retention took before it was shipped is counted
///
/// The files of the store are the outbox: 'wirelane flows --store DIR' and others write them, this command sends them, and
/// a batch is repeated until the server has acknowledged it. The state is in the store (.ship), so the command can be
/// killed at any moment. It needs no rights of a capture, and drops those that it has. While a store is shipped, its
/// writers end a file every 10 s unless --store-rotate says otherwise.
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// The store's folder
    #[arg(value_name = "DIR", required_unless_present_any = ["ddl", "proto"])]
    store: Option<PathBuf>,

    /// Target: clickhouse+https://USER@HOST:PORT/DATABASE, kafka://BROKER:PORT,BROKER/TOPIC or s3://BUCKET/PREFIX. Several
    /// have a state each
    #[arg(long, value_name = "TARGET", required_unless_present_any = ["ddl", "proto"])]
    to: Vec<String>,

    /// File with the password, which others must not be able to read: one for all targets, or one for each in their order
    #[arg(long, value_name = "FILE")]
    password_file: Vec<PathBuf>,

    /// File with certificates (PEM) of the authorities to trust. Default: the public ones
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,

    /// Print the schema as SQL for this database, and end. Applied again it changes nothing; it adds missing columns
    #[arg(long, value_name = "DATABASE", num_args = 0..=1, default_missing_value = "wirelane", conflicts_with = "to")]
    ddl: Option<String>,

    /// Print the schema of flows in Kafka as protobuf, and end
    #[arg(long, conflicts_with_all = ["to", "ddl"])]
    proto: bool,

    /// Apply the schema first; of Kafka, create missing topics
    #[arg(long)]
    create: bool,

    /// Ship what is there, and end; a file counts once it is complete
    #[arg(long)]
    once: bool,

    /// Name of the probe for files of older versions, which do not name theirs. Default: the name of the host
    #[arg(long, value_name = "NAME")]
    probe: Option<String>,

    /// Send a batch at this size of its files
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "32MB", help_heading = BATCHES)]
    batch_size: u64,

    /// Send a batch at the latest this long after its first file was complete
    #[arg(long, value_name = "TIME", value_parser = seconds, default_value = "1s", help_heading = BATCHES)]
    batch_age: Duration,

    /// Limit of a request, or of a message's acknowledgement; then the batch is sent again under its token
    #[arg(long, value_name = "TIME", value_parser = seconds, default_value = "60s", help_heading = BATCHES)]
    patience: Duration,

    /// Time between two lines of status
    #[arg(long, value_name = "TIME", value_parser = seconds, default_value = "10s")]
    interval: Duration,

    /// Print the status as JSON lines
    #[arg(long)]
    json: bool,

    /// Ship until the input ends, then what is there, and end: beside a monitor, whose signals do not end it
    #[arg(long, hide = true, conflicts_with = "once")]
    until_input_ends: bool,

    #[command(flatten)]
    rights: RightsArgs,
}

/// Text after the options in the long help.
pub const HELP: &str = "\
Exactly once: a batch is of whole files of a day and a table. Its files and its
token are on the disk before it is sent. ClickHouse drops a repetition by the
token (insert_deduplication_token), in its views too; in S3 it finds its own
objects. In Kafka a repetition has the same headers wirelane-batch and
wirelane-row as before. Each batch has a row for each probe and hour in the
table 'shipments', and so have files that retention removed before they were
shipped (kind 'unshipped').

Kafka: flows are goflow2's FlowMessage (--proto) in TOPIC, a message for each
direction, with their length in front unless the target ends in ?framing=none.
Other tables are JSON lines in TOPIC-calls, TOPIC-ledgers and so on.
S3: the bucket must exist. Credentials are s3://KEY@BUCKET/PREFIX and the secret
key in --password-file, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.

Retention of the store removes no file that a target lacks, except by
--store-max-size. A target that is given up: remove its folder in DIR/.ship.

Examples:
  wirelane ship --ddl | clickhouse-client -mn
  wirelane ship flows.db --to clickhouse+https://probe@ch.example.net/wirelane
      --password-file /etc/wirelane/ch.password --create
  wirelane ship flows.db --to clickhouse+http://127.0.0.1:8123/wirelane --once
  wirelane ship flows.db --to kafka://kafka1:9092,kafka2:9092/flows
  wirelane ship flows.db --to s3://bucket/wirelane?region=eu-central-1
      --batch-age 5m

Exit status: 0 done (also after Ctrl-C), 1 failed, or with --once something is
not shipped, 2 wrong usage.";

/// Options that are keys of [ship] in the file of a monitor.
pub const KEYS: [&str; 8] =
    ["to", "password-file", "ca", "create", "probe", "batch-size", "batch-age", "patience"];

#[cfg(not(feature = "ship"))]
impl Args {
    /// Refuses all options.
    pub fn check(&self) -> Result<()> {
        run(self)
    }
}

/// Runs the command.
#[cfg(not(feature = "ship"))]
pub fn run(_args: &Args) -> Result<()> {
    anyhow::bail!("this program was built without shipping (cargo: feature 'ship' of the crate wirelane-cli)")
}

#[cfg(feature = "ship")]
pub use built::run;

#[cfg(feature = "ship")]
mod built {
    use anyhow::{Context as _, ensure};
    use wirelane::sandbox::Work;
    use wirelane_monitor::shipping::{Opened, Until};
    use wirelane_ship::{Place, Settings, Target};
    use wirelane_store::shipping::SHIP;

    use super::*;
    use crate::values::wrong;

    impl Args {
        /// Checks the values that are otherwise checked at the start.
        ///
        /// # Errors
        /// A usage error.
        pub fn check(&self) -> Result<()> {
            self.probe()?;
            self.targets().map(|_| ())
        }

        fn targets(&self) -> Result<Vec<Place>> {
            let targets = self.to.iter().map(|to| Place::parse(to));
            let targets = targets.collect::<wirelane_ship::Result<Vec<_>>>();
            let targets = targets.map_err(|error| wrong("--to", error.to_string()))?;
            let names: std::collections::BTreeSet<String> = targets.iter().map(Place::name).collect();
            ensure!(names.len() == targets.len(), wrong("--to", "a target is given twice"));
            if self.password_file.len() > 1 && self.password_file.len() != targets.len() {
                return Err(wrong("--password-file", "give one, or one for each --to"));
            }
            Ok(targets)
        }

        /// Name of the probe for files that do not name theirs.
        fn probe(&self) -> Result<String> {
            match &self.probe {
                Some(name) => wirelane_store::probe_name(name).map_err(|why| wrong("--probe", why)),
                None => wirelane_store::host_name().context("give the name of the probe with --probe"),
            }
        }
    }

    /// Runs the command.
    ///
    /// # Errors
    /// If a target or a file is not valid, another process ships the store, or with --once something is not shipped.
    pub fn run(args: &Args) -> Result<()> {
        if let Some(database) = &args.ddl {
            Target::parse(&format!("clickhouse+http://h/{database}")).map_err(|_| {
                wrong(
                    "--ddl",
                    format!("'{database}' is not a name of a database: expected letters, digits and _"),
                )
            })?;
            let text: String = wirelane_ship::ddl::statements(database)
                .iter()
                .map(|statement| format!("{statement};\n\n"))
                .collect();
            return wirelane_monitor::out::print(text);
        }
        if args.proto {
            return wirelane_monitor::out::print(wirelane_ship::PROTO);
        }
        let store = args.store.clone().context("no store")?;
        let targets = args.targets()?;
        let settings = Settings {
            store: store.clone(),
            batch_size: args.batch_size,
            batch_age: args.batch_age,
            create: args.create,
            probe: args.probe()?,
        };
        let until = match (args.once, args.until_input_ends) {
            (true, _) => Until::Shipped,
            (_, true) => Until::InputEnds,
            _ => Until::Signal,
        };
        let (passwords, authorities) = (&args.password_file, args.ca.as_deref());
        let opened = Opened::open(settings, targets, passwords, authorities, args.patience, until)?;
        let (ports, resolves) =
            (opened.places().flat_map(Place::ports), opened.places().any(Place::resolves_names));
        let rights = args.rights.shipping(&store, &store.join(SHIP), ports, resolves);
        if let Some(sandbox) = rights.confinement(Work::Ship, None)? {
            sandbox.apply()?;
        }
        opened.run(args.interval, args.json)
    }
}
