//! XDP_DROP, counting, with or without a look at the packet: `programs/drop.bpf.c`.

use std::mem::MaybeUninit;
use std::time::Duration;

use anyhow::{Context, Result};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags};

use super::super::skel::drop::DropSkelBuilder;
use super::{Counts, End, ready};

pub(super) fn run(index: u32, read: bool, end: &mut End) -> Result<Counts> {
    let mut storage = MaybeUninit::uninit();
    let skel = DropSkelBuilder::default().open(&mut storage)?.load().context("loading the XDP program")?;
    let program = if read { &skel.progs.bench_read } else { &skel.progs.bench_drop };
    let link = program.attach_xdp(index as i32).context("attaching the XDP program")?;
    ready()?;
    let mut took = true;
    while !end.reached(took) {
        took = false;
        std::thread::sleep(Duration::from_millis(10));
    }
    let values = skel
        .maps
        .bench_dropped
        .lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY)?
        .context("the counter is missing")?;
    drop(link);
    let mut count = 0;
    for value in values {
        count += u64::from_ne_bytes(value.as_slice().try_into().context("the counter has 8 bytes")?);
    }
    Ok(Counts { seen: Some(count), received: count, ..Counts::default() })
}
