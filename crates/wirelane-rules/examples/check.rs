//! Checks rule files and prints every mistake with its line and column.
use std::env;
use std::process::ExitCode;

use wirelane_rules::RuleSet;

fn main() -> ExitCode {
    let mut status = ExitCode::SUCCESS;
    for path in env::args().skip(1) {
        match RuleSet::read(&path) {
            Ok(set) => {
                println!("{path}: {} wildcard rules, {} exact-match rules", set.rules.len(), set.exact.len())
            }
            Err(error) => {
                println!("{error}");
                status = ExitCode::FAILURE;
            }
        }
    }
    status
}
