//! Kernel threads that take packets from devices (NAPI), on the cores of a sensor.

use std::process::Command;

use anyhow::Result;

use crate::holder::output;
use crate::suite::Napi;

/// Whether these threads come before everything else on their cores. `paced`: packets have a rate.
pub(crate) fn comes_first(napi: Napi, paced: bool) -> bool {
    match napi {
        Napi::ThreadsFirst => true,
        Napi::ThreadsPaced => paced,
        Napi::Threads | Napi::Inline => false,
    }
}

/// Places a thread on a core, with this nice value, or before everything else there.
pub(crate) fn place(thread: u32, core: usize, first: bool, nice: i32) -> Result<()> {
    let (thread, core, nice) = (thread.to_string(), core.to_string(), nice.to_string());
    let policy = if first { ["-f", "1"] } else { ["-o", "0"] };
    for words in [
        &["taskset", "-pc", &core, &thread][..],
        &["chrt", policy[0], "-p", policy[1], &thread],
        &["renice", "-n", &nice, "-p", &thread],
    ] {
        output(Command::new(words[0]).args(&words[1..]))?;
    }
    Ok(())
}
