//! Rights of helper processes: the minimum that their task needs.
//!
//! A helper keeps a few capabilities and its user, and Landlock restricts it to the folders that it needs. Files are
//! opened when they are written, and not held open from the start: only at the end is it known which changes have to be
//! undone, devices are renamed, files are recreated, and sysfs checks CAP_NET_ADMIN at every write, however the file
//! was opened. So the user stays the same, and Landlock denies the access that root has without capabilities.

use std::io;
use std::path::PathBuf;

use caps::CapSet;
use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError, Scope,
};

use crate::{Capability, Error, Result};

/// The newest Landlock ABI that this code was reviewed for, as in `sandbox/files.rs`.
const RULES: ABI = ABI::V6;

/// Kind of access below a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reading files and listing folders.
    Read,
    /// Writing and truncating files that exist.
    Write,
    /// [`Access::Read`], [`Access::Write`], and removing files.
    ReadWriteRemove,
    /// Removing files.
    Remove,
}

impl Access {
    fn flags(self) -> BitFlags<AccessFs> {
        let (read, write) =
            (AccessFs::ReadFile | AccessFs::ReadDir, AccessFs::WriteFile | AccessFs::Truncate);
        match self {
            Access::Read => read,
            Access::Write => write,
            Access::ReadWriteRemove => read | write | AccessFs::RemoveFile,
            Access::Remove => AccessFs::RemoveFile.into(),
        }
    }
}

/// Rights of a helper process. Created before the fork, enforced after it.
#[derive(Debug)]
pub struct Rights {
    capabilities: u64,
    files: RulesetCreated,
}

impl Rights {
    /// Creates rights with these capabilities, as far as the process has them, and these folders; folders that do not
    /// exist are skipped.
    ///
    /// # Errors
    /// [`Error::Kernel`] if capabilities cannot be read, or Landlock refuses.
    pub fn new(capabilities: &[Capability], folders: &[(PathBuf, Access)]) -> Result<Rights> {
        let capabilities = permitted_of(capabilities)
            .map_err(|source| Error::kernel("reading this process's capabilities", source))?;
        let failed = |e| Error::kernel("restricting a process's files by Landlock", io::Error::other(e));
        Ok(Rights { capabilities, files: rules(folders).map_err(failed)? })
    }

    /// Gives up all other rights, in a process that has just been forked, or in a thread.
    ///
    /// # Errors
    /// The kernel's error; the process may have lost part of its rights.
    pub fn assume(self) -> io::Result<()> {
        // On a kernel without Landlock, only file permissions restrict access, as for captures.
        self.files.restrict_self().map_err(io::Error::other)?;
        caps::clear(None, CapSet::Ambient).map_err(io::Error::other)?;
        caps::clear(None, CapSet::Inheritable).map_err(io::Error::other)?;
        set(self.capabilities)?;
        nix::sys::prctl::set_dumpable(false)?;
        nix::sys::prctl::set_no_new_privs()?;
        Ok(())
    }
}

/// Gives up all capabilities except these, as far as the process has them.
///
/// # Errors
/// The kernel's error.
pub(crate) fn keep_only(capabilities: &[Capability]) -> io::Result<()> {
    set(permitted_of(capabilities)?)
}

/// Those of these capabilities that the process has. In a container, some may be missing: the owner of a helper cannot
/// use them either.
fn permitted_of(capabilities: &[Capability]) -> io::Result<u64> {
    let permitted = caps::read(None, CapSet::Permitted).map_err(io::Error::other)?;
    let permitted = permitted.iter().fold(0, |sum, one| sum | 1u64 << one.index());
    Ok(permitted & capabilities.iter().fold(0, |sum, one| sum | one.bit()))
}

fn set(capabilities: u64) -> io::Result<()> {
    let kept = caps::all().into_iter().filter(|one| capabilities & (1 << one.index()) != 0).collect();
    for set in [CapSet::Effective, CapSet::Permitted] {
        caps::set(None, set, &kept).map_err(io::Error::other)?;
    }
    Ok(())
}

fn rules(folders: &[(PathBuf, Access)]) -> std::result::Result<RulesetCreated, RulesetError> {
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(RULES))
        .and_then(|rules| rules.handle_access(AccessNet::from_all(RULES)))
        .and_then(|rules| rules.scope(Scope::from_all(RULES)))
        .and_then(Ruleset::create)?;
    for (folder, access) in folders {
        // A folder that does not exist needs no rule.
        if let Ok(file) = PathFd::new(folder) {
            rules = rules.add_rule(PathBeneath::new(file, access.flags()))?;
        }
    }
    Ok(rules)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn files_can_be_removed_from_a_folder_and_nothing_made_there() {
        if !nix::unistd::geteuid().is_root() {
            println!("left out: files_can_be_removed_from_a_folder_and_nothing_made_there (needs root)");
            return;
        }
        let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let files = [folder.path().join("socket"), other.path().join("socket")];
        for file in &files {
            fs::write(file, b"").unwrap();
        }
        let rights = Rights::new(&[], &[(folder.path().to_owned(), Access::Remove)]).unwrap();
        let ask = || {
            rights.assume().unwrap();
            let removed = files.each_ref().map(|file| fs::remove_file(file).is_ok());
            (removed, fs::write(folder.path().join("another"), b"").is_ok(), fs::read(&files[1]).is_ok())
        };
        let told = std::thread::scope(|scope| scope.spawn(ask).join().unwrap());
        assert_eq!(told, ([true, false], false, false));
    }
}
