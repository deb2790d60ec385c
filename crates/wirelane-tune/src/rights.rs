//! Rights of processes that change settings of devices or undo the changes.
//!
//! | right | for |
//! | --- | --- |
//! | CAP_NET_ADMIN | ethtool, and sysfs, which asks for it beside the file's permissions |
//! | CAP_SYS_NICE | putting polling threads back on their CPUs: the kernel asks it of whoever has fewer capabilities than a kernel thread, which is everybody else |
//! | the user | `/proc/irq`, sysfs and the journal are files of root's, and root needs no CAP_DAC_OVERRIDE for its own |
//! | writing (Landlock) | `/proc/irq`, the folders of network devices in sysfs, and the journals |
//! | reading `/proc` and `/sys` (Landlock) | what the settings are now, and which captures run |

use std::path::{Path, PathBuf};

use wirelane_privsep::forked::Access;
use wirelane_privsep::process::run_folder;
use wirelane_privsep::{Capability, Result};

/// Capabilities, and paths with the access that they need.
pub type Needed = (Vec<Capability>, Vec<(PathBuf, Access)>);

/// Rights for changing settings of these devices and undoing the changes.
///
/// # Errors
/// If the folder of the journals cannot be created.
pub fn for_settings(devices: &[String]) -> Result<Needed> {
    Ok((vec![Capability::NetAdmin, Capability::SysNice], folders(devices)?))
}

fn folders(devices: &[String]) -> Result<Vec<(PathBuf, Access)>> {
    let mut folders = vec![
        (PathBuf::from("/proc"), Access::Read),
        (PathBuf::from("/sys"), Access::Read),
        (PathBuf::from("/proc/irq"), Access::Write),
        (run_folder()?, Access::ReadWriteRemove),
    ];
    for device in devices {
        // The parent folder of the device's folder: a renamed device stays in it. A /sys of another network namespace
        // has no such folder, and then nothing is changed there.
        if let Ok(folder) = Path::new("/sys/class/net").join(device).canonicalize()
            && let Some(all) = folder.parent()
        {
            folders.push((all.to_owned(), Access::Write));
        }
    }
    Ok(folders)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions};
    use std::io;

    use wirelane_privsep::forked::Rights;

    use super::*;

    /// Whether a thread with these rights can open each of these files.
    fn opened(devices: &[String], files: &[(&str, bool)]) -> Vec<bool> {
        let (capabilities, folders) = for_settings(devices).unwrap();
        let folders = if devices.is_empty() { Vec::new() } else { folders };
        let rights = Rights::new(&capabilities, &folders).unwrap();
        let ask = || {
            rights.assume().unwrap();
            let open = |(file, write): &(&str, bool)| {
                let opened = OpenOptions::new().read(!write).write(*write).open(file);
                !opened.is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
            };
            files.iter().map(open).collect()
        };
        // Capabilities and Landlock are per thread.
        std::thread::scope(|scope| scope.spawn(ask).join().unwrap())
    }

    #[test]
    fn only_settings_can_be_written_and_only_where_they_are_changed() {
        if !nix::unistd::geteuid().is_root() {
            println!("left out: only_settings_can_be_written_and_only_where_they_are_changed (needs root)");
            return;
        }
        let journal = run_folder().unwrap().join("a-test.journal");
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
}
