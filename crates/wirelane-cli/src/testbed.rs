//! `wirelane testbed`: runs the program `wirelane-testbed`, which measures packet capture programs.

use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

/// The program that is run.
const PROGRAM: &str = "wirelane-testbed";

/// Measure any sensor under suites of traffic: runs the program wirelane-testbed
///
/// wirelane-testbed is a program of its own, which is looked for beside this one and then in PATH; all that follows
/// 'testbed' is passed on to it. In the project's repository 'make build' builds it, and 'make install' installs it.
#[derive(clap::Args, Debug)]
#[command(disable_help_flag = true)]
pub struct Args {
    /// Arguments of wirelane-testbed; --help lists them
    #[arg(value_name = "ARGUMENT", trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Replaces this process with `wirelane-testbed`.
///
/// # Errors
/// If the program is missing or does not start.
pub fn run(args: &Args) -> Result<()> {
    let program = find()?;
    let error = Command::new(&program).args(&args.arguments).exec();
    Err(error).with_context(|| format!("starting {}", program.display()))
}

/// The program beside this one, else the first in PATH.
fn find() -> Result<PathBuf> {
    let beside = env::current_exe().context("finding this program")?.with_file_name(PROGRAM);
    let path = env::var_os("PATH").unwrap_or_default();
    let in_path = env::split_paths(&path).map(|folder| folder.join(PROGRAM));
    std::iter::once(beside.clone()).chain(in_path).find(|program| program.is_file()).with_context(|| {
        format!(
            "{PROGRAM} is not installed: it is neither {} nor in PATH. Build it with 'make build', or with 'cargo build \
             --release -p wirelane-lab --bin {PROGRAM}', and put it beside wirelane",
            beside.display()
        )
    })
}
