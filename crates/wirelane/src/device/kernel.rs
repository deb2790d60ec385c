//! What this kernel offers to a capture, and what is missing means.

use std::fs;
use std::io;
use std::path::Path;

use libbpf_rs::ProgramType;
use serde::Serialize;

use super::sys;
use crate::Result;
use crate::privilege::{Capability, Privileges};

/// The oldest kernel that is served.
const OLDEST: (u32, u32) = (6, 1);

/// One thing that a kernel has or lacks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Feature {
    /// Short name, stable, in snake_case.
    pub feature: &'static str,
    /// What it is, for people.
    pub title: &'static str,
    /// Whether it is there; `None` where that could not be found out.
    pub present: Option<bool>,
    /// What its absence means, or why it is not known; empty where all is well.
    pub note: String,
}

/// The kernel's features that Wirelane builds on, and the capabilities of this process.
#[derive(Clone, Debug, Serialize)]
pub struct KernelFeatures {
    /// The release, as `uname -r` prints it.
    pub release: String,
    /// What was looked for, in a fixed order.
    pub features: Vec<Feature>,
    /// Capabilities that some part of Wirelane needs and that this process lacks.
    pub missing_capabilities: Vec<String>,
}

impl KernelFeatures {
    /// Asks the kernel. Nothing is changed and no program stays loaded.
    ///
    /// # Errors
    /// [`crate::Error::Io`] where `/proc` cannot be read.
    pub fn probe() -> Result<KernelFeatures> {
        let privileges = Privileges::current()?;
        let release = read("/proc/sys/kernel/osrelease").unwrap_or_default();
        let features = vec![
            version(&release),
            btf(),
            xdp(&privileges),
            af_xdp(),
            tcx(),
            feature(
                "batch_clock",
                "batches told apart",
                Some(tells_batches()),
                "before 6.11, or without BTF: no '--clock batch'; the clock is read for every packet",
            ),
            jit(),
            lockdown(&read("/sys/kernel/security/lockdown").unwrap_or_default()),
            unprivileged(read("/proc/sys/kernel/unprivileged_bpf_disabled").as_deref()),
            user_namespace(&privileges),
        ];
        let missing = privileges.missing(&Capability::CAPTURE);
        Ok(KernelFeatures {
            release,
            features,
            missing_capabilities: missing.iter().map(ToString::to_string).collect(),
        })
    }
}

/// Whether programs can tell where a batch of packets begins (kernel/programs/clock.h): Linux 6.11.
pub(crate) fn tells_batches() -> bool {
    libbpf_rs::btf::Btf::from_vmlinux()
        .is_ok_and(|btf| btf.type_by_name::<libbpf_rs::btf::types::Struct<'_>>("bpf_net_context").is_some())
}

fn feature(
    feature: &'static str,
    title: &'static str,
    present: Option<bool>,
    otherwise: impl Into<String>,
) -> Feature {
    let note = if present == Some(true) { String::new() } else { otherwise.into() };
    Feature { feature, title, present, note }
}

fn version(release: &str) -> Feature {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|digits| digits.parse::<u32>().ok());
    let version = numbers.next().flatten().zip(numbers.next().flatten());
    feature(
        "version",
        "Linux 6.1 or newer",
        version.map(|version| version >= OLDEST),
        "older kernels are not served: some programs will not load",
    )
}

fn btf() -> Feature {
    feature(
        "btf",
        "type information (BTF)",
        Some(Path::new("/sys/kernel/btf/vmlinux").exists()),
        "built without CONFIG_DEBUG_INFO_BTF: only the engines 'packet' and 'file' work",
    )
}

fn xdp(privileges: &Privileges) -> Feature {
    let may = privileges.missing(&[Capability::Bpf, Capability::NetAdmin]).is_empty();
    // Without the capabilities the probe fails everywhere, which says nothing about the kernel.
    let present = if may { ProgramType::Xdp.is_supported().ok() } else { None };
    let note = if may {
        "no XDP programs can be loaded: the engine 'packet' serves instead"
    } else {
        "not known: asking needs CAP_BPF and CAP_NET_ADMIN"
    };
    feature("xdp", "XDP programs", present, note)
}

fn af_xdp() -> Feature {
    let present = match sys::socket(libc::AF_XDP, libc::SOCK_RAW, 0).map_err(|error| error.raw_os_error()) {
        Ok(_) => Some(true),
        // The kernel looks for CAP_NET_RAW only where it knows the family (net/xdp/xsk.c).
        Err(Some(libc::EPERM)) => Some(true),
        Err(Some(libc::EAFNOSUPPORT)) => Some(false),
        Err(_) => None,
    };
    feature(
        "af_xdp",
        "AF_XDP sockets",
        present,
        "built without CONFIG_XDP_SOCKETS: the engine 'xsk' does not work, the others do",
    )
}

fn tcx() -> Feature {
    // Any device will do; the loopback device is always there and always index 1.
    let (present, note) = match sys::query_tcx(1) {
        Ok(()) => (Some(true), ""),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            (None, "not known: asking needs CAP_NET_ADMIN")
        }
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => (
            Some(false),
            "before 6.6, or built without CONFIG_NET_XGRESS: no '--hook tc' and no '--direction tx'; XDP captures \
                 received packets",
        ),
        Err(_) => (None, "not known: the kernel gave no clear answer"),
    };
    feature("tcx", "tc programs by link (TCX)", present, note)
}

fn jit() -> Feature {
    // The file is missing where the compiler cannot be switched off, and readable by root only.
    let path = "/proc/sys/net/core/bpf_jit_enable";
    let (present, note) = match fs::read_to_string(path) {
        Ok(value) => (
            Some(value.trim() != "0"),
            "programs are interpreted, several times slower: sysctl net.core.bpf_jit_enable=1",
        ),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            (None, "not known: reading it needs root")
        }
        // In a network namespace other than the first one, the setting is not shown.
        Err(_) => (None, "not known: not shown in this network namespace"),
    };
    feature("bpf_jit", "compiled BPF (JIT)", present, note)
}

fn lockdown(modes: &str) -> Feature {
    let current = modes.split('[').nth(1).and_then(|rest| rest.split(']').next()).unwrap_or("none");
    feature(
        "no_lockdown",
        "no lockdown that stops BPF",
        Some(current != "confidentiality"),
        "the kernel is locked down (confidentiality): BPF programs may be refused even to root",
    )
}

fn unprivileged(setting: Option<&str>) -> Feature {
    let note = match setting {
        Some("0") => {
            "sysctl kernel.unprivileged_bpf_disabled is 0: any user may load some programs; not needed, 2 is safer"
        }
        _ => "not known: the kernel does not show the setting",
    };
    let closed = setting.map(|setting| setting != "0");
    feature("unprivileged_bpf_closed", "BPF closed to plain users", closed, note)
}

fn user_namespace(privileges: &Privileges) -> Feature {
    feature(
        "initial_user_namespace",
        "capabilities count for BPF",
        Some(privileges.in_initial_user_namespace()),
        "in a user namespace (a rootless container): the kernel refuses BPF whatever CapEff says",
    )
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        for (release, served) in [
            ("6.1.0-13-amd64", Some(true)),
            ("6.18.44", Some(true)),
            ("5.15.0", Some(false)),
            ("6.0.19", Some(false)),
            ("10.0", Some(true)),
            ("next", None),
        ] {
            assert_eq!(version(release).present, served, "{release}");
        }
    }

    #[test]
    fn the_lockdown_in_force_is_the_one_in_brackets() {
        assert_eq!(lockdown("[none] integrity confidentiality").present, Some(true));
        assert_eq!(lockdown("none [integrity] confidentiality").present, Some(true));
        let locked = lockdown("none integrity [confidentiality]");
        assert_eq!(locked.present, Some(false));
        assert!(locked.note.contains("confidentiality"));
        assert_eq!(lockdown("").present, Some(true));
    }

    #[test]
    fn whatever_is_missing_says_what_that_means() {
        let kernel = KernelFeatures::probe().unwrap();
        for feature in &kernel.features {
            assert_eq!(feature.present == Some(true), feature.note.is_empty(), "{}", feature.feature);
        }
        assert!(!kernel.release.is_empty());
    }
}
