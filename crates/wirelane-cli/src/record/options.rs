//! Options of a recording, and their combination.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::Result;
use wirelane_export::recorder::{Format, Keep, RecordingOptions, Rotation};
use wirelane_monitor::record::timed::time_in_name;

use crate::values::{split, time, wrong};

/// Headings of the help.
pub const RECORDING: &str = "The recording";
/// See [`RECORDING`].
pub const MANY: &str = "Several files";

/// Minimum size of a file: a smaller one would consist mostly of headers.
const SMALLEST: u64 = 64 << 10;
/// Default compression level of zstd.
const ZSTD_LEVEL: i32 = 3;

/// Options of the recorded files.
#[derive(clap::Args, Debug)]
pub struct RecordingArgs {
    /// File to write, NAME.part until it is complete; '-' is standard output, with tables on standard error. %Y, %m, %d,
    /// %H, %M and %S in its name become the date and time in UTC at which the recording begins, as in strftime
    #[arg(short, long, value_name = "FILE", help_heading = RECORDING)]
    pub write: PathBuf,

    /// File format. Default: pcap where the file's name ends in .pcap (or .pcap.zst), else pcapng
    #[arg(long, value_enum, help_heading = RECORDING)]
    format: Option<FormatArg>,

    /// Replace an existing file, when the recording is complete
    #[arg(long, help_heading = RECORDING)]
    overwrite: bool,

    /// Compress: zstd, or zstd:LEVEL with a level from 1 (fast) to 19. Names end in .zst then, and a FILE that does is
    /// compressed without asking
    #[arg(long, value_name = "zstd[:LEVEL]", value_parser = zstd, help_heading = RECORDING)]
    compress: Option<i32>,

    /// With several workers: merge their files (NAME-w0, ...) into FILE, in time order, once the capture has ended. The
    /// disk needs room for both until then
    #[arg(long, help_heading = RECORDING,
        conflicts_with_all = ["rotate_size", "rotate_millions", "rotate_interval", "rotate_packets", "keep_files", "keep_size"])]
    pub single_file: bool,

    /// Bypass the page cache (O_DIRECT), for long recordings to a fast disk that should not displace everything else
    /// from memory. Refused if the file system does not support it
    #[arg(long, help_heading = RECORDING)]
    pub direct_io: bool,

    /// Reaction to a failed write (e.g. a full disk)
    #[arg(long, value_enum, default_value_t = OnWriteError::Continue, help_heading = RECORDING)]
    on_write_error: OnWriteError,

    /// Begin a new file before one gets larger than this, as in 100MB or 1GiB
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = MANY)]
    rotate_size: Option<u64>,

    /// As --rotate-size; a number without a unit is in millions of bytes, as with tcpdump
    #[arg(short = 'C', value_name = "SIZE", value_parser = millions, conflicts_with = "rotate_size", help_heading = MANY)]
    rotate_millions: Option<u64>,

    /// Begin a new file at the multiples of this time in UTC, as in 30s, 15m, 1h or 1d
    #[arg(short = 'G', long, value_name = "TIME", value_parser = time, help_heading = MANY)]
    rotate_interval: Option<Duration>,

    /// Begin a new file after this many packets
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), help_heading = MANY)]
    rotate_packets: Option<u64>,

    /// Keep at most this many files, and remove the oldest of this name, also of earlier recordings
    #[arg(short = 'W', long, value_name = "N", help_heading = MANY)]
    keep_files: Option<u64>,

    /// Keep files of at most this size together, and remove the oldest of this name, also of earlier recordings.
    /// Without --rotate-size files are rotated at a quarter of it
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = MANY)]
    keep_size: Option<u64>,

    /// Run this with sh, as the user who runs wirelane, for every finished file, whose path is the last argument
    #[arg(short = 'z', long, value_name = "COMMAND", help_heading = MANY)]
    pub post_rotate: Option<String>,

    /// Post-rotate commands that run at once
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64),
        help_heading = MANY)]
    pub post_rotate_jobs: u16,
}

/// Values of --format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum FormatArg {
    /// Interfaces, their statistics, any mix of link types
    Pcapng,
    /// Packets only, of one link type; times in nanoseconds
    Pcap,
}

/// Values of --on-write-error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum OnWriteError {
    /// Continue, count unwritten packets, try again every second; exit status 1 at the end
    Continue,
    /// End the recording
    Stop,
}

impl RecordingArgs {
    /// Replaces strftime's conversions in the name of the file by this time.
    ///
    /// # Errors
    /// If there are several files: each has its own time in its name anyway.
    pub fn put_time(&mut self, now: SystemTime) -> Result<()> {
        let Some(name) = self.write.file_name().and_then(|name| name.to_str()) else { return Ok(()) };
        let timed = time_in_name(name, now);
        if timed == name {
            return Ok(());
        }
        let sizes = self.rotate_size.is_some() || self.rotate_millions.is_some() || self.keep_size.is_some();
        if sizes || self.rotate_interval.is_some() || self.rotate_packets.is_some() {
            let reason = "each of several files gets a number and its time in UTC in its name: leave conversions such \
                          as %H out";
            return Err(wrong("--write", reason));
        }
        self.write.set_file_name(timed);
        Ok(())
    }

    /// Converts the options to settings for this many workers.
    pub fn resolve(&self, workers: usize, live: bool) -> Result<RecordingOptions> {
        let rotation = Rotation {
            size: self.rotate_size.or(self.rotate_millions),
            interval: self.rotate_interval,
            packets: self.rotate_packets,
        };
        let keep = Keep { files: self.keep_files, bytes: self.keep_size };
        let workers_too = workers as u64 + 1;
        match rotation.size {
            Some(size) if size < SMALLEST => {
                return Err(wrong("--rotate-size", "files of less than 64KiB are mostly headers; give more"));
            }
            _ => {}
        }
        if keep.files.is_some() && !rotation.is_set() && keep.bytes.is_none() {
            let reason = "there is one file only; say when it ends, with --rotate-size, --rotate-interval or \
                          --rotate-packets";
            return Err(wrong("--keep-files", reason));
        }
        if keep.files.is_some_and(|files| files < workers_too) {
            let reason = format!("{workers} are being written at any time, so keep {workers_too} or more");
            return Err(wrong("--keep-files", reason));
        }
        if let Some(keep) = keep.bytes {
            let least = rotation.size.unwrap_or(SMALLEST * 3).saturating_mul(workers_too);
            if keep < least {
                let reason = format!(
                    "the file of each worker and a finished one need {least} bytes, and {keep} are to be kept; \
                     keep more, or give a smaller --rotate-size"
                );
                return Err(wrong("--keep-size", reason));
            }
        }
        if let Some(option) = self.needs_file(workers, rotation, keep)
            && self.write.as_os_str() == "-"
        {
            return Err(wrong(option, "this needs a file: name one with -w"));
        }
        let says_zst = self.write.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("zst"));
        Ok(RecordingOptions {
            path: self.write.clone(),
            format: match self.format {
                Some(FormatArg::Pcap) => Format::Pcap,
                Some(FormatArg::Pcapng) => Format::Pcapng,
                None if says_pcap(&self.write, says_zst) => Format::Pcap,
                None => Format::Pcapng,
            },
            rotation,
            keep,
            zstd_level: self.compress.or(says_zst.then_some(ZSTD_LEVEL)),
            direct_io: self.direct_io,
            overwrite: self.overwrite,
            stop_on_error: self.on_write_error == OnWriteError::Stop,
            workers,
            live,
        })
    }

    /// The first option that is valid only for files.
    fn needs_file(&self, workers: usize, rotation: Rotation, keep: Keep) -> Option<&'static str> {
        [
            ("--rotate-size", rotation.size.is_some()),
            ("--rotate-interval", rotation.interval.is_some()),
            ("--rotate-packets", rotation.packets.is_some()),
            ("--keep-size", keep.bytes.is_some()),
            ("--workers", workers > 1),
            ("--direct-io", self.direct_io),
            ("--post-rotate", self.post_rotate.is_some()),
        ]
        .into_iter()
        .find_map(|(option, given)| given.then_some(option))
    }
}

fn says_pcap(path: &Path, says_zst: bool) -> bool {
    let inner = if says_zst { path.with_extension("") } else { path.to_owned() };
    inner.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("pcap"))
}

/// Bytes: 1000000, 100MB (of 1000), 100MiB or 100M (of 1024).
pub fn size(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text);
    let factor: f64 = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "k" | "kib" => 1024.0,
        "m" | "mib" => 1_048_576.0,
        "g" | "gib" => 1_073_741_824.0,
        "t" | "tib" => 1_099_511_627_776.0,
        "kb" => 1e3,
        "mb" => 1e6,
        "gb" => 1e9,
        "tb" => 1e12,
        _ => return Err("give a size, as in 500MB (of 1000) or 1GiB (of 1024)".into()),
    };
    match number.parse::<f64>() {
        Ok(number) if number * factor >= 1.0 && number * factor < 1e18 => Ok((number * factor) as u64),
        _ => Err("give a size, as in 500MB (of 1000) or 1GiB (of 1024)".into()),
    }
}

/// A size, where a number without a unit is in millions of bytes, as with tcpdump's -C.
fn millions(text: &str) -> Result<u64, String> {
    let has_unit = text.trim().ends_with(|last: char| last.is_ascii_alphabetic());
    if has_unit { size(text) } else { size(&format!("{}MB", text.trim())) }
}

/// `zstd` or `zstd:LEVEL`.
fn zstd(text: &str) -> Result<i32, String> {
    let level = match text.strip_prefix("zstd") {
        Some("") => return Ok(ZSTD_LEVEL),
        Some(rest) => rest.strip_prefix(':').and_then(|level| level.parse().ok()),
        None => None,
    };
    level
        .filter(|level| (1..=19).contains(level))
        .ok_or_else(|| "give zstd, or zstd:LEVEL with a level from 1 to 19".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_times_and_levels_are_read() {
        assert_eq!(size("1000000"), Ok(1_000_000));
        assert_eq!(size("100MB"), Ok(100_000_000));
        assert_eq!(size("1GiB"), Ok(1 << 30));
        assert_eq!(size("1.5 g"), Ok(3 << 29));
        assert_eq!(size("64k"), Ok(65_536));
        assert_eq!((millions("100"), millions("64k")), (Ok(100_000_000), Ok(65_536)));
        for wrong in ["", "0", "MB", "1PB", "-1", "1e9", "1..5M", "9999999TB"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
        assert_eq!(time("30"), Ok(Duration::from_secs(30)));
        assert_eq!(time("1.5h"), Ok(Duration::from_secs(5400)));
        assert_eq!(time("1d"), Ok(Duration::from_secs(86_400)));
        for wrong in ["", "0", "0.5s", "1y", "-1m", "100000d"] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
        assert_eq!((zstd("zstd"), zstd("zstd:19")), (Ok(3), Ok(19)));
        for wrong in ["", "zstd:", "zstd:0", "zstd:20", "gzip", "zstd3"] {
            assert!(zstd(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn names_say_the_format() {
        for (name, zst, pcap) in [
            ("a.pcap", false, true),
            ("a.pcapng", false, false),
            ("a.pcap.zst", true, true),
            ("pcap", false, false),
        ] {
            assert_eq!(says_pcap(Path::new(name), zst), pcap, "{name}");
        }
    }
}
