//! Settings that in-kernel analysis cannot be combined with.

use super::{Balance, Clock, Settings, Steering};
use crate::error::{Error, Result};
use crate::flow_cache::KernelFlows;
use crate::http_heads::KernelHttp;

/// Maximum number of streams.
const MOST: usize = 1 << 20;

/// Refuses settings that contradict flows in the kernel.
///
/// # Errors
/// [`Error::BadOption`].
pub(super) fn check_flows(asked: &KernelFlows, settings: &Settings) -> Result<()> {
    let bad = |option, reason: &str| Err(Error::BadOption { option, reason: reason.into() });
    asked.check_entries()?;
    if matches!(settings.steering, Steering::RoundRobin | Steering::Copy) {
        return bad("--steering", "flows that are made in the kernel take one worker for each flow");
    }
    if settings.balance == Balance::Adaptive {
        return bad("--balance", "flows that are made in the kernel stay with their workers: use 'static'");
    }
    if settings.clock == Clock::Card {
        return bad(
            "--clock",
            "flows that are made in the kernel go by the kernel's clock: use 'packet' or 'batch'",
        );
    }
    Ok(())
}

/// Refuses settings that contradict HTTP head selection in the kernel.
///
/// # Errors
/// [`Error::BadOption`].
pub(super) fn check_http(asked: &KernelHttp, settings: &Settings) -> Result<()> {
    let bad = |option, reason: &str| Err(Error::BadOption { option, reason: reason.into() });
    if !(KernelHttp::LEAST_DIRECTIONS..=KernelHttp::MOST_DIRECTIONS).contains(&asked.directions) {
        let reason = format!(
            "{} is not between {} and {}",
            asked.directions,
            KernelHttp::LEAST_DIRECTIONS,
            KernelHttp::MOST_DIRECTIONS
        );
        return bad("--kernel-directions", &reason);
    }
    if settings.flows.is_some() {
        return bad("--analysis", "flows that are made in the kernel leave no packets to look at");
    }
    if matches!(settings.steering, Steering::RoundRobin | Steering::Copy) {
        return bad("--steering", "HTTP is looked at in the kernel for one worker of each connection");
    }
    if settings.balance == Balance::Adaptive {
        return bad(
            "--balance",
            "connections of HTTP that are looked at in the kernel stay with their workers: use 'static'",
        );
    }
    if settings.clock == Clock::Card {
        return bad(
            "--clock",
            "bodies that stay in the kernel are timed by the kernel's clock: use 'packet' or 'batch'",
        );
    }
    Ok(())
}

/// Refuses settings that contradict measuring streams in the kernel.
///
/// # Errors
/// [`Error::BadOption`].
pub(super) fn check_streams(streams: usize, settings: &Settings) -> Result<()> {
    let bad = |option, reason: String| Err(Error::BadOption { option, reason });
    if !(1..=MOST).contains(&streams) {
        return bad("--streams", format!("{streams} is not between 1 and {MOST}"));
    }
    if settings.clock == Clock::Card {
        return bad(
            "--clock",
            "streams that are measured in the kernel go by the kernel's clock: use 'packet' or 'batch'"
                .into(),
        );
    }
    Ok(())
}
