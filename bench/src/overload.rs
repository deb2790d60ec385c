//! What happens to a receiver at twice the highest rate that it takes with a loss of 0.5 %, and after that: what it cannot
//! take must be lost and nothing more, and when the load falls it must soon lose nothing again.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde_json::Value;
use wirelane_tests::Child;

use crate::bed::{Bed, Priority};
use crate::receiver::Receiver;
use crate::trial::{self, Load, Tools};

/// How many times that rate.
const FACTOR: f64 = 2.0;

/// The rate afterwards, as a part of it.
const AFTERWARDS: f64 = 0.8;

const OVERLOAD_SECONDS: f64 = 1.0;

/// How long a receiver may go on losing packets after the overload. The generator's start takes the rest of a second.
const RECOVERY_SECONDS: f64 = 0.8;

/// How long it must lose nothing then.
const RECOVERED_SECONDS: f64 = 0.9;

/// What happened.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Overload {
    /// Packets offered per second.
    pub offered_pps: f64,
    /// Packets received per second, as a part of the highest rate: 1 is what there should be, less than 0.9 is a
    /// collapse.
    pub received_of_rate: f64,
    /// Part of the packets that was lost later than one second after the load fell to 0.8 of the rate: below 0.005
    /// where the receiver has recovered. None for receivers that do not tell while they run.
    pub lost_after_recovery: Option<f64>,
    /// Packets that are in no counter.
    pub unaccounted: i64,
}

/// How often ours tells what it has counted, in seconds, and how long it takes until it surely has.
const INTERVAL: f64 = 0.1;
const TOLD: Duration = Duration::from_millis(250);

/// Runs the overload, under which all share the cores, and what follows, with NAPI and the generator first again. `rate`: the highest with a loss of 0.5 %.
///
/// # Errors
/// Where a program fails.
pub fn measure(bed: &mut Bed, tools: &Tools, receiver: Receiver, load: Load, rate: f64) -> Result<Overload> {
    let running = trial::start(bed, tools, receiver, load, Priority::Fair, INTERVAL)?;
    let mut sent = Sent::default();
    let (offered_pps, seconds) =
        sent.add(bed, tools, load, Priority::Fair, FACTOR * rate, OVERLOAD_SECONDS)?;
    let mut told = Told::default();
    let mut last = Sent::default();
    let (mut received, mut lost_by_then) = (0, 0);
    if receiver.is_ours() {
        told.read(running.child()?)?;
        received = told.received;
        bed.place_napi(Priority::First)?;
        sent.add(bed, tools, load, Priority::First, AFTERWARDS * rate, RECOVERY_SECONDS)?;
        told.read(running.child()?)?;
        lost_by_then = told.lost;
        let before = sent;
        sent.add(bed, tools, load, Priority::First, AFTERWARDS * rate, RECOVERED_SECONDS)?;
        last = Sent { offered: sent.offered - before.offered, dropped: sent.dropped - before.dropped };
    }
    trial::wait_until_taken(&running, receiver)?;
    let counts = trial::finish(running, receiver)?;
    if !receiver.is_ours() {
        received = counts.received;
    }
    Ok(Overload {
        offered_pps,
        received_of_rate: received as f64 / seconds / rate,
        lost_after_recovery: receiver.is_ours().then(|| {
            let lost = last.dropped + counts.lost.saturating_sub(lost_by_then);
            lost as f64 / last.offered.max(1) as f64
        }),
        unaccounted: sent.offered.cast_signed()
            - (sent.dropped + counts.received + counts.lost).cast_signed(),
    })
}

/// What the generator sent so far.
#[derive(Clone, Copy, Default)]
struct Sent {
    offered: u64,
    dropped: u64,
}

impl Sent {
    /// Sends some more; packets per second that were offered, and seconds.
    fn add(
        &mut self,
        bed: &Bed,
        tools: &Tools,
        load: Load,
        priority: Priority,
        pps: f64,
        seconds: f64,
    ) -> Result<(f64, f64)> {
        let report = trial::generate(bed, tools, load, priority, Some(pps), seconds)?;
        let count = |name: &str| report[name].as_u64().with_context(|| format!("no {name} in {report}"));
        let offered = count("offered")?;
        self.offered += offered;
        self.dropped += count("dropped")?;
        let duration = report["duration_s"].as_f64().with_context(|| format!("no duration_s in {report}"))?;
        ensure!(duration > 0.0, "the generator did not send: {report}");
        Ok((offered as f64 / duration, duration))
    }
}

/// What ours has told: the sums over its intervals.
#[derive(Default)]
struct Told {
    received: u64,
    lost: u64,
}

impl Told {
    fn read(&mut self, child: &Child) -> Result<()> {
        std::thread::sleep(TOLD);
        // No line within this time: all have been read.
        while let Ok(Some(line)) = child.next_line(Duration::from_millis(1)) {
            let value: Value = serde_json::from_str(&line).with_context(|| format!("not JSON: {line}"))?;
            let count = |name: &str| value[name].as_u64().with_context(|| format!("no {name} in {line}"));
            self.received += count("analysed")?;
            self.lost += count("lost")?;
        }
        Ok(())
    }
}
