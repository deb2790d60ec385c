//! Requests of a capture to an instance for its group, from the capture's settings.

use std::sync::Arc;

use wirelane_bpf::instance::{FEW_GROUPS, SEGMENT, features, group_flags, steering};
use wirelane_netdev::{Device, Selected};
use wirelane_privsep::broker::Broker;

use super::program::{Kind, Needs, Plugin, RuleCalls, UserProgram};
use super::rules::KernelSets;
use super::streams::Streams;
use crate::active_rules::{Observer, RulesCapacity};
use crate::egress_devices::EgressDevice;
use crate::error::Result;
use crate::flow_cache::KernelFlows;
use crate::hook::Hook;
use crate::settings::{Clock, Settings, Share};

/// Bytes that a lane writes to a ring between two publications of its head (measured: per-packet publication
/// costs half the throughput, 2 KiB next to nothing).
const PUBLISH_EVERY: u32 = 2048;

/// Configuration of a group in an instance.
#[derive(Clone, Debug)]
pub(crate) struct GroupConfig {
    /// Parts of the capture program that the group needs.
    pub(crate) needs: Needs,
    /// RX queues, ascending.
    pub(crate) queues: Vec<u32>,
    pub(crate) snap_len: u32,
    pub(crate) workers: usize,
    /// Bytes of each ring; rounded up to a power of two of segments.
    pub(crate) ring_size: usize,
    pub(crate) steering: u32,
    /// The part of all flows to capture; `None`: all flows.
    pub(crate) share: Option<Share>,
    pub(crate) flags: u32,
    pub(crate) publish_every: u32,
    pub(crate) clock: Clock,
    /// Whether the group's workers merge lanes by time.
    pub(crate) ordered: bool,
    /// Unread bytes of a ring from which congestion control refuses new flows, and from which it refuses all.
    pub(crate) shed: Option<(u32, u32)>,
    /// Nanoseconds that each plug-in may take on average.
    pub(crate) plugin_budget: u32,
    /// Capacity for rules, and the owner of named sets; `None`: no rules at any time.
    pub(crate) rules: Option<(RulesCapacity, Arc<KernelSets>)>,
    /// Devices that rules may send packets to.
    pub(crate) egress_devices: Vec<EgressDevice>,
    /// Whether lanes aggregate packets to flows, or select heads of HTTP.
    pub(crate) flows: Option<KernelFlows>,
    /// The broker that makes flow caches of another size; `None`: this process does.
    pub(crate) flow_maps: Option<Arc<Broker>>,
    pub(crate) http: Option<crate::http_heads::KernelHttp>,
    /// The RTP streams that lanes measure.
    pub(crate) streams: Option<Arc<Streams>>,
}

/// Programs of the user: the one that steers, and plug-ins.
#[derive(Clone, Debug)]
pub(crate) struct UserPrograms {
    pub(crate) steering: Option<UserProgram>,
    pub(crate) plugins: Vec<Plugin>,
    /// The plug-ins that hear of changes of rules.
    pub(crate) observers: Vec<Arc<dyn Observer>>,
}

impl UserPrograms {
    /// Reads a capture's programs, with the parameters of its rules.
    ///
    /// # Errors
    /// As [`UserProgram::read`] and [`RuleCalls::of`].
    pub(crate) fn read(settings: &Settings) -> Result<UserPrograms> {
        let rules = settings.rules.clone().unwrap_or_default();
        let parameters: Vec<_> = rules.parameters_of(None).collect();
        let steering = settings.steering_program.as_deref();
        let steering =
            steering.map(|path| UserProgram::read(Kind::Steering, path, &parameters)).transpose()?;
        let plugins = Plugin::read(&settings.plugins, &rules)?;
        let observers = RuleCalls::of(&plugins)?;
        Ok(UserPrograms { steering, plugins, observers })
    }
}

/// Parts of the capture program that a capture needs on a device.
///
/// # Errors
/// [`crate::Error::Filter`].
pub(crate) fn needs(settings: &Settings, programs: &UserPrograms, device: &Device) -> Result<Needs> {
    let UserPrograms { steering, plugins, .. } = programs.clone();
    let filter = wirelane_filter::for_device(&settings.filter, device.link_type, &device.name)?;
    // Half of the slots remain for other captures.
    let many_groups = settings.share.as_ref().is_some_and(|share| share.of as usize > FEW_GROUPS / 2);
    Ok(Needs { features: needed_features(settings), steering, plugins, filter, many_groups })
}

/// The steering of a capture, as the kernel knows it.
fn chosen_steering(settings: &Settings) -> u32 {
    match settings.steering_program {
        Some(_) => steering::PROGRAM,
        None => settings.steering.code(),
    }
}

/// The features of the capture program that a capture needs in any slot.
fn needed_features(settings: &Settings) -> u32 {
    [
        // A filter from the start becomes instructions.
        (settings.filter_later, features::FILTERS),
        (settings.rules.is_some(), features::RULES),
        (settings.streams.is_some(), features::STREAMS),
        (settings.flows.is_some(), features::FLOWS),
        (settings.http.is_some(), features::HTTP),
        (settings.moves_buckets(), features::BALANCE),
        (settings.congestion_control.is_some(), features::SHED),
        (
            settings.share.is_some() || settings.device_wide || chosen_steering(settings) != steering::FLOW,
            features::GROUPS,
        ),
    ]
    .into_iter()
    .fold(0, |all, (needed, feature)| if needed { all | feature } else { all })
}

impl GroupConfig {
    /// The configuration for a device's instance. `lanes` and `queues` are the instance's.
    pub(crate) fn of(
        settings: &Settings,
        needs: Needs,
        selected: &Selected,
        (lanes, known): (usize, usize),
        hook: Hook,
    ) -> GroupConfig {
        let ring_size = settings.bytes_per_ring(lanes * settings.workers);
        let rounded = ring_size.div_ceil(SEGMENT).next_power_of_two() * SEGMENT;
        // The whole device means all of its present and future queues.
        let queues = if hook == Hook::Egress || selected.is_whole_device() {
            (0..known as u32).collect()
        } else {
            selected.queues.clone()
        };
        GroupConfig {
            needs,
            queues,
            snap_len: settings.bytes_of_a_packet() as u32,
            workers: settings.workers,
            ring_size,
            steering: chosen_steering(settings),
            share: settings.share,
            flags: if settings.exclusive { group_flags::EXCLUSIVE } else { 0 }
                | if settings.exclusive_all { group_flags::EXCLUSIVE_ALL } else { 0 }
                | if settings.inner { group_flags::INNER } else { 0 }
                | if settings.clock == Clock::Card { group_flags::CARD_CLOCK } else { 0 }
                | if settings.moves_buckets() { group_flags::ADAPTIVE } else { 0 }
                | if settings.device_wide { group_flags::WIDE } else { 0 }
                | if settings.flows.is_some() { group_flags::FLOWS } else { 0 }
                | if settings.flows.is_some_and(|flows| flows.deliver) {
                    group_flags::FLOWS_BESIDE
                } else {
                    0
                }
                | if settings.streams.is_some() && settings.deliver_measured {
                    group_flags::STREAMS_BESIDE
                } else {
                    0
                }
                | if settings.http.is_some() { group_flags::HTTP } else { 0 }
                | if settings.plugin_records { group_flags::RECORDS } else { 0 },
            clock: settings.clock,
            ordered: false,
            shed: settings.congestion_control.map(|watermarks| watermarks.of(rounded)),
            publish_every: if settings.immediate { 0 } else { PUBLISH_EVERY },
            plugin_budget: settings.plugin_budget,
            rules: None,
            egress_devices: Vec::new(),
            flows: settings.flows,
            flow_maps: None,
            http: settings.http,
            streams: None,
        }
    }
}
