//! Rule files, and the verdicts of their rules.
//!
//! ```text
//! file          what rule files mean
//! mistakes      what is wrong with them, and where
//! others        files that they name: other rule files, lists, CSV
//! hostile       texts that nobody would write
//! possible      rules that no packet can hit
//! evaluate         compiled sets against the reference, over made-up packets and the corpus
//! kernel        the same in the kernel
//! tables        how large compiled sets are, and what is refused
//! egress devices         rules that send packets to other devices
//! after         conditions on earlier hits
//! explain       why
//! sets          named sets: as they are written, what is wrong with them, and what they answer
//! applications  fields of application protocols, in payloads made for them
//! fields        the same in the corpus
//! patterns      patterns, the same way, and what is found where payloads begin, end and are cut
//! million       a million entries in the kernel
//! generator     makes sets, of values that meet
//! packets       makes packets of the same values
//! ```

mod after;
mod applications;
mod both_ways;
mod egress_devices;
mod evaluate;
mod explain;
mod fields;
mod file;
mod hostile;
mod mistakes;
mod others;
mod patterns;
mod plugins;
mod possible;
mod sets;
mod tables;

use super::{Mistake, RuleSet};
use crate::Error;
use crate::testing::{generator, set};

/// The mistakes of a text, each as `line:column: reason`.
fn mistakes(text: &str) -> Vec<String> {
    match RuleSet::parse(text) {
        Ok(set) => panic!("no mistake in {text}: {set:?}"),
        Err(error) => listed(error),
    }
}

fn listed(error: Error) -> Vec<String> {
    let Error::Rules { mistakes } = error else { panic!("another error: {error}") };
    assert!(!mistakes.is_empty());
    let line = |mistake: &Mistake| format!("{}:{}: {}", mistake.line, mistake.column, mistake.reason);
    mistakes.iter().map(line).collect()
}
