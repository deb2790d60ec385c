//! Somebody else's programs, which Wirelane must leave alone.

use std::os::fd::{AsFd, OwnedFd};

use anyhow::{Context, Result};
use libbpf_rs::{Xdp, XdpFlags};
use wirelane::Device;

use crate::{End, Lab, sys};

/// An XDP program named `other_program` on a lab's device, which passes every packet. It is taken off when
/// dropped.
#[derive(Debug)]
pub struct ForeignXdp<'lab> {
    lab: &'lab Lab,
    end: End,
    native: bool,
    program: OwnedFd,
}

impl<'lab> ForeignXdp<'lab> {
    /// Attaches it, in native or in generic mode.
    ///
    /// # Errors
    /// Where the kernel refuses: another program is there, or a privilege is missing.
    pub fn attach(lab: &'lab Lab, end: &End, native: bool) -> Result<ForeignXdp<'lab>> {
        let program = sys::load_passing_xdp(c"other_program").context("loading an XDP program")?;
        lab.enter(&end.namespace, || {
            let ifindex = Device::open(&end.device)?.ifindex;
            Xdp::new(program.as_fd())
                .attach(ifindex as i32, XdpFlags::UPDATE_IF_NOEXIST | mode(native))
                .with_context(|| format!("attaching to {}", end.device))
        })??;
        Ok(ForeignXdp { lab, end: end.clone(), native, program })
    }

    /// Whether the device still runs this very program.
    ///
    /// # Errors
    /// Where the device cannot be looked at.
    pub fn is_attached(&self) -> Result<bool> {
        let attached = self.lab.enter(&self.end.namespace, || -> Result<u32> {
            let ifindex = Device::open(&self.end.device)?.ifindex;
            Ok(Xdp::new(self.program.as_fd()).query_id(ifindex as i32, mode(self.native))?)
        })??;
        Ok(attached != 0 && attached == sys::program_id(&self.program)?)
    }
}

impl Drop for ForeignXdp<'_> {
    fn drop(&mut self) {
        // Where this fails the device is gone, and the program with it.
        let _ = self.lab.enter(&self.end.namespace, || {
            let ifindex = Device::open(&self.end.device).ok()?.ifindex;
            Xdp::new(self.program.as_fd()).detach(ifindex as i32, mode(self.native)).ok()
        });
    }
}

/// A tc program on the ingress of a lab's device, by link: it passes every packet, and ends the row of programs.
/// It is taken off when dropped.
#[derive(Debug)]
pub struct ForeignTc {
    _program: OwnedFd,
    _link: OwnedFd,
}

impl ForeignTc {
    /// Attaches it behind those that are there.
    ///
    /// # Errors
    /// Where the kernel refuses: it has no TCX (Linux 6.6), or a privilege is missing.
    pub fn attach(lab: &Lab, end: &End) -> Result<ForeignTc> {
        let program = sys::load_passing_tc(c"other_tc").context("loading a tc program")?;
        let link = lab.enter(&end.namespace, || -> Result<OwnedFd> {
            let ifindex = Device::open(&end.device)?.ifindex;
            sys::link_tcx_ingress(&program, ifindex).with_context(|| format!("attaching to {}", end.device))
        })??;
        Ok(ForeignTc { _program: program, _link: link })
    }
}

fn mode(native: bool) -> XdpFlags {
    if native { XdpFlags::DRV_MODE } else { XdpFlags::SKB_MODE }
}
