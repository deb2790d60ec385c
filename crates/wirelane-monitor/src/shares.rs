//! Limits of an analysis and its outputs: how `--memory` is divided, and how much each output may write.

use serde::Serialize;
use wirelane_export::{Limiter, OutputLimit};

/// Bytes that wait for an output that takes nothing, at most.
const OUTPUT: usize = 16 << 20;
/// Maximum bytes of a store's writer.
const STORE: usize = 128 << 20;
/// Bytes of compression and pages of a store's file, which its writer does not count (measured: 7 MiB).
const ENCODER: usize = 8 << 20;

/// The outputs of a command.
#[derive(Clone, Copy, Debug)]
pub struct Outputs {
    /// Logs and exports.
    pub files: usize,
    /// Whether records are printed.
    pub prints: bool,
    /// Whether there is a store.
    pub stores: bool,
}

/// Limits of each part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    /// Memory of the analysis in bytes.
    pub analysis: usize,
    /// Maximum bytes that wait for each log or export.
    pub output: usize,
    /// Memory of the store's writer in bytes.
    pub store: usize,
    /// Write limit of each output.
    pub limit: OutputLimit,
}

impl Shares {
    /// Shares `memory` bytes. Outputs get a quarter of it at most, a store a quarter, and the store's encoder another.
    pub fn of(memory: usize, live: bool, rate: Option<u32>, outputs: Outputs) -> Shares {
        let output = (memory / 4 / outputs.files.max(4)).min(OUTPUT);
        let store = if outputs.stores { (memory / 4).min(STORE) } else { 0 };
        let number = outputs.files + usize::from(outputs.prints) + usize::from(outputs.stores);
        let encoder = if outputs.stores { (memory / 4).min(ENCODER) } else { 0 };
        Shares {
            analysis: memory - output * outputs.files - store - encoder,
            output,
            store,
            limit: match rate {
                Some(0) => OutputLimit::None,
                Some(rate) => OutputLimit::Rate(rate),
                None if live => OutputLimit::Paid(number.max(1) as u32),
                None => OutputLimit::None,
            },
        }
    }
}

impl Shares {
    /// Limits of a command whose records do not come from single packets: a store's default, and no write limit.
    pub const UNLIMITED: Shares =
        Shares { analysis: 0, output: OUTPUT, store: STORE, limit: OutputLimit::None };
}

/// Results of records on standard output.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Printed {
    /// Records that were printed.
    pub records: u64,
    /// Records beyond the output's write limit.
    pub suppressed: u64,
    /// Lines that were given up for lack of space, including those of the ledger.
    pub unwritten: u64,
}

impl Printed {
    /// Results for `all` records, without those suppressed by this limiter.
    pub fn of(all: u64, limiter: &Limiter) -> Printed {
        let suppressed = limiter.suppressed();
        Printed { records: all.saturating_sub(suppressed), suppressed, unwritten: crate::out::unwritten() }
    }

    /// A line for people, if records were suppressed.
    pub fn text(&self) -> String {
        match self.suppressed {
            0 => String::new(),
            number => format!(
                "standard output: {} records, {} suppressed (--output-rate)\n",
                wirelane_screen::table::amount(self.records),
                wirelane_screen::table::amount(number)
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_never_exceed_the_memory_and_files_are_read_without_a_limit() {
        for memory in [1 << 20, 32 << 20, 256 << 20, 64 << 30] {
            for files in [0, 1, 4, 9] {
                for stores in [false, true] {
                    let shares = Shares::of(memory, true, None, Outputs { files, prints: true, stores });
                    assert!(shares.analysis + shares.output * files + shares.store <= memory);
                    assert!(shares.analysis >= memory / 4);
                    assert_eq!(shares.limit, OutputLimit::Paid((files + 1) as u32 + u32::from(stores)));
                }
            }
        }
        let one = Outputs { files: 1, prints: false, stores: false };
        assert_eq!(Shares::of(1, false, None, one).limit, OutputLimit::None);
        assert_eq!(Shares::of(1, true, Some(0), one).limit, OutputLimit::None);
        assert_eq!(Shares::of(1, true, Some(9), one).limit, OutputLimit::Rate(9));
    }
}
