//! The `wirelane` command: a file per subcommand, thin over the library.
mod choices;
mod completions;
mod count;
mod devices;
mod extcap;
mod flows;
mod groups;
mod help;
mod hints;
mod http;
mod instance;
mod man;
mod metrics;
mod monitor;
mod outputs;
mod packets;
#[cfg(test)]
mod pages;
mod probe;
mod query;
mod receive;
mod record;
mod report_command;
mod rights;
mod ruled;
mod rules;
mod run;
mod send;
mod ship;
mod source;
mod status;
mod testbed;
mod tune;
mod values;
mod voip;

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser};
use wirelane::escape::printable_lines;
use wirelane_monitor::helper::{self, Permitted};
use wirelane_screen::warnings::{self, Warnings};

/// Multi-core packet capture for stock Linux, with an account of every packet
#[derive(Parser)]
#[command(name = "wirelane", version, arg_required_else_help = true, after_help = HELP)]
enum Command {
    Devices(devices::Args),
    Check(monitor::CheckArgs),
    Count(Box<count::Args>),
    Flows(Box<flows::Args>),
    Groups(groups::Args),
    Http(Box<http::Args>),
    Monitor(monitor::Args),
    Packets(Box<packets::Args>),
    Probe(Box<probe::Args>),
    Query(Box<query::Args>),
    Receive(Box<receive::Args>),
    Record(Box<record::Args>),
    Reload(status::ReloadArgs),
    Report(report_command::Args),
    Rules(Box<rules::Args>),
    Send(Box<send::Args>),
    Ship(Box<ship::Args>),
    Run(run::Args),
    Status(status::StatusArgs),
    Extcap(extcap::Args),
    #[command(name = "command-helper", hide = true)]
    /// Runs commands and reads a configuration for another wirelane process
    Helper {
        /// Commands that run at once
        jobs: usize,
        /// Shell command for each finished file
        #[arg(long, conflicts_with = "config")]
        shell: Option<String>,
        /// The configuration
        #[arg(long)]
        config: Option<PathBuf>,
        /// The file of a monitor
        #[arg(long, conflicts_with = "config")]
        monitor: Option<PathBuf>,
    },
    Completions(completions::Args),
    Man(man::Args),
    Testbed(testbed::Args),
    Tune(tune::Args),
    Voip(Box<voip::Args>),
}

const HELP: &str = "\
Start with:
  wirelane devices              list devices and their RX queues
  sudo wirelane count -i eth1   count on every RX queue of eth1, until Ctrl-C
  wirelane count --help         all options, the meaning of columns, examples

WIRELANE_LOG=info (or debug) in the environment prints more on standard error.";

/// Filter of log messages without WIRELANE_LOG: warnings, and the reloads of a monitor.
const LOGGED: &str = "warn,wirelane_monitor::control=info";

/// Log messages go to standard error, with their priority for the journal.
struct StandardError;

impl<'a> tracing_subscriber::fmt::MakeWriter<'a> for StandardError {
    type Writer = Warnings;

    fn make_writer(&'a self) -> Warnings {
        Warnings::of(warnings::INFO)
    }

    fn make_writer_for(&'a self, meta: &tracing::Metadata<'_>) -> Warnings {
        Warnings::of(match *meta.level() {
            tracing::Level::ERROR => warnings::ERROR,
            tracing::Level::WARN => warnings::WARNING,
            tracing::Level::INFO => warnings::INFO,
            _ => warnings::DEBUG,
        })
    }
}

fn main() -> ExitCode {
    // Standard output contains only results; log messages go to standard error.
    tracing_subscriber::fmt()
        .with_writer(StandardError)
        .with_ansi(wirelane_monitor::out::in_colour(&io::stderr()))
        .without_time()
        // The subscriber panics where it cannot report that standard error is gone: a terminal was closed.
        .log_internal_errors(false)
        .with_target(false)
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("WIRELANE_LOG").unwrap_or_else(|_| LOGGED.into()),
        )
        .init();
    wirelane_monitor::out::open();
    wirelane_screen::table::fit_terminal();
    // Usage errors exit 2 (clap's own).
    let (command, matches) = parse();
    let result = outputs::choose_zone(&matches).and_then(|()| run(command, &matches));
    wirelane_screen::terminal::restore();
    let printed = wirelane_monitor::out::finish();
    match result.and(printed) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is::<wirelane_monitor::out::ReaderGone>() => ExitCode::SUCCESS,
        Err(error) => {
            // Errors quote external names and data. A closed standard error is ignored.
            let text = format!("wirelane: {}\n", printable_lines(&message(&error)));
            let _ = Warnings::of(warnings::ERROR).write_all(text.as_bytes());
            ExitCode::from(status(&error))
        }
    }
}

/// Runs a command. `matches`: the words of the command line by option.
fn run(command: Command, matches: &ArgMatches) -> anyhow::Result<()> {
    match command {
        Command::Devices(args) => devices::run(&args),
        Command::Check(args) => monitor::check(&args),
        Command::Count(args) => count::run(*args),
        Command::Flows(args) if args.print_config => monitor::print::run("flows", matches, &[]),
        Command::Flows(args) => flows::run(*args),
        Command::Groups(args) => groups::run(&args),
        Command::Http(args) if args.print_config => monitor::print::run("http", matches, &[]),
        Command::Http(args) => http::run(*args),
        Command::Monitor(args) => monitor::run(&args),
        Command::Packets(args) => packets::run(*args),
        Command::Probe(args) if args.print_config => {
            probe::settled(*args).and_then(|settled| monitor::print::run("probe", matches, &settled))
        }
        Command::Probe(args) => probe::run(*args),
        Command::Query(args) => query::run(&args),
        Command::Receive(args) => receive::run(*args),
        Command::Record(args) if args.print_config => monitor::print::run("record", matches, &[]),
        Command::Record(args) => record::run(*args),
        Command::Reload(args) => status::reload(&args),
        Command::Report(args) => report_command::run(&args),
        Command::Rules(args) => rules::run(&args),
        Command::Send(args) => send::run(*args),
        Command::Ship(args) => ship::run(&args),
        Command::Run(args) => run::run(&args),
        Command::Status(args) => status::status(&args),
        Command::Extcap(args) => extcap::run(&args),
        Command::Helper { jobs, shell, config, monitor } => {
            helper::run(&Permitted { jobs, shell, config, monitor }, monitor::read)
        }
        Command::Completions(args) => completions::run(&args, Command::command()),
        Command::Man(args) => man::run(&args, Command::command()),
        Command::Testbed(args) => testbed::run(&args),
        Command::Tune(args) => tune::run(&args),
        Command::Voip(args) if args.print_config => monitor::print::run("voip", matches, &[]),
        Command::Voip(args) => voip::run(*args),
    }
}

/// The command line, and its words by option. Exits if it is wrong, or asks for help.
fn parse() -> (Command, ArgMatches) {
    let mut words: Vec<OsString> = std::env::args_os().collect();
    // tcpdump's -D, with or without the name of a command before it.
    if (2..=3).contains(&words.len())
        && words.last().is_some_and(|word| word == "-D" || word == "--list-interfaces")
    {
        words = vec![words.swap_remove(0), "devices".into()];
    }
    let parsed = help::grouped(Command::command()).try_get_matches_from(&words);
    let parsed = parsed.and_then(|matches| Ok((Command::from_arg_matches(&matches)?, matches)));
    parsed.unwrap_or_else(|mut error| {
        if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::InvalidSubcommand)
            && let Some(text) = help::asked(Command::command(), &words)
        {
            let printed = io::stdout().write_all(text.as_bytes());
            std::process::exit(i32::from(printed.is_err()));
        }
        let first = words.get(1).and_then(|word| word.to_str()).filter(|word| !word.starts_with('-'));
        hints::improve(&mut error, first);
        hints::of_number(error, &Command::command()).exit()
    })
}

/// Exit status: 2 for usage errors, as for clap's own errors, 3 for partial success, else 1.
fn status(error: &anyhow::Error) -> u8 {
    if error.is::<tune::Partial>() {
        return 3;
    }
    if is_usage(error) { 2 } else { 1 }
}

/// Whether the error is a usage error, from any crate.
fn is_usage(error: &anyhow::Error) -> bool {
    use wirelane::device;
    let library: Option<&wirelane::Error> = error.downcast_ref();
    library.is_some_and(wirelane::Error::is_usage)
        || error.downcast_ref().is_some_and(wirelane_send::Error::is_usage)
        || error.is::<wirelane::filter::Error>()
        || error.is::<wirelane_monitor::site::Mistakes>()
        || matches!(error.downcast_ref(), Some(wirelane::tune::Error::BadOption { .. }))
        || matches!(error.downcast_ref(), Some(wirelane::rules::Error::BadOption { .. }))
        || matches!(error.downcast_ref(), Some(device::Error::BadSelector { .. }))
        || matches!(error.downcast_ref(), Some(wirelane_pcapng::Error::BadOption { .. }))
        || matches!(error.downcast_ref(), Some(wirelane::SandboxError::BadOption { .. }))
}

/// The error and its causes, without those that are contained in the text before them.
fn message(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if !text.contains(&cause) {
            text = if text.is_empty() { cause } else { format!("{text}: {cause}") };
        }
    }
    text + &descriptors_hint(error)
}

/// Advice for a process that has reached its limit of open files; libbpf and others report that only as text.
fn descriptors_hint(error: &anyhow::Error) -> String {
    let full = rustix::io::Errno::MFILE.to_string();
    if !error.chain().any(|cause| format!("{cause:#}").contains(&full)) {
        return String::new();
    }
    match rustix::process::getrlimit(rustix::process::Resource::Nofile).current {
        Some(limit) => format!("; at most {limit} are allowed: raise that with ulimit -n"),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Command::command().debug_assert();
    }

    #[test]
    fn help_fits_80_columns() {
        let all = [
            HELP,
            devices::HELP,
            count::HELP,
            flows::HELP,
            groups::HELP,
            http::HELP,
            monitor::HELP,
            monitor::CHECK_HELP,
            packets::HELP,
            probe::HELP,
            probe::set::SET_HELP,
            query::HELP,
            report_command::HELP,
            receive::HELP,
            ship::HELP,
            record::HELP,
            rules::HELP,
            send::HELP,
            status::HELP,
            status::RELOAD_HELP,
            completions::HELP,
            man::HELP,
            tune::HELP,
            voip::HELP,
        ];
        for help in all {
            let long: Vec<&str> = help.lines().filter(|line| line.chars().count() > 80).collect();
            assert!(long.is_empty(), "{long:#?}");
        }
    }
}
