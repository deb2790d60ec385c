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
    use std::io::Read as _;
    use std::path::Path;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Mutex, PoisonError};
    use std::time::Instant;

    use anyhow::{Context as _, bail, ensure};
    use wirelane::Error;
    use wirelane::escape::{printable, to_json};
    use wirelane::sandbox::Work;
    use wirelane_ship::{Destination, Place, Secrets, Settings, Shipper, Status, Target};
    use wirelane_store::shipping::{Lock, Merged, Merger, Outbox, SHIP};

    use super::*;

    /// Time between two looks of a thread for new files, and for the end.
    const LOOK: Duration = Duration::from_millis(200);
    /// Failed attempts after which --once gives up.
    const ATTEMPTS: u64 = 5;
    /// Time between two searches for small files that can be merged.
    const MERGE: Duration = Duration::from_secs(60);
    /// Time that another shipper gets to end, as after a restart of its monitor.
    const ENDING: Duration = Duration::from_secs(3);

    fn wrong(option: &'static str, reason: impl Into<String>) -> anyhow::Error {
        Error::BadOption { option, reason: reason.into() }.into()
    }

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

    /// Takes the lock of the one shipper. One that ends gets a moment for it.
    fn locked(store: &Path) -> Result<Lock> {
        let end = Instant::now() + ENDING;
        loop {
            let lock = Lock::shipper(store).with_context(|| format!("the store {}", store.display()))?;
            match lock {
                Some(lock) => return Ok(lock),
                None if Instant::now() < end => std::thread::sleep(LOOK),
                None => bail!(
                    "another process ships the store {}: one process ships to several targets (--to ... --to ...)",
                    store.display()
                ),
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
        let (passwords, probe) = (&args.password_file, args.probe()?);
        let names: Vec<String> = targets.iter().map(Place::name).collect();
        let is_store = wirelane_store::Table::ALL.iter().any(|table| store.join(table.name()).is_dir());
        ensure!(
            is_store,
            "{} is not a store: it has none of the folders flows, calls, transactions, ...",
            store.display()
        );
        let _lock = locked(&store)?;
        let settings = Settings {
            store: store.clone(),
            batch_size: args.batch_size,
            batch_age: args.batch_age,
            create: args.create,
            probe,
        };
        for name in &names {
            Outbox::prepare(&store, name)?;
        }
        let mut destinations: Vec<(Place, Box<dyn Destination>)> = Vec::new();
        for (at, place) in targets.into_iter().enumerate() {
            let password = passwords.get(at).or(passwords.first().filter(|_| passwords.len() == 1));
            let secrets = Secrets::read(password.map(PathBuf::as_path), args.ca.as_deref())?;
            let destination = place.clone().open(&secrets, args.patience)?;
            destinations.push((place, destination));
        }
        let (stop, ending) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(args.once)));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP]
        {
            let flag = if args.until_input_ends { Arc::default() } else { Arc::clone(&stop) };
            signal_hook::flag::register(signal, flag).context("catching signals")?;
        }
        let places = || destinations.iter().map(|(place, _)| place);
        let (ports, resolves) = (places().flat_map(Place::ports), places().any(Place::resolves_names));
        let rights = args.rights.shipping(&store, &store.join(SHIP), ports, resolves);
        if let Some(sandbox) = rights.confinement(Work::Ship, None)? {
            sandbox.apply()?;
        }
        // Statuses may be shown before the first attempt has ended.
        let begin = |place: &Place| Status { to: place.to_string(), ..Status::default() };
        let boards: Vec<Mutex<Status>> = places().map(|place| Mutex::new(begin(place))).collect();
        let merged = Merged::default();
        let open = |(place, destination): (Place, Box<dyn Destination>)| {
            Shipper::open(settings.clone(), &place, destination, merged.clone())
        };
        let shippers = destinations.into_iter().map(open);
        let shippers = shippers.collect::<wirelane_ship::Result<Vec<_>>>()?;
        if args.until_input_ends {
            let ending = Arc::clone(&ending);
            // It is not waited for: the process ends without it after a failure.
            std::thread::spawn(move || {
                let _ = std::io::stdin().read_to_end(&mut Vec::new());
                ending.store(true, Ordering::Relaxed);
            });
        }
        let (merger, over) = (Merger::new(&store, merged), AtomicBool::new(args.once));
        std::thread::scope(|scope| {
            let threads: Vec<_> = shippers
                .into_iter()
                .zip(&boards)
                .map(|(shipper, board)| scope.spawn(|| ship(shipper, args.once, &ending, &stop, board)))
                .collect();
            let merging = scope.spawn(|| merge(&merger, &over));
            let mut told = Instant::now();
            while !threads.iter().all(|thread| thread.is_finished()) {
                std::thread::sleep(LOOK);
                if told.elapsed() >= args.interval {
                    told = Instant::now();
                    if show(&boards, args.json).is_err() {
                        stop.store(true, Ordering::Relaxed);
                    }
                }
            }
            over.store(true, Ordering::Relaxed);
            show(&boards, args.json)?;
            for thread in threads {
                match thread.join() {
                    Ok(result) => result?,
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            if merging.join().is_err() {
                bail!("the thread that merges files panicked; this is a bug");
            }
            if args.once {
                merger.pass(now_s(), &|| !stop.load(Ordering::Relaxed)).context("merging small files")?;
            }
            Ok(())
        })
    }

    /// Seconds since 1970.
    fn now_s() -> i64 {
        let now = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH);
        now.map_or(0, |now| now.as_secs().cast_signed())
    }

    /// Merges small files from time to time, until it is over.
    fn merge(merger: &Merger, over: &AtomicBool) {
        let goes_on = || !over.load(Ordering::Relaxed);
        let (mut last, mut failed) = (Instant::now(), false);
        while goes_on() {
            std::thread::sleep(LOOK);
            if last.elapsed() < MERGE {
                continue;
            }
            last = Instant::now();
            match merger.pass(now_s(), &goes_on) {
                Ok(_) => failed = false,
                Err(error) if !failed => {
                    failed = true;
                    let error = error.to_string();
                    tracing::warn!("small files are not merged: {}; it is tried again", printable(&error));
                }
                Err(_) => {}
            }
        }
    }

    /// Ships to one target until it is stopped, or until the end, when everything that waits is due.
    fn ship(
        mut shipper: Shipper,
        once: bool,
        ending: &AtomicBool,
        stop: &AtomicBool,
        board: &Mutex<Status>,
    ) -> Result<()> {
        let mut failures = 0;
        loop {
            let ends = ending.load(Ordering::Relaxed);
            let result = shipper.step(ends);
            let status = shipper.status()?;
            *board.lock().unwrap_or_else(PoisonError::into_inner) = status.clone();
            let delay = match result {
                Ok(true) => {
                    failures = 0;
                    Duration::ZERO
                }
                Ok(false) if ends => return Ok(()),
                Ok(false) => LOOK,
                Err(error) => {
                    failures += 1;
                    if once && (error.is_final() || failures >= ATTEMPTS) {
                        let files = wirelane_screen::table::counted(status.waiting_files, "file");
                        bail!("{files} not shipped to {}: {error}", status.to);
                    }
                    if failures == 1 {
                        tracing::warn!("{}: {}; it is tried again", status.to, printable(&error.to_string()));
                    }
                    // The next process goes on.
                    if ends && !once {
                        return Ok(());
                    }
                    shipper.delay()
                }
            };
            let until = Instant::now() + delay;
            let waits = || {
                Instant::now() < until
                    && !stop.load(Ordering::Relaxed)
                    && ending.load(Ordering::Relaxed) == ends
            };
            while waits() {
                std::thread::sleep(LOOK.min(until.saturating_duration_since(Instant::now())));
            }
            if stop.load(Ordering::Relaxed) {
                return Ok(());
            }
        }
    }

    /// Prints a line for each target.
    fn show(boards: &[Mutex<Status>], json: bool) -> Result<()> {
        for board in boards {
            let status = board.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let mut line = match json {
                true => to_json(&status)?,
                false => {
                    let error =
                        status.error.map(|error| format!("; {}", printable(&error))).unwrap_or_default();
                    format!(
                        "{}: {} rows in {} batches shipped, {} files ({} bytes) wait, lag {:.1} s, {} retries{error}",
                        printable(&status.to),
                        status.shipped_rows,
                        status.batches,
                        status.waiting_files,
                        status.waiting_bytes,
                        status.lag_s,
                        status.retries
                    )
                }
            };
            line.push('\n');
            wirelane_monitor::out::print(line)?;
        }
        Ok(())
    }
}
