//! XDP and tc programs of others, which Wirelane must not touch.

use std::os::fd::{AsFd, OwnedFd};

use anyhow::{Context, Result};
use libbpf_rs::{Xdp, XdpFlags};
use wirelane::Device;

use crate::{End, Lab, sys};

/// Ways to attach a program to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachBy {
    /// By netlink, as `ip link set DEV xdp` does: it stays until it is detached.
    Netlink,
    /// By a BPF link: it stays as long as the link is held.
    Link,
}

/// An XDP program named `other_program` on a lab's device, which passes every packet. Detached on drop.
#[derive(Debug)]
pub struct ForeignXdp<'lab> {
    lab: &'lab Lab,
    end: End,
    native: bool,
    program: OwnedFd,
    link: Option<OwnedFd>,
}

impl<'lab> ForeignXdp<'lab> {
    /// Attaches the program by netlink, in native or in generic mode.
    ///
    /// # Errors
    /// If the kernel refuses: another program is attached, or a privilege is missing.
    pub fn attach(lab: &'lab Lab, end: &End, native: bool) -> Result<ForeignXdp<'lab>> {
        ForeignXdp::attach_by(lab, end, native, AttachBy::Netlink)
    }

    /// Attaches the program, in native or in generic mode. By netlink it replaces any other program that the kernel
    /// allows to replace, as `ip -force` does.
    ///
    /// # Errors
    /// If the kernel refuses: a program is held by a link, or a privilege is missing.
    pub fn attach_by(lab: &'lab Lab, end: &End, native: bool, by: AttachBy) -> Result<ForeignXdp<'lab>> {
        let program = sys::load_passing_xdp(c"other_program").context("loading an XDP program")?;
        let link = lab.enter(&end.namespace, || -> Result<Option<OwnedFd>> {
            let ifindex = Device::open(&end.device)?.ifindex;
            let doing = || format!("attaching to {}", end.device);
            match by {
                AttachBy::Link => sys::link_xdp(&program, ifindex, native).map(Some).with_context(doing),
                AttachBy::Netlink => {
                    Xdp::new(program.as_fd()).attach(ifindex as i32, mode(native)).with_context(doing)?;
                    Ok(None)
                }
            }
        })??;
        Ok(ForeignXdp { lab, end: end.clone(), native, program, link })
    }

    /// True while the device runs this program.
    ///
    /// # Errors
    /// If the device cannot be queried.
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
        if self.link.is_some() {
            return; // it falls off with its link
        }
        // Fails only if the device is gone, and the program with it.
        let _ = detach_xdp(self.lab, &self.end, self.native);
    }
}

/// Detaches any XDP program from a device by netlink, as `ip link set DEV xdp off` does.
///
/// # Errors
/// If the kernel refuses: the program is held by a link.
pub fn detach_xdp(lab: &Lab, end: &End, native: bool) -> Result<()> {
    // The descriptor of any program can be used for the query.
    let program = sys::load_passing_xdp(c"other_program").context("loading an XDP program")?;
    lab.enter(&end.namespace, || -> Result<()> {
        let ifindex = Device::open(&end.device)?.ifindex;
        Ok(Xdp::new(program.as_fd()).detach(ifindex as i32, mode(native))?)
    })?
}

/// A tc program on the ingress of a lab's device, by link: it passes every packet, and no program after it runs.
/// Detached on drop.
#[derive(Debug)]
pub struct ForeignTc {
    _program: OwnedFd,
    _link: OwnedFd,
}

impl ForeignTc {
    /// Attaches the program after the existing ones.
    ///
    /// # Errors
    /// If the kernel refuses: it has no TCX (Linux 6.6), or a privilege is missing.
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
