//! The `wirelane` command: a file per subcommand, thin over the library.
mod count;
mod devices;
mod record;
mod report;
mod send;
mod session;
mod source;
mod table;

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use clap::Parser;

/// Multi-core packet capture and traffic analysis for stock Linux
#[derive(Parser)]
#[command(name = "wirelane", version, about, arg_required_else_help = true)]
enum Command {
    Devices(devices::Args),
    Count(count::Args),
    Record(record::Args),
    Send(Box<send::Args>),
}

fn main() -> ExitCode {
    // Standard output holds results only; what we have to say goes to standard error.
    tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .without_time()
        .with_target(false)
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("WIRELANE_LOG").unwrap_or_else(|_| "warn".into()),
        )
        .init();
    // Usage errors exit 2 (clap's own).
    let result = match Command::parse() {
        Command::Devices(args) => devices::run(&args),
        Command::Count(args) => count::run(&args),
        Command::Record(args) => record::run(&args),
        Command::Send(args) => send::run(*args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nothing is left to do if standard error is closed.
            let _ = writeln!(io::stderr(), "wirelane: {}", message(&error));
            ExitCode::FAILURE
        }
    }
}

/// The error and its causes, without those that the text before them has already told.
fn message(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if !text.contains(&cause) {
            text = if text.is_empty() { cause } else { format!("{text}: {cause}") };
        }
    }
    text
}
