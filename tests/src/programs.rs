//! Steering programs and plug-ins of `tests/programs/` and `examples/`, compiled when the tests were built; and other
//! BPF programs for tests.

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
/// If there is no such program.
pub fn program_object(name: &str) -> Result<&'static [u8]> {
    let found = OBJECTS.iter().find(|(other, _)| *other == name);
    found.map(|(_, bytes)| *bytes).with_context(|| format!("there is no program {name}"))
}

/// Writes a program's object file into a folder, and returns its path.
///
/// # Errors
/// If there is no such program, or it cannot be written.
pub fn program_file(folder: &Path, name: &str) -> Result<PathBuf> {
    let path = folder.join(format!("{name}.bpf.o"));
    // An existing file is kept, as another process may be reading it.
    if !path.exists() {
        fs::write(&path, program_object(name)?).with_context(|| path.display().to_string())?;
    }
    Ok(path)
}

/// Makes the stack of the lab's sender add the VLAN tag 7 to every packet, in its metadata: as a VLAN device does, and
/// a card that removes tags from received packets. Until the lab's end.
///
/// # Errors
/// If the kernel refuses: it has no clsact qdisc, or a privilege is missing.
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
