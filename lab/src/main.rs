//! `wirelane-testbed`: suites of traffic against any sensor, on this machine or between two. `wirelane testbed` runs it.

use std::process::ExitCode;

fn main() -> ExitCode {
    wirelane_lab::program::main()
}
