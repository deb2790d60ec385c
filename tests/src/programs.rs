//! Steering programs and plug-ins: those of `tests/programs/` and `examples/`, compiled when the tests were built; and
//! what else they need of BPF.

use std::fs;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use libbpf_rs::{ObjectBuilder, TC_EGRESS, TcHookBuilder};
use wirelane::Device;

use crate::Lab;

static OBJECTS: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/programs.rs"));

/// The object file of a program: a source's name without `.bpf.c`, or a variant of `tests/build.rs`.
///
/// # Errors
/// Where there is no such program.
pub fn program_object(name: &str) -> Result<&'static [u8]> {
    let found = OBJECTS.iter().find(|(other, _)| *other == name);
    found.map(|(_, bytes)| *bytes).with_context(|| format!("there is no program {name}"))
}

/// Writes a program's object file into a folder, and gives its path.
///
/// # Errors
/// Where there is no such program, or it cannot be written.
pub fn program_file(folder: &Path, name: &str) -> Result<PathBuf> {
    let path = folder.join(format!("{name}.bpf.o"));
    // Not written anew while somebody reads it.
    if !path.exists() {
        fs::write(&path, program_object(name)?).with_context(|| path.display().to_string())?;
    }
    Ok(path)
}

/// Has the stack of the lab's sender give every packet the VLAN tag 7, beside the packet: as a VLAN device does, and a
/// card that takes tags out of what it receives. Until the lab's end.
///
/// # Errors
/// Where the kernel refuses: it has no clsact qdisc, or a privilege is missing.
pub fn tag_beside(lab: &Lab) -> Result<()> {
    let end = lab.sender();
    lab.enter(&end.namespace, || -> Result<()> {
        let object = ObjectBuilder::default().open_memory(program_object("push_tag")?)?.load()?;
        let program = object.progs().next().context("the object has a program")?;
        let ifindex = Device::open(&end.device)?.ifindex as i32;
        let mut hook = TcHookBuilder::new(program.as_fd())
            .ifindex(ifindex)
            .replace(true)
            .handle(1)
            .priority(1)
            .hook(TC_EGRESS);
        hook.create().context("making a clsact qdisc")?;
        hook.attach().context("attaching a filter")?;
        Ok(())
    })?
}
