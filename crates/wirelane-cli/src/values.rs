//! Parsers of option values.

use std::time::Duration;

use wirelane::Watermarks;

use crate::source::{CongestionControl, CoresArg};

/// The value of --congestion-control.
pub fn watermarks(text: &str) -> std::result::Result<CongestionControl, String> {
    let percent = |text: &str| text.trim().trim_end_matches('%').parse::<u8>().ok();
    match text {
        "off" => Ok(CongestionControl(None)),
        "on" => Ok(CongestionControl(Some(Watermarks::default()))),
        _ => match text.split_once(',').map(|(low, high)| (percent(low), percent(high))) {
            Some((Some(low), Some(high))) if low < high && high <= 100 => {
                Ok(CongestionControl(Some(Watermarks { low, high })))
            }
            _ => Err("give off, on, or two percentages of a ring, the lower first, as in 50,90".into()),
        },
    }
}

/// A number of seconds, with fractions down to a millisecond.
pub fn seconds(text: &str) -> std::result::Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.001..=1e9).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("give seconds, as in 10 or 0.5".into()),
    }
}

/// A list of cores, or 'auto'.
pub fn cores(text: &str) -> std::result::Result<CoresArg, String> {
    if text == "auto" {
        return Ok(CoresArg::Auto);
    }
    let list: std::result::Result<Vec<usize>, _> = text.split(',').map(str::parse).collect();
    list.map(CoresArg::These).map_err(|_| "give numbers with commas, as in 1,3, or 'auto'".into())
}
