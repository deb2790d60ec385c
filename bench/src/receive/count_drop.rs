//! The limit: an XDP program that counts and drops.

use std::mem::MaybeUninit;
use std::thread::sleep;

use anyhow::{Context, Result};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags};

use super::{Counts, POLL, Stop, ready};
use crate::skel::count_drop::CountDropSkelBuilder;

/// Counts on the device with that index until asked to stop.
pub(super) fn run(index: i32, stop: &Stop) -> Result<Counts> {
    let mut storage = MaybeUninit::uninit();
    let skeleton = CountDropSkelBuilder::default()
        .open(&mut storage)
        .and_then(OpenSkel::load)
        .context("loading the counting program")?;
    let link = skeleton.progs.bench_drop.attach_xdp(index).context("attaching the counting program")?;
    ready()?;
    while !stop.asked() {
        sleep(POLL);
    }
    drop(link);
    let counts = skeleton
        .maps
        .packets
        .lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY)
        .context("reading the count")?
        .context("the count is gone")?;
    let received = counts
        .iter()
        .map(|value| value.as_slice().try_into().map(u64::from_ne_bytes).context("a count has 8 bytes"))
        .sum::<Result<u64>>()?;
    Ok(Counts { received, dropped: 0 })
}
