//! Orders of a trial to the roles: how the sensor is started, and what the generator sends.

use std::time::Duration;

use anyhow::Result;

use crate::calls::{self, Media};
use crate::roles::{DutOrder, Recording, Replay, SendOrder};
use crate::schedule::Case;
use crate::suite::{Method, Napi, Rate, Suite};
use crate::web;

/// Number of packets of calls at full speed per second of the requested duration; the trial takes as long as they need.
const FULL_SPEED: f64 = 1_000_000.0;

/// The kernel throttles threads that occupy a core at real-time priority for longer (sched_rt_runtime_us in sched(7)).
const LONGEST_FIRST: Duration = Duration::from_millis(950);

/// Order to the sensor.
pub fn sensor_order(suite: &Suite, case: &Case, rate: &Rate, duration: Duration) -> DutOrder {
    DutOrder {
        sensor: case.sensor.clone(),
        cores: case.cores.clone(),
        queues: case.queues,
        workers: case.workers.unwrap_or(1),
        engine: case.engine.clone().unwrap_or_else(|| "auto".to_owned()),
        loops: case.loops.unwrap_or(0),
        entries: case.entries.unwrap_or(0),
        duration_s: duration.as_secs_f64(),
        buffer: suite.buffer,
        napi: case.napi_in(suite),
        paced: matches!(rate, Rate::Pps(_)) && duration < LONGEST_FIRST,
        reports: false,
    }
}

/// Order to the generator.
///
/// # Errors
/// The rate is one that web traffic cannot have.
pub fn send_order(suite: &Suite, case: &Case, rate: &Rate, duration: Duration) -> Result<SendOrder> {
    let traffic = &suite.traffic;
    let pps = if let Rate::Pps(pps) = rate { Some(*pps) } else { None };
    let seconds = duration.as_secs_f64();
    let replay = match (&traffic.replay, rate, case.calls) {
        (Some(file), Rate::Speed(speed), _) => {
            let recording = Recording::File(file.clone());
            Some(Replay { recording, speed: speed.clone(), passes: traffic.passes })
        }
        (_, _, Some(calls)) => {
            let packets = (pps.unwrap_or(FULL_SPEED) * seconds).ceil() as u64;
            let size = case.size.unwrap_or(calls::FRAME);
            let recording = Recording::Media(Media { calls, size, packets, pps });
            let speed = if pps.is_some() { "recorded" } else { "max" };
            Some(Replay { recording, speed: speed.to_owned(), passes: 1 })
        }
        _ if traffic.web => {
            // Without a rate, the replay at full speed has a number of concurrent clients.
            let clients =
                (pps.unwrap_or(web::FULL_SPEED) * seconds / web::REQUESTS as f64).ceil().max(1.0) as u64;
            let speed = pps.map_or(Ok("max".to_owned()), web::speed)?;
            Some(Replay { recording: Recording::Web(clients), speed, passes: 1 })
        }
        _ => None,
    };
    // Frames of the method "kernel" all arrive on the RX queue of the core that sends them.
    let one_queue = suite.per_core && case.queues > 1;
    let method = if one_queue { Method::Socket } else { traffic.method };
    Ok(SendOrder {
        cores: suite.injector.clone(),
        shares_cores: case.shares_cores(suite),
        size: case.size,
        flows: case.entries.filter(|_| traffic.flows_as_entries).unwrap_or(traffic.flows),
        pattern: traffic.pattern,
        proto: traffic.proto,
        method,
        pps,
        duration_s: seconds,
        // Live frames occupy a whole core, and other kernel work on it would starve.
        first: case.napi_in(suite) == Napi::ThreadsPaced
            && pps.is_some()
            && duration < LONGEST_FIRST
            && (replay.is_some() || matches!(method, Method::Socket | Method::Clone)),
        shape: traffic.shape,
        queues: case.queues,
        replay,
    })
}

/// Signalling that introduces these calls to the sensor before their media.
pub fn announcement(order: &SendOrder, calls: u32) -> SendOrder {
    let recording = Recording::Signalling(calls);
    SendOrder { replay: Some(Replay { recording, speed: "recorded".to_owned(), passes: 1 }), ..order.clone() }
}
