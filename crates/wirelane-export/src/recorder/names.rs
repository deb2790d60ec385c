//! File names of a recording.
//!
//! ```text
//! eth1.pcapng                                    one file
//! eth1-w0.pcapng                                 the file of worker 0 of several
//! eth1_00000001_20260301T120000Z.pcapng          the first file of many
//! eth1-w0_00000002_20260301T120000Z.pcapng.zst   one of worker 0, compressed
//! ```
//! The number comes before the time so that the order of names is the order of writing even if the clock was set back.
//! All workers of a recording share one number sequence, and a recording continues the numbers of existing files with
//! the same stem, so that two files never have the same name. The time is UTC.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::calendar::compact;

/// Digits of the number: sufficient for a file per second for three years.
const DIGITS: usize = 8;
/// Maximum number.
pub(crate) const LAST_NUMBER: u64 = 99_999_999;
/// Length of `20260301T120000Z`.
const TIME: usize = 16;
/// Suffix of a file while it is written.
const PART: &str = ".part";
/// Suffix of a compressed file.
const ZST: &str = ".zst";

/// Naming scheme of a recording's files: `DIRECTORY/STEM...EXTENSION`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Names {
    /// Directory of the files; `.` if the path does not contain one.
    pub(crate) directory: PathBuf,
    stem: OsString,
    /// Extension with its dots: `.pcapng.zst`; may be empty.
    extension: OsString,
}

/// A parsed file name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parsed {
    /// Position in the order of writing.
    pub(crate) number: u64,
    /// Whether the file is unfinished.
    pub(crate) part: bool,
}

/// Whether a file with this name is compressed with zstd, according to the name.
pub(crate) fn says_zstd(path: &Path) -> bool {
    path.as_os_str().as_bytes().to_ascii_lowercase().ends_with(ZST.as_bytes())
}

impl Names {
    /// Parses the requested path. `compressed` adds `.zst` if the name does not end with it. `None` if the path has no
    /// file name (`/`, `..`).
    pub(crate) fn new(path: &Path, compressed: bool) -> Option<Names> {
        let name = path.file_name()?.as_bytes();
        // "eth1/" is the path of a directory.
        if path.as_os_str().as_bytes().ends_with(b"/") {
            return None;
        }
        let directory = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        let ends_so = says_zstd(path) && name.len() > ZST.len();
        let (body, outer) = match ends_so {
            true => name.split_at(name.len() - ZST.len()),
            false => (name, if compressed { ZST.as_bytes() } else { &[][..] }),
        };
        // A name that begins with its only dot has no extension.
        let dot = body.iter().rposition(|&byte| byte == b'.').filter(|&at| at > 0).unwrap_or(body.len());
        let extension = [&body[dot..], outer].concat();
        Some(Names {
            directory,
            stem: OsString::from_vec(body[..dot].to_vec()),
            extension: OsString::from_vec(extension),
        })
    }

    /// The name of the only file, or of a worker's only file.
    pub(crate) fn single(&self, worker: Option<usize>) -> OsString {
        let mut name = self.stem.clone();
        if let Some(worker) = worker {
            name.push(format!("-w{worker}"));
        }
        name.push(&self.extension);
        name
    }

    /// The name of one file of many. `number` is at most [`LAST_NUMBER`]; `utc_ns` is when it begins.
    pub(crate) fn numbered(&self, worker: Option<usize>, number: u64, utc_ns: u64) -> OsString {
        let mut name = self.stem.clone();
        if let Some(worker) = worker {
            name.push(format!("-w{worker}"));
        }
        name.push(format!("_{number:0DIGITS$}_{}", compact(utc_ns / 1_000_000_000)));
        name.push(&self.extension);
        name
    }

    /// Parses a name in the directory; `None` if it is not that of a numbered file of this recording, from any worker.
    pub(crate) fn parse(&self, name: &OsStr) -> Option<Parsed> {
        let rest = name.as_bytes().strip_prefix(self.stem.as_bytes())?;
        let (rest, part) = match rest.strip_suffix(PART.as_bytes()) {
            Some(rest) => (rest, true),
            None => (rest, false),
        };
        let rest = rest.strip_suffix(self.extension.as_bytes())?;
        let rest = match rest.strip_prefix(b"-w") {
            Some(worker) => {
                let digits = worker.iter().take_while(|byte| byte.is_ascii_digit()).count();
                if digits == 0 {
                    return None;
                }
                &worker[digits..]
            }
            None => rest,
        };
        if rest.len() != 1 + DIGITS + 1 + TIME || rest[0] != b'_' || rest[1 + DIGITS] != b'_' {
            return None;
        }
        let (number, time) = (&rest[1..=DIGITS], &rest[2 + DIGITS..]);
        let shape = b"dddddddd\x54dddddd\x5a"; // d: a digit; then T and Z
        let timely = time.iter().zip(shape).all(|(&byte, &want)| match want {
            b'd' => byte.is_ascii_digit(),
            literal => byte == literal,
        });
        if !timely || !number.iter().all(u8::is_ascii_digit) {
            return None;
        }
        let number = number.iter().fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0'));
        Some(Parsed { number, part })
    }
}

/// Name of a file until it is complete. `attempt` counts from 1; later ones are used if a dead run left the first.
pub(crate) fn part(name: &OsStr, attempt: u32) -> OsString {
    let mut part = name.to_owned();
    if attempt > 1 {
        part.push(format!(".{attempt}"));
    }
    part.push(PART);
    part
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn names(path: &str, compressed: bool) -> Names {
        Names::new(Path::new(path), compressed).unwrap()
    }

    #[test]
    fn names_are_as_documented() {
        let noon = 1_772_366_400_000_000_000; // 2026-03-01T12:00:00Z
        assert_eq!(names("eth1.pcapng", false).single(None), "eth1.pcapng");
        assert_eq!(names("eth1.pcapng", false).single(Some(0)), "eth1-w0.pcapng");
        assert_eq!(names("eth1.pcapng", true).single(None), "eth1.pcapng.zst");
        assert_eq!(names("eth1.pcapng.zst", true).single(Some(3)), "eth1-w3.pcapng.zst");
        assert_eq!(names("eth1", false).single(Some(3)), "eth1-w3");
        assert_eq!(names(".hidden", false).single(Some(3)), ".hidden-w3");
        assert_eq!(
            names("eth1.pcapng", false).numbered(None, 1, noon),
            "eth1_00000001_20260301T120000Z.pcapng"
        );
        assert_eq!(
            names("a.b/eth1.pcapng", true).numbered(Some(0), 2, noon),
            "eth1-w0_00000002_20260301T120000Z.pcapng.zst"
        );
        assert_eq!(names("eth1.pcapng", false).directory, Path::new("."));
        assert_eq!(names("/a/eth1.pcapng", false).directory, Path::new("/a"));
        assert_eq!(part(OsStr::new("eth1.pcapng"), 1), "eth1.pcapng.part");
        assert_eq!(part(OsStr::new("eth1.pcapng"), 2), "eth1.pcapng.2.part");
        for nameless in ["/", "..", "a/..", "a/"] {
            assert_eq!(Names::new(Path::new(nameless), false), None, "{nameless}");
        }
    }

    #[test]
    fn other_files_are_not_ours() {
        let names = names("eth1.pcapng", false);
        for other in [
            "eth1.pcapng",
            "eth1_1_20260301T120000Z.pcapng",
            "eth1_00000001_20260301T120000.pcapng",
            "eth1_00000001_20260301T120000Z.pcap",
            "eth10_00000001_20260301T120000Z.pcapng",
            "eth1-w_00000001_20260301T120000Z.pcapng",
            "eth1-wx_00000001_20260301T120000Z.pcapng",
            "eth1_0000000a_20260301T120000Z.pcapng",
            "eth1_00000001_20260301T120000Z.pcapng.bak",
            "eth1_00000001_2026-301T120000Z.pcapng",
            "",
        ] {
            assert_eq!(names.parse(OsStr::new(other)), None, "{other}");
        }
    }

    proptest! {
        #[test]
        fn a_name_says_its_number(
            worker in proptest::option::of(0usize..64), number in 0..=LAST_NUMBER, utc_ns: u64, part_of: bool,
            file in "[a-z_.-]{1,12}", compressed: bool,
        ) {
            prop_assume!(!matches!(file.as_str(), "." | ".."));
            let names = names(&file, compressed);
            let name = names.numbered(worker, number, utc_ns);
            let name = if part_of { part(&name, 1) } else { name };
            prop_assert_eq!(names.parse(&name), Some(Parsed { number, part: part_of }));
        }

        #[test]
        fn order_of_names_is_order_of_writing(numbers: [u32; 2], times: [u64; 2], worker in 0usize..64) {
            let [a, b] = numbers.map(|number| u64::from(number) % (LAST_NUMBER + 1));
            let names = names("eth1.pcapng", true);
            let first = names.numbered(Some(worker), a, times[0]);
            let second = names.numbered(Some(worker), b, times[1]);
            if a != b {
                prop_assert_eq!(first.cmp(&second), a.cmp(&b));
            }
        }
    }
}
