//! Parameters of a run of the generator.

use std::time::Duration;

use super::pattern::Traffic;
use super::{Method, Share};
use crate::{Error, Result};
use wirelane_netdev::allowed_cpus;

/// Traffic, rate and duration of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The device to send from.
    pub device: String,
    /// The packets: one or several streams, which alternate by their weights.
    pub traffic: Vec<Traffic>,
    /// Path of the packets to the device.
    pub method: Method,
    /// Packets per second of all threads together; `None`: as fast as possible.
    pub pps: Option<f64>,
    /// Number of packets after which the run ends.
    pub packets: Option<u64>,
    /// Time after which the run ends.
    pub duration: Option<Duration>,
    /// The CPUs to send from, one thread each. All packets of a flow are sent by one thread, so that they keep their order:
    /// no more threads than flows. On a veth, live frames arrive on the peer's RX queue with the number of
    /// the sending CPU (modulo its queues); frames of a socket arrive on the queue selected by their flow hash.
    pub cpus: Vec<usize>,
    /// Whether a packet that the device has no space for is retried, which blocks the sender; otherwise it is lost, and
    /// counted by the device. Cannot be switched off with [`Method::Xsk`]; [`Method::Kernel`] never retries.
    pub retries: bool,
    /// Interval of the calls of `on_interval`.
    pub interval: Duration,
}

/// The shares of the threads. With both a rate and a duration, at most their product is sent.
pub(super) fn shares(plan: &Plan) -> Vec<Share> {
    let stride = plan.cpus.len() as u64;
    let by_time =
        plan.pps.zip(plan.duration).map(|(pps, time)| (pps * time.as_secs_f64()).round().max(1.0) as u64);
    let packets = match (by_time, plan.packets) {
        (Some(by_time), Some(packets)) => Some(by_time.min(packets)),
        (by_time, packets) => by_time.or(packets),
    };
    let share = |first: u64| Share {
        first,
        stride,
        // The numbers of this thread below `packets`.
        limit: packets.map_or(u64::MAX, |packets| packets.saturating_sub(first).div_ceil(stride)),
        pps: plan.pps.map(|pps| pps / stride as f64),
    };
    (0..stride).map(share).collect()
}

/// Rejects invalid parameters.
pub(super) fn check(plan: &Plan) -> Result<()> {
    if let Some(pps) = plan.pps
        && !(pps.is_finite() && (0.001..=1e9).contains(&pps))
    {
        let reason = format!(
            "{pps} packets per second is not possible; give 0.001 to 1e9, or leave it out for full speed"
        );
        return Err(Error::BadOption { option: "--rate", reason });
    }
    if plan.packets == Some(0) {
        return Err(Error::BadOption { option: "--packets", reason: "0 packets are nothing to send".into() });
    }
    if plan.duration == Some(Duration::ZERO) {
        return Err(Error::BadOption { option: "--duration", reason: "give more than 0 seconds".into() });
    }
    if plan.interval < Duration::from_millis(10) {
        return Err(Error::BadOption { option: "--interval", reason: "give 0.01 seconds or more".into() });
    }
    if plan.cpus.is_empty() || plan.cpus.len() > 1024 {
        return Err(Error::BadOption {
            option: "--threads",
            reason: "give between 1 and 1024 threads".into(),
        });
    }
    if plan.method == Method::Xsk && !plan.retries {
        let reason =
            "an AF_XDP socket keeps what the device has no room for: leave it out, or take another --method"
                .into();
        return Err(Error::BadOption { option: "--no-retry", reason });
    }
    let allowed = allowed_cpus();
    if let Some(cpu) = plan.cpus.iter().find(|cpu| !allowed.contains(cpu)) {
        let reason = format!("this process may not run on CPU {cpu}; it may on {allowed:?}");
        return Err(Error::BadOption { option: "--cores", reason });
    }
    Ok(())
}
