//! `wirelane report`: a report of a time span of a store, as an HTML page, text or JSON.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;

use crate::outputs::TimesArgs;
use crate::values::{Moment, time};

/// Heading of the help.
const RANGE: &str = "Time span (default: everything)";
/// Heading of the help.
const OUTPUT: &str = "Output";

/// Report on a store: traffic, top talkers and ports, alarms, the ledger
///
/// A store is what 'wirelane probe', 'flows', 'http' and 'voip' write with --store DIR. The report is a page of HTML
/// with charts, text for a terminal, or JSON. It needs only the right to read the files, and can run while they are
/// written; a file counts once it is complete.
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// The store's folder
    #[arg(long, value_name = "DIR")]
    store: PathBuf,

    /// Only what ended at this time or later: 2026-11-23, '2026-11-23 04:00' or 2026-11-23T04:00:30Z. In UTC unless
    /// --local-time is given
    #[arg(long, value_name = "TIME", value_parser = Moment::parse, help_heading = RANGE)]
    from: Option<Moment>,

    /// Only what ended before this time
    #[arg(long, value_name = "TIME", value_parser = Moment::parse, help_heading = RANGE)]
    to: Option<Moment>,

    /// Only what ended within this time until now, as in 15m, 1h or 7d
    #[arg(long, value_name = "TIME", value_parser = time, conflicts_with_all = ["from", "to"], help_heading = RANGE)]
    last: Option<Duration>,

    /// Only what this probe stored
    #[arg(long, value_name = "NAME", help_heading = RANGE)]
    probe: Option<String>,

    /// Time per point of a chart, as in 10s, 5m or 1h. Default: at most 240 points. Not shorter than the measured
    /// intervals
    #[arg(long, value_name = "TIME", value_parser = time, help_heading = RANGE)]
    step: Option<Duration>,

    /// Write an HTML page to this file instead of text; '-' is standard output. The page is self-contained: it runs and
    /// fetches nothing
    #[arg(long, value_name = "FILE", conflicts_with = "json", help_heading = OUTPUT)]
    html: Option<PathBuf>,

    /// Replace an existing file
    #[arg(long, requires = "html", help_heading = OUTPUT)]
    overwrite: bool,

    /// Print a JSON object for each section
    #[arg(long, help_heading = OUTPUT)]
    json: bool,

    #[command(flatten)]
    times: TimesArgs,

    /// Rows of top lists
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000), help_heading = OUTPUT)]
    limit: u32,

    /// Show no progress (shown on terminals only)
    #[arg(short, long, help_heading = OUTPUT)]
    quiet: bool,

    /// Memory for the answers, in MiB. Beyond it, sorting and grouping go on in temporary files (TMPDIR)
    #[arg(long, value_name = "MIB", default_value = "1024", value_parser = crate::values::query_memory)]
    memory: u32,
}

/// Text after the options in the long help.
pub const HELP: &str = "\
Sections, if the store has the data:
  measurements  traffic over time, top keys, lists and histograms   (probe)
  alarms        how often each was raised, and the last ones        (probe)
  ledgers       the ledger, in total and over time                  (probe)
  flows         traffic over time, top talkers, ports, applications (flows)
  transactions  top hosts                                           (http)
  calls         calls by state and status                           (voip)

Examples:
  wirelane report --store probe.db
  wirelane report --store probe.db --last 1d --html day.html
  wirelane report --store probe.db --from 2026-11-23 --to 2026-11-24 --json

Exit status: 0 done, 1 failed, 2 wrong usage.";

/// Runs the command.
#[cfg(not(feature = "store"))]
pub fn run(_args: &Args) -> Result<()> {
    Err(wirelane_monitor::store::not_built())
}

/// Runs the command.
///
/// # Errors
/// If there is no store, too little memory, or a file cannot be written.
#[cfg(feature = "store")]
pub fn run(args: &Args) -> Result<()> {
    use wirelane_monitor::page::Page;
    use wirelane_store::query::{AskSettings, Asker};
    use wirelane_store::report::{ReportSettings, gather};

    let (from_ns, to_ns) = crate::query::range(args.from, args.to, args.last)?;
    let step_s = match args.step {
        Some(step) if step.as_secs() == 0 || step.subsec_nanos() > 0 => {
            let reason = "give whole seconds, as in 1s, 5m or 1h".to_owned();
            return Err(wirelane::Error::BadOption { option: "--step", reason }.into());
        }
        step => step.map(|step| step.as_secs()),
    };
    let folder = args.store.clone();
    let memory_mib = args.memory as usize;
    let mut asker =
        Asker::open(AskSettings { folder, memory_mib, from_ns, to_ns, probe: args.probe.clone() })?;
    let page = args.html.as_deref().map(|path| Page::open(path, args.overwrite)).transpose()?;
    let settings = ReportSettings {
        store: args.store.display().to_string(),
        from_ns,
        to_ns,
        step_s,
        limit: u64::from(args.limit),
    };
    let bar = bar(args.quiet)?;
    let mut progress = |done: usize, of: usize, what: &str| {
        bar.set_length(of as u64);
        bar.set_position(done as u64);
        bar.set_message(wirelane_screen::table::printable(what).into_owned());
    };
    let mut named = |path: &std::path::Path, why: &str| {
        let (path, why) = (path.display().to_string(), wirelane_screen::table::printable(why).into_owned());
        bar.suspend(|| {
            tracing::warn!(
                "{} cannot be read and is left out: {why}",
                wirelane_screen::table::printable(&path)
            );
        });
    };
    let gathered = gather(&mut asker, &settings, &mut named, &mut progress);
    bar.finish_and_clear();
    let report = match (gathered, &page) {
        (Err(error), Some(page)) => {
            page.give_up(args.overwrite);
            return Err(error.into());
        }
        (gathered, _) => gathered?,
    };
    match page {
        Some(page) => {
            let html = report.html(page.place().as_deref());
            page.write(&html)
        }
        None if args.json => wirelane_monitor::out::print(report.json()),
        None => wirelane_monitor::out::print(report.text()),
    }
}

/// Progress bar on standard error; hidden without a terminal.
#[cfg(feature = "store")]
fn bar(quiet: bool) -> Result<indicatif::ProgressBar> {
    use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

    let target = if quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
    let bar = ProgressBar::with_draw_target(Some(1), target);
    bar.set_style(ProgressStyle::with_template("{elapsed:>4} {bar:30} {pos}/{len} {wide_msg}")?);
    // A single query of a long time span takes long, too.
    bar.enable_steady_tick(Duration::from_millis(250));
    Ok(bar)
}
