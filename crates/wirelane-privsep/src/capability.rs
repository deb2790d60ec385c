//! Capabilities of this process, and the error for missing ones.
//!
//! Wirelane checks capabilities before it acts: the kernel's own error for a missing privilege is a bare "operation not
//! permitted", which names neither the capability nor the fix.

use std::fmt;
use std::fs;
use std::path::PathBuf;

use crate::{Error, Result};

/// A Linux capability that some part of Wirelane needs (capabilities(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Capability {
    /// Attach programs to devices, change devices' settings.
    NetAdmin = 12,
    /// Open packet sockets and AF_XDP sockets.
    NetRaw = 13,
    /// Lock more memory than the resource limit allows.
    IpcLock = 14,
    /// Look up programs and maps of other processes by id; on kernels before 5.8 everything that BPF needs.
    SysAdmin = 21,
    /// Raise the priority of threads and pin other processes' threads.
    SysNice = 23,
    /// Raise resource limits.
    SysResource = 24,
    /// Read kernel memory and timing from BPF programs.
    Perfmon = 38,
    /// Load BPF programs and create maps.
    Bpf = 39,
}

impl Capability {
    /// Every capability that some part of Wirelane needs.
    pub const ALL: [Capability; 8] = [
        Capability::Bpf,
        Capability::NetAdmin,
        Capability::NetRaw,
        Capability::Perfmon,
        Capability::SysAdmin,
        Capability::SysNice,
        Capability::SysResource,
        Capability::IpcLock,
    ];

    /// The capabilities that capturing from a device needs.
    pub const CAPTURE: [Capability; 5] = [
        Capability::Bpf,
        Capability::NetAdmin,
        Capability::NetRaw,
        Capability::SysAdmin,
        Capability::Perfmon,
    ];

    /// The name as the kernel's documentation writes it: `CAP_BPF`.
    pub fn name(self) -> &'static str {
        match self {
            Capability::NetAdmin => "CAP_NET_ADMIN",
            Capability::NetRaw => "CAP_NET_RAW",
            Capability::IpcLock => "CAP_IPC_LOCK",
            Capability::SysAdmin => "CAP_SYS_ADMIN",
            Capability::SysNice => "CAP_SYS_NICE",
            Capability::SysResource => "CAP_SYS_RESOURCE",
            Capability::Perfmon => "CAP_PERFMON",
            Capability::Bpf => "CAP_BPF",
        }
    }

    pub(crate) fn bit(self) -> u64 {
        1 << (self as u8)
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The effective capabilities of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Privileges {
    effective: u64,
    initial_user_namespace: bool,
}

impl Privileges {
    /// The effective capabilities of the calling thread, from `CapEff` in `/proc/thread-self/status` (proc(5)).
    ///
    /// # Errors
    /// [`Error::Io`] where `/proc` is not mounted or not readable.
    pub fn current() -> Result<Privileges> {
        let path = PathBuf::from("/proc/thread-self/status");
        let status = fs::read_to_string(&path).map_err(|source| Error::Io { path: path.clone(), source })?;
        let effective = parse_effective(&status).ok_or_else(|| Error::Io {
            path,
            source: std::io::Error::new(std::io::ErrorKind::InvalidData, "no CapEff line in it"),
        })?;
        // A process that cannot read its map is not in a container that it created itself.
        let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        Ok(Privileges { effective, initial_user_namespace: is_initial_uid_map(&map) })
    }

    /// Whether `capability` is effective. CAP_SYS_ADMIN stands for CAP_BPF and CAP_PERFMON too, as in the
    /// kernel's `bpf_capable()` and `perfmon_capable()`.
    pub fn has(&self, capability: Capability) -> bool {
        let covered = match capability {
            Capability::Bpf | Capability::Perfmon => capability.bit() | Capability::SysAdmin.bit(),
            _ => capability.bit(),
        };
        self.effective & covered != 0
    }

    /// The capabilities of `needed` that are missing, in the order given.
    pub fn missing(&self, needed: &[Capability]) -> Vec<Capability> {
        needed.iter().copied().filter(|capability| !self.has(*capability)).collect()
    }

    /// Whether the process is in the initial user namespace. In another user namespace (a rootless container) a process
    /// may seem to have all capabilities, but the kernel does not accept them for BPF.
    pub fn in_initial_user_namespace(&self) -> bool {
        self.initial_user_namespace
    }
}

/// Checks that the calling thread has every capability in `needed`; `action` names the operation that needs them, as in
/// "capturing with XDP".
///
/// # Errors
/// [`Error::MissingCapability`] with all missing capabilities; [`Error::UserNamespace`] where granting them would not
/// help.
pub fn require(needed: &[Capability], action: &str) -> Result<()> {
    check(Privileges::current()?, needed, action)
}

fn check(privileges: Privileges, needed: &[Capability], action: &str) -> Result<()> {
    // Checked first, because granting capabilities in that namespace changes nothing. Capabilities for a network
    // namespace count if the user namespace owns it.
    if needed.contains(&Capability::Bpf) && !privileges.in_initial_user_namespace() {
        return Err(Error::UserNamespace { action: action.to_owned() });
    }
    let missing = privileges.missing(needed);
    if missing.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = missing.iter().map(|capability| capability.name()).collect();
    Err(Error::MissingCapability {
        missing: names.join(", "),
        grant: names.join(",").to_lowercase(),
        action: action.to_owned(),
    })
}

fn parse_effective(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

fn is_initial_uid_map(map: &str) -> bool {
    // An unreadable map counts as the initial one: /proc/self/uid_map is missing without CONFIG_USER_NS.
    map.trim().is_empty() || map.split_whitespace().eq(["0", "0", "4294967295"])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(effective: u64) -> Privileges {
        Privileges { effective, initial_user_namespace: true }
    }

    #[test]
    fn effective_set_is_read_from_proc_status() {
        let status = "Name:\tcat\nCapPrm:\t0000000000000000\nCapEff:\t000000c000003000\nSeccomp:\t0\n";
        assert_eq!(parse_effective(status), Some(0xc0_0000_3000));
        assert_eq!(parse_effective("Name:\tcat\n"), None);
        assert_eq!(parse_effective("CapEff:\tnonsense\n"), None);
    }

    #[test]
    fn bits_are_those_of_the_kernel() {
        // include/uapi/linux/capability.h
        let known = [(12, "CAP_NET_ADMIN"), (13, "CAP_NET_RAW"), (21, "CAP_SYS_ADMIN"), (39, "CAP_BPF")];
        for (bit, name) in known {
            let capability = Capability::ALL.into_iter().find(|c| c.name() == name).unwrap();
            assert!(with(1 << bit).has(capability), "{name}");
            assert!(!with(!(1 << bit | Capability::SysAdmin.bit())).has(capability), "{name}");
        }
    }

    #[test]
    fn sys_admin_covers_bpf_but_not_the_network() {
        let root_like = with(Capability::SysAdmin.bit());
        assert!(root_like.has(Capability::Bpf));
        assert!(root_like.has(Capability::Perfmon));
        assert_eq!(root_like.missing(&[Capability::NetAdmin, Capability::Bpf]), [Capability::NetAdmin]);
    }

    #[test]
    fn the_error_names_all_that_is_missing_and_the_cure() {
        let error =
            check(with(0), &[Capability::Bpf, Capability::NetAdmin], "capturing with XDP").unwrap_err();
        let text = error.to_string();
        assert!(text.contains("missing CAP_BPF, CAP_NET_ADMIN"), "{text}");
        assert!(text.contains("capturing with XDP"), "{text}");
        assert!(text.contains("setcap cap_bpf,cap_net_admin+ep"), "{text}");
        assert!(check(with(0), &[], "nothing").is_ok());
    }

    #[test]
    fn capabilities_of_another_user_namespace_do_not_count() {
        let inside = Privileges { effective: u64::MAX, initial_user_namespace: false };
        let text = check(inside, &Capability::CAPTURE, "capturing").unwrap_err().to_string();
        assert!(text.contains("CAP_BPF") && text.contains("user namespace"), "{text}");
        assert!(check(with(u64::MAX), &Capability::CAPTURE, "capturing").is_ok());
        assert!(check(inside, &[Capability::NetRaw], "capturing through packet sockets").is_ok());
    }

    #[test]
    fn rootless_containers_are_recognised() {
        assert!(is_initial_uid_map("         0          0 4294967295\n"));
        assert!(!is_initial_uid_map("         0       1000          1\n"));
    }
}
