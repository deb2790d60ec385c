//! A running capture whose program is driven packet by packet with BPF_PROG_TEST_RUN.

use anyhow::{Context, Result};
use serde_json::Value;
use wirelane::{Builder, Capture, Engine, HookChoice};
use wirelane_tests::{Lab, ruled, timed_run};

/// A capture, and its program.
pub(super) struct Driven {
    pub capture: Capture,
    program: u32,
}

impl Driven {
    /// Opens a capture. Native XDP is bound to its device and does not support test runs; generic XDP runs the same
    /// program.
    pub fn open(lab: &Lab, build: impl FnOnce(Builder) -> Builder + Send) -> Result<Driven> {
        let capture = ruled::open(lab, (Engine::Ring, HookChoice::Generic), build)?;
        let end = lab.receiver();
        let shown = lab.exec(&end.namespace, &["ip", "-j", "link", "show", &end.device])?;
        let shown: Value = serde_json::from_str(&shown).context("ip -j link show")?;
        let program = shown[0]["xdp"]["prog"]["id"].as_u64().context("no XDP program on the device")?;
        Ok(Driven { capture, program: u32::try_from(program)? })
    }

    /// Runs the program this many times on a frame; returns the nanoseconds of one run.
    pub fn time(&self, frame: &[u8], repeat: u32) -> Result<f64> {
        Ok(timed_run(self.program, frame, repeat).context("BPF_PROG_TEST_RUN")?.as_nanos() as f64)
    }
}
