//! Sandbox: file access by Landlock (Documentation/userspace-api/landlock.rst in the kernel tree).

use std::io;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, NetPort, PathBeneath, PathFd, PathFdError,
    Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};

use crate::{Error, Result};

/// The newest Landlock ABI that this code was reviewed for. A kernel with an older one enforces the rules that it
/// knows.
const RULES: ABI = ABI::V6;

/// The path that a Landlock rule must name for this output: its folder, or the pipe or device itself.
pub(super) fn place_of(path: &Path) -> PathBuf {
    let special = path.symlink_metadata().is_ok_and(|metadata| {
        let kind = metadata.file_type();
        !kind.is_file() && !kind.is_symlink() && !kind.is_dir()
    });
    if special {
        return path.to_owned();
    }
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        Some(_) => PathBuf::from("."),
        None => path.to_owned(),
    }
}

/// Paths and ports that remain accessible.
pub(super) struct Places<'a> {
    /// Folders in which files are created and removed; pipes and devices.
    pub(super) outputs: &'a [PathBuf],
    /// Folders in which folders are created, too.
    pub(super) trees: &'a [PathBuf],
    /// Folders in which files are created and not removed.
    pub(super) logs: &'a [PathBuf],
    /// Folders in which files are read.
    pub(super) reads: &'a [PathBuf],
    /// Folders that are read with all that is in them.
    pub(super) sources: &'a [PathBuf],
    /// Whether outputs are read.
    pub(super) read_back: bool,
    /// TCP ports for connections.
    pub(super) ports: &'a [u16],
}

/// Restricts the calling thread, and those that it starts, to these places. Returns whether the kernel enforces the
/// restriction.
pub(super) fn restrict(places: &Places<'_>) -> Result<bool> {
    let Places { outputs, trees, logs, reads, sources, read_back, ports } = *places;
    let failed =
        |source: RulesetError| Error::kernel("restricting files by Landlock", io::Error::other(source));
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(RULES))
        .and_then(|rules| rules.handle_access(AccessNet::from_all(RULES)))
        .and_then(|rules| rules.scope(Scope::from_all(RULES)))
        .and_then(Ruleset::create)
        .map_err(failed)?;
    let read = if read_back { AccessFs::ReadFile.into() } else { landlock::BitFlags::empty() };
    let folder = in_folder() | read;
    let places = outputs.iter().map(|place| (place, folder));
    let trees = trees.iter().map(|place| (place, folder | AccessFs::MakeDir | AccessFs::RemoveDir));
    let logs = logs.iter().map(|place| (place, AccessFs::WriteFile | AccessFs::MakeReg | AccessFs::Truncate));
    let reads = reads.iter().map(|place| (place, AccessFs::ReadFile.into()));
    let sources = sources.iter().map(|place| (place, AccessFs::ReadFile | AccessFs::ReadDir));
    for (place, in_folder) in places.chain(trees).chain(logs).chain(reads).chain(sources) {
        let file = match PathFd::new(place) {
            Ok(file) => file,
            // A path that does not exist cannot be opened either; opening it reports the error.
            Err(PathFdError::OpenCall { source, .. }) if source.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => {
                let source = io::Error::other(error);
                return Err(Error::Io { path: place.clone(), source });
            }
        };
        let access = if place.is_dir() { in_folder } else { read | AccessFs::WriteFile };
        rules = rules.add_rule(PathBeneath::new(file, access)).map_err(failed)?;
    }
    for port in ports {
        rules = rules.add_rule(NetPort::new(*port, AccessNet::ConnectTcp)).map_err(failed)?;
    }
    let enforced = rules.restrict_self().map_err(failed)?.ruleset;
    match enforced {
        RulesetStatus::NotEnforced => {
            tracing::info!(
                "this kernel has no Landlock (Linux 5.13, CONFIG_SECURITY_LANDLOCK): files are kept by their permissions only"
            );
        }
        RulesetStatus::PartiallyEnforced => tracing::debug!("this kernel knows part of the Landlock rules"),
        RulesetStatus::FullyEnforced => {}
    }
    Ok(enforced != RulesetStatus::NotEnforced)
}

/// Access for recording in a folder: creating, renaming and removing files. Read access is optional: the recording does
/// not need files that are there already.
fn in_folder() -> landlock::BitFlags<AccessFs> {
    AccessFs::ReadDir | AccessFs::WriteFile | AccessFs::Truncate | AccessFs::MakeReg | AccessFs::RemoveFile
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_names_the_folder_or_the_device() {
        assert_eq!(place_of(Path::new("/no/such/folder/out.pcapng")), Path::new("/no/such/folder"));
        assert_eq!(place_of(Path::new("out.pcapng")), Path::new("."));
        assert_eq!(place_of(Path::new("/dev/null")), Path::new("/dev/null"));
        assert_eq!(place_of(Path::new("/etc/passwd")), Path::new("/etc"));
    }
}
