//! Measurements in the kernel, by its flow caches.

use anyhow::Result;
use wirelane::rules::RuleSet;
use wirelane::{Intervals, KernelFlows};
use wirelane_analysis::flows::Timeouts;
use wirelane_probe::Config;

use crate::source::{EngineArg, SourceArgs, SteeringArg};
use crate::values::wrong;

/// Interval at which the kernel's sums are read: twice per measurement interval, between these limits, so that results
/// come soon after an interval's end, without disturbing lanes.
const SHORTEST_TURN_NS: u64 = 50_000_000;
const LONGEST_TURN_NS: u64 = 2_000_000_000;

/// Rules for packets that are delivered besides measurements in the kernel; `None`: all are made in the workers.
///
/// # Errors
/// If the configuration requires kernel measurements, and the options contradict it.
pub fn rules(
    source: &SourceArgs,
    cache_entries: Option<u32>,
    config: &Config,
    steering: SteeringArg,
) -> Result<Option<RuleSet>> {
    let ruled = &source.ruled;
    let Some(whole) = config.whole() else {
        if cache_entries.is_some() {
            return Err(wrong("--cache-entries", "no measurement is made in the kernel; leave it out"));
        }
        return Ok(None);
    };
    let obstacle = if !source.read.is_empty() {
        Some(("-r", "a file is not analysed in the kernel"))
    } else if matches!(source.engine, EngineArg::Xsk | EngineArg::Packet) {
        Some(("--engine", "packets are added up in the kernel by engine 'ring' only"))
    } else if source.packets.is_some() {
        Some(("--packets", "packets that the kernel adds up are not counted one by one: use --duration"))
    } else if !matches!(steering, SteeringArg::Flow | SteeringArg::Queue) {
        Some(("--steering", "packets that the kernel adds up take one worker for each flow"))
    } else if !whole.rules.is_empty() && (ruled.rules.is_some() || ruled.rules_capacity.is_some()) {
        Some((
            if ruled.rules.is_some() { "--rules" } else { "--rules-capacity" },
            "measurements in the workers beside those in the kernel use the rules of the capture: they decide which packets are delivered",
        ))
    } else {
        None
    };
    if let Some((option, reason)) = obstacle {
        // The results are the same, so that a configuration is also valid for recordings.
        if source.read.is_empty() && config.asks_for_kernel() {
            return Err(wrong(option, format!("{reason}, as analysis = \"kernel\" asks for")));
        }
        tracing::info!("measured in the workers: {reason}");
        return Ok(None);
    }
    Ok(Some(whole))
}

/// Settings of the kernel's flow caches, if measurements are made there. The rules for packets that are also delivered
/// are then set as the capture's rules.
///
/// # Errors
/// See [`rules`].
pub fn flows(
    source: &mut SourceArgs,
    cache_entries: Option<u32>,
    config: &Config,
    steering: SteeringArg,
) -> Result<Option<KernelFlows>> {
    let Some(whole) = rules(source, cache_entries, config, steering)? else { return Ok(None) };
    let turn_ns = (config.interval_ns / 2).clamp(SHORTEST_TURN_NS, LONGEST_TURN_NS);
    let flows = KernelFlows {
        entries: cache_entries.map_or(KernelFlows::ENTRIES, |entries| entries as usize),
        timeouts: Timeouts { active_ns: u64::MAX, idle_ns: turn_ns, ended_ns: turn_ns },
        sampling: 1,
        intervals: Some(Intervals::new(config.interval_ns)),
        whole: whole.rules.len() as u32,
        deliver: false,
    };
    if !whole.rules.is_empty() {
        source.ruled.decide(whole);
    }
    Ok(Some(flows))
}
