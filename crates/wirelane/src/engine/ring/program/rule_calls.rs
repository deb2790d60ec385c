//! Calls of a plug-in's function for changes of rules (`PLUGIN_RULE()` of `include/wirelane/plugin.h`): a program of its own,
//! with the maps of the capture, which the thread that changes rules runs by `BPF_PROG_TEST_RUN`.
//!
//! The program is of type `BPF_PROG_TYPE_SYSCALL`, which gets memory and no packet. It is loaded once for a capture, while
//! the process has its rights; running it needs none.

use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use libbpf_rs::libbpf_sys as sys;
use libbpf_rs::{MapCore as _, MapFlags, ObjectBuilder};
use wirelane_bpf::instance::{RuleChange, rule_event, rule_flags};
use wirelane_bpf::rules::shape;
use wirelane_bpf::skel::RULE_CHANGE_OBJECT;

use super::super::log;
use super::link::{link, load_object, refused, unlinkable};
use super::state::{of_program, take_layout};
use super::{Plugin, UserProgram};
use crate::active_rules::{Event, Notice, Observer};
use crate::error::{Error, Result};

/// The function's name in a user's object.
pub(super) const FUNCTION: &str = "wirelane_rule_v1_0";
/// The program that calls it.
const PROGRAM: &str = "wirelane_rule_change";

/// A plug-in of a capture that hears of changes of rules.
#[derive(Debug)]
pub(crate) struct RuleCalls {
    program: OwnedFd,
    /// Path of the object file, for messages.
    file: Arc<str>,
    /// Names of the plug-in in rules.
    names: Vec<String>,
    has_failed: AtomicBool,
}

impl RuleCalls {
    /// The functions of these plug-ins, those that have one.
    ///
    /// # Errors
    /// [`Error::BadOption`] where the verifier refuses a function, or the error that the kernel returned.
    pub(crate) fn of(plugins: &[Plugin]) -> Result<Vec<Arc<dyn Observer>>> {
        let mut all: Vec<(&UserProgram, RuleCalls)> = Vec::new();
        for Plugin { name, program } in plugins.iter().filter(|plugin| plugin.program.hears_of_rules()) {
            // Two names of the same object are one program.
            match all.iter_mut().find(|(other, _)| other.bytes() == program.bytes()) {
                Some((_, calls)) => calls.names.push(name.clone()),
                None => all.push((program, RuleCalls::load(program, name)?)),
            }
        }
        Ok(all.into_iter().map(|(_, calls)| -> Arc<dyn Observer> { Arc::new(calls) }).collect())
    }

    fn load(plugin: &UserProgram, name: &str) -> Result<RuleCalls> {
        let failed = |e| Error::bpf("loading the function of a plug-in for changes of rules", e);
        let linked = link(RULE_CHANGE_OBJECT, &[plugin.bytes().to_vec()], Some(plugin))?;
        let (open, heard) = log::listening(|| {
            ObjectBuilder::default().name("rule_change").and_then(|builder| builder.open_memory(&linked))
        });
        let mut open = open.map_err(|e| unlinkable(Some(plugin), &e, &heard))?;
        for mut map in open.maps_mut() {
            let full = map.name().to_string_lossy().into_owned();
            if let Some((_, name)) = of_program(&full) {
                take_layout(&mut map, name, plugin.state()).map_err(failed)?;
            }
        }
        let object = load_object(open, PROGRAM)
            .map_err(|(e, said)| refused(Some(plugin), &said).unwrap_or_else(|| failed(e)))?;
        for array in object.maps() {
            let full = array.name().to_string_lossy();
            let Some((_, name)) = of_program(&full) else { continue };
            let Some(state) = plugin.state().iter().find(|state| state.name == name) else { continue };
            // The program serves one capture, which is number 0 in its arrays.
            let map = state.map.as_fd().as_raw_fd().to_ne_bytes();
            array.update(&0u32.to_ne_bytes(), &map, MapFlags::ANY).map_err(failed)?;
        }
        let missing = || failed(libbpf_rs::Error::from_raw_os_error(libc::ENOENT));
        let program = object.progs().find(|program| program.name() == PROGRAM).ok_or_else(missing)?;
        let program = program.as_fd().try_clone_to_owned();
        let program = program.map_err(|e| Error::kernel("keeping the function of a plug-in", e))?;
        let (file, names) = (Arc::clone(plugin.file()), vec![name.to_owned()]);
        Ok(RuleCalls { program, file, names, has_failed: AtomicBool::new(false) })
    }

    /// Runs the function.
    fn call(&self, mut change: RuleChange) -> std::io::Result<()> {
        let mut options = sys::bpf_test_run_opts {
            sz: size_of::<sys::bpf_test_run_opts>() as _,
            ctx_in: std::ptr::from_mut(&mut change).cast(),
            ctx_size_in: size_of::<RuleChange>() as u32,
            ..Default::default()
        };
        // SAFETY: an open program; the options have their size, and the description is alive and of this size. The kernel
        // copies it, and writes none of it back without a ctx_out.
        let status = unsafe { sys::bpf_prog_test_run_opts(self.program.as_raw_fd(), &mut options) };
        if status == 0 { Ok(()) } else { Err(std::io::Error::from_raw_os_error(-status)) }
    }
}

impl Observer for RuleCalls {
    fn hear(&self, notice: &Notice) {
        // Relaxed: it only limits the number of warnings.
        if let Err(e) = self.call(described(notice, &self.names))
            && !self.has_failed.swap(true, Ordering::Relaxed)
        {
            tracing::error!(
                "{}: calling its function for changes of rules: {e}; further failures are not reported",
                self.file
            );
        }
    }
}

/// The description of a change for a plug-in with these names.
fn described(notice: &Notice, names: &[String]) -> RuleChange {
    let flag = |is: bool, flag: u32| if is { flag } else { 0 };
    let (key, idle_s) = notice.exact.unwrap_or_default();
    let has = |bit: u32| key.shape & bit != 0;
    RuleChange {
        id: notice.id,
        event: match notice.event {
            Event::Added => rule_event::ADDED,
            Event::Removed => rule_event::REMOVED,
            Event::Expired => rule_event::EXPIRED,
        },
        flags: flag(notice.plugins.iter().any(|name| names.contains(name)), rule_flags::NAMES)
            | flag(notice.exact.is_some(), rule_flags::EXACT)
            | flag(notice.is_made, rule_flags::MADE),
        time_ns: notice.now_ns,
        packets: notice.counts.packets,
        bytes: notice.counts.bytes,
        first_ns: notice.counts.first_ns,
        last_ns: notice.counts.last_ns,
        fields: key.shape,
        tunnel_id: key.tunnel,
        mpls_label: key.mpls,
        vlan_id: if has(shape::VLAN) { key.vlan } else { 0 },
        l3: key.l3,
        proto: key.proto,
        src: key.src,
        dst: key.dst,
        src_port: key.src_port,
        dst_port: key.dst_port,
        idle_s,
        ..RuleChange::default()
    }
}
