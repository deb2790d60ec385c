//! The ring of files: the oldest are removed, so that the rest stays within its limits.

use std::collections::VecDeque;
use std::ffi::OsString;

/// Limits of a recording's files. All limits that are set apply, over the files of all workers together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keep {
    /// Maximum number of files, including open ones.
    pub files: Option<u64>,
    /// Maximum bytes, including open files.
    pub bytes: Option<u64>,
}

impl Keep {
    /// Whether there is a limit.
    pub fn is_set(&self) -> bool {
        self.files.is_some() || self.bytes.is_some()
    }
}

/// The finished files, the oldest first, and their limits.
#[derive(Debug)]
pub(crate) struct Ring {
    keep: Keep,
    files: VecDeque<(OsString, u64)>,
    bytes: u64,
}

impl Ring {
    /// An empty ring with these limits.
    pub(crate) fn new(keep: Keep) -> Ring {
        Ring { keep, files: VecDeque::new(), bytes: 0 }
    }

    /// Adds the newest finished file.
    pub(crate) fn add(&mut self, name: OsString, bytes: u64) {
        self.bytes += bytes;
        self.files.push_back((name, bytes));
    }

    /// Takes out the oldest file, if the limits are exceeded together with `open_files` open files, which may grow to
    /// `open_bytes`.
    pub(crate) fn excess(&mut self, open_files: u64, open_bytes: u64) -> Option<OsString> {
        let files = self.files.len() as u64 + open_files;
        let bytes = self.bytes.saturating_add(open_bytes);
        let too_many = self.keep.files.is_some_and(|most| files > most);
        let too_much = self.keep.bytes.is_some_and(|most| bytes > most);
        if !too_many && !too_much {
            return None;
        }
        let (name, bytes) = self.files.pop_front()?;
        self.bytes -= bytes;
        Some(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn drain(ring: &mut Ring, open_files: u64, open_bytes: u64) -> Vec<OsString> {
        std::iter::from_fn(|| ring.excess(open_files, open_bytes)).collect()
    }

    #[test]
    fn the_oldest_goes_first() {
        let mut ring = Ring::new(Keep { files: Some(3), bytes: None });
        for name in ["1", "2", "3"] {
            ring.add(name.into(), 10);
        }
        assert_eq!(drain(&mut ring, 0, 0), [""; 0]);
        assert_eq!(drain(&mut ring, 1, 0), ["1"]);
        assert_eq!(drain(&mut ring, 5, 0), ["2", "3"], "what is being written stays, even if it is too much");
    }

    #[test]
    fn bytes_bound_it_too() {
        let mut ring = Ring::new(Keep { files: None, bytes: Some(100) });
        for name in ["1", "2", "3"] {
            ring.add(name.into(), 30);
        }
        assert_eq!(drain(&mut ring, 1, 10), [""; 0]);
        assert_eq!(drain(&mut ring, 1, 11), ["1"]);
        assert_eq!(drain(&mut ring, 1, 45), ["2"]);
    }

    proptest! {
        #[test]
        fn what_stays_is_within_bounds_and_as_much_as_can_be(
            sizes in proptest::collection::vec(0u64..1000, 0..50),
            most_files in proptest::option::of(1u64..20), most_bytes in proptest::option::of(1u64..5000),
            open in 0u64..3, open_each in 0u64..500,
        ) {
            let mut ring = Ring::new(Keep { files: most_files, bytes: most_bytes });
            let mut kept: VecDeque<(usize, u64)> = VecDeque::new();
            for (number, &size) in sizes.iter().enumerate() {
                ring.add(number.to_string().into(), size);
                kept.push_back((number, size));
                let fits = |kept: &VecDeque<(usize, u64)>| {
                    let bytes: u64 = kept.iter().map(|file| file.1).sum::<u64>() + open * open_each;
                    most_files.is_none_or(|most| kept.len() as u64 + open <= most)
                        && most_bytes.is_none_or(|most| bytes <= most)
                };
                for gone in drain(&mut ring, open, open * open_each) {
                    prop_assert!(!fits(&kept), "a file that would have fitted was removed");
                    let (number, _) = kept.pop_front().unwrap();
                    prop_assert_eq!(gone, OsString::from(number.to_string()), "the oldest first");
                }
                prop_assert!(kept.is_empty() || fits(&kept));
            }
        }
    }
}
