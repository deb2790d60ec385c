//! Simulated crashes at a chosen point of applying or restoring, for tests: as with SIGKILL, nothing is cleaned up.

use std::cell::Cell;
use std::fs::File;
use std::io::Write;

thread_local! {
    static LEFT: Cell<Option<u32>> = const { Cell::new(None) };
}

/// Panic message of a simulated crash.
pub(super) const DEATH: &str = "killed at the chosen point";

/// Lets this thread pass `points` more crash points; `None`: all of them.
pub(super) fn after(points: Option<u32>) {
    LEFT.set(points);
}

/// A point at which a simulated crash may happen.
pub(super) fn point() {
    match LEFT.get() {
        Some(0) => {
            LEFT.set(None);
            panic!("{DEATH}");
        }
        Some(left) => LEFT.set(Some(left - 1)),
        None => {}
    }
}

/// Writes the first half of a line, so that a crash can happen in the middle; returns the second half.
pub(super) fn torn(file: &mut File, line: Vec<u8>) -> Vec<u8> {
    point();
    let (first, rest) = line.split_at(line.len() / 2);
    file.write_all(first).unwrap();
    point();
    rest.to_vec()
}
