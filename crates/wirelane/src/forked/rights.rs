//! The rights of processes beside the capture: as few as what they may have to do takes.
//!
//! | right | for |
//! | --- | --- |
//! | CAP_NET_ADMIN | filters, ethtool, and sysfs, which asks for it beside the file's permissions |
//! | CAP_SYS_NICE, where polling threads are bound | putting polling threads back on their CPUs: the kernel asks it of whoever has fewer capabilities than a kernel thread, which is everybody else |
//! | CAP_BPF, alone | making maps of named sets (`engine/ring/rules/maker.rs`) |
//! | the user, where settings are changed | `/proc/irq`, sysfs and the journal are files of root's, and root needs no CAP_DAC_OVERRIDE for its own |
//! | writing below these folders (Landlock) | `/proc/irq`, the folders of network devices in sysfs, and the journals |
//! | reading `/proc` and `/sys` (Landlock) | what the settings are now, and which captures run |
//! | removing files from this folder (Landlock), where there is a control socket | its file |
//!
//! Files are opened when they are written, and not held open from the start: what is to be undone is known at the end
//! only (a capture that goes last puts back what the first has changed), devices are renamed, journals are made anew,
//! and a file of sysfs asks for CAP_NET_ADMIN at every write, however it was opened. So the user stays, and Landlock
//! takes away what being root without capabilities would still allow.

use std::io;
use std::path::{Path, PathBuf};

use caps::{CapSet, Capability};
use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError, Scope,
};

use crate::tune::polling;
use crate::{Error, Result};

/// The newest rules that were thought through here, as in `confine/files.rs`.
const RULES: ABI = ABI::V6;

/// What a process may do. Made before the fork, in force after it.
pub(crate) struct Rights {
    capabilities: u64,
    files: RulesetCreated,
}

impl Rights {
    /// For undoing settings of these devices, if any, removing filters, and removing a socket from this folder, if it
    /// is in one.
    pub(crate) fn for_guardian(devices: &[String], sockets: Option<&Path>) -> Result<Rights> {
        let (capabilities, mut places) = match devices {
            [] => (&[Capability::CAP_NET_ADMIN][..], Vec::new()),
            _ => (&[Capability::CAP_NET_ADMIN, Capability::CAP_SYS_NICE][..], places(devices)?),
        };
        places.extend(sockets.map(|folder| (folder.to_owned(), AccessFs::RemoveFile.into())));
        Rights::of(capabilities, &places)
    }

    /// For setting the RSS table of this device, and putting it back.
    pub(crate) fn for_table_of(device: &str) -> Result<Rights> {
        Rights::of(&[Capability::CAP_NET_ADMIN], &places(&[device.to_owned()])?)
    }

    /// For making maps.
    pub(crate) fn for_maps() -> Result<Rights> {
        Rights::of(&[Capability::CAP_BPF], &[])
    }

    fn of(wanted: &[Capability], places: &[(PathBuf, BitFlags<AccessFs>)]) -> Result<Rights> {
        let permitted = caps::read(None, CapSet::Permitted)
            .map_err(|e| Error::kernel("reading this process's capabilities", io::Error::other(e)))?;
        // In a container, some may be missing: what needs them is refused to the capture too.
        let had = wanted.iter().filter(|one| permitted.contains(one));
        let capabilities = had.fold(0, |sum, one| sum | 1u64 << one.index());
        let failed = |e| Error::kernel("restricting a process's files by Landlock", io::Error::other(e));
        Ok(Rights { capabilities, files: rules(places).map_err(failed)? })
    }

    /// Gives up all others, in a process that has just been forked.
    pub(super) fn assume(self) -> io::Result<()> {
        // A kernel without Landlock keeps files by their permissions only, as for captures.
        self.files.restrict_self().map_err(io::Error::other)?;
        let kept = caps::all().into_iter().filter(|one| self.capabilities & (1 << one.index()) != 0);
        let kept = kept.collect();
        caps::clear(None, CapSet::Ambient).map_err(io::Error::other)?;
        caps::clear(None, CapSet::Inheritable).map_err(io::Error::other)?;
        for set in [CapSet::Effective, CapSet::Permitted] {
            caps::set(None, set, &kept).map_err(io::Error::other)?;
        }
        nix::sys::prctl::set_dumpable(false)?;
        nix::sys::prctl::set_no_new_privs()?;
        Ok(())
    }
}

/// What may be opened, and how.
fn places(devices: &[String]) -> Result<Vec<(PathBuf, BitFlags<AccessFs>)>> {
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let write = AccessFs::WriteFile | AccessFs::Truncate;
    let mut places = vec![
        (PathBuf::from("/proc"), read),
        (PathBuf::from("/sys"), read),
        (PathBuf::from("/proc/irq"), write),
        (polling::journals()?, read | write | AccessFs::RemoveFile),
    ];
    for device in devices {
        // The folder that holds the device's: a device that is renamed stays in it. A /sys of another network namespace
        // has none, and then nothing is changed there.
        if let Ok(folder) = Path::new("/sys/class/net").join(device).canonicalize()
            && let Some(all) = folder.parent()
        {
            places.push((all.to_owned(), write));
        }
    }
    Ok(places)
}

fn rules(places: &[(PathBuf, BitFlags<AccessFs>)]) -> std::result::Result<RulesetCreated, RulesetError> {
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(RULES))
        .and_then(|rules| rules.handle_access(AccessNet::from_all(RULES)))
        .and_then(|rules| rules.scope(Scope::from_all(RULES)))
        .and_then(Ruleset::create)?;
    for (place, access) in places {
        // What is not there is not written.
        if let Ok(file) = PathFd::new(place) {
            rules = rules.add_rule(PathBeneath::new(file, *access))?;
        }
    }
    Ok(rules)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions};

    use super::*;

    /// What a thread with these rights is told when it opens these files.
    fn opened(devices: &[String], files: &[(&str, bool)]) -> Vec<bool> {
        let rights = Rights::for_guardian(devices, None).unwrap();
        let ask = || {
            rights.assume().unwrap();
            let open = |(file, write): &(&str, bool)| {
                let opened = OpenOptions::new().read(!write).write(*write).open(file);
                !opened.is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
            };
            files.iter().map(open).collect()
        };
        // Capabilities and Landlock are a thread's.
        std::thread::scope(|scope| scope.spawn(ask).join().unwrap())
    }

    #[test]
    fn only_settings_can_be_written_and_only_where_they_are_changed() {
        if !nix::unistd::geteuid().is_root() {
            println!("left out: only_settings_can_be_written_and_only_where_they_are_changed (needs root)");
            return;
        }
        let journal = polling::journals().unwrap().join("a-test.journal");
        fs::write(&journal, b"").unwrap();
        let files = [
            ("/proc/irq/default_smp_affinity", true),
            ("/sys/class/net/lo/gro_flush_timeout", true),
            ("/sys/class/net/lo/gro_flush_timeout", false),
            ("/proc/1/stat", false),
            (journal.to_str().unwrap(), true),
            ("/sys/kernel/mm/transparent_hugepage/enabled", true),
            ("/proc/sys/net/ipv4/ip_forward", true),
            ("/etc/passwd", false),
            ("/dev/null", true),
        ];
        let settings = opened(&["lo".to_owned()], &files);
        let filters = opened(&[], &files);
        fs::remove_file(&journal).unwrap();
        assert_eq!(settings, [true, true, true, true, true, false, false, false, false]);
        assert_eq!(filters, [false; 9]);
    }

    #[test]
    fn a_socket_can_be_removed_from_its_folder_and_nothing_made_there() {
        if !nix::unistd::geteuid().is_root() {
            println!("left out: a_socket_can_be_removed_from_its_folder_and_nothing_made_there (needs root)");
            return;
        }
        let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let files = [folder.path().join("socket"), other.path().join("socket")];
        for file in &files {
            fs::write(file, b"").unwrap();
        }
        let rights = Rights::for_guardian(&[], Some(folder.path())).unwrap();
        let ask = || {
            rights.assume().unwrap();
            let removed = files.each_ref().map(|file| fs::remove_file(file).is_ok());
            (removed, fs::write(folder.path().join("another"), b"").is_ok(), fs::read(&files[1]).is_ok())
        };
        let told = std::thread::scope(|scope| scope.spawn(ask).join().unwrap());
        assert_eq!(told, ([true, false], false, false));
    }
}
