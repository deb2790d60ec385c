//! Kernel features for captures, and the consequences of missing ones.

use std::fs;
use std::io;
use std::path::Path;

use libbpf_rs::libbpf_sys;
use libbpf_rs::{MapType, ProgramType};
use serde::Serialize;

use crate::error::{Error, Result};
use wirelane_netdev::sys;

mod bpf;
use wirelane_privsep::{Capability, Privileges};

/// The oldest supported kernel.
const OLDEST: (u32, u32) = (6, 1);
/// The kernel's types (Documentation/bpf/btf.rst).
const BTF: &str = "/sys/kernel/btf/vmlinux";

/// One feature that a kernel has or lacks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Feature {
    /// Short name, stable, in snake_case.
    pub feature: &'static str,
    /// Description of the feature for the user.
    pub title: &'static str,
    /// Whether the kernel has the feature; `None` where unknown.
    pub present: Option<bool>,
    /// Consequences of a missing feature, or why it is unknown; empty where all is well.
    pub note: String,
}

/// The kernel features that Wirelane uses, and the capabilities of this process.
#[derive(Clone, Debug, Serialize)]
pub struct KernelFeatures {
    /// The release, as `uname -r` prints it.
    pub release: String,
    /// The probed features, in a fixed order.
    pub features: Vec<Feature>,
    /// Capabilities that some part of Wirelane needs and that this process lacks.
    pub missing_capabilities: Vec<String>,
}

impl KernelFeatures {
    /// Probes the kernel. Nothing is changed and no program stays loaded.
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
            multi_buffer(&privileges),
            metadata(),
            live_frames(&privileges),
            tcx(),
            feature(
                "batch_clock",
                "batches told apart",
                Some(tells_batches()),
                "before 6.11, or without BTF: no '--clock batch'; the clock is read for every packet",
            ),
            af_xdp(),
            inner_map(&privileges),
            ring_buffer(&privileges),
            threaded_napi(),
            not_realtime(is_realtime()),
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

/// Checks that the kernel serves bpf(2) to this process, which has the capabilities for it.
///
/// # Errors
/// [`Error::Kernel`], which names the obstacle.
pub(crate) fn require_bpf() -> Result<()> {
    bpf::ask_bpf().map_err(|error| {
        let what = match error.raw_os_error() {
            Some(libc::ENOSYS) => {
                "this kernel has no bpf(2), which capturing from a device needs: use one that was built with \
                 CONFIG_BPF_SYSCALL, as those of the distributions are"
            }
            Some(libc::EPERM | libc::EACCES) => {
                "bpf(2) is forbidden to this process, which has the capabilities for it: look for a seccomp filter (of a \
                 container, or systemd's SystemCallFilter=) or a security module, and allow bpf there"
            }
            _ => "asking the kernel by bpf(2) whether capture programs can be loaded",
        };
        Error::kernel(format!("{what}; captures in files can be read with -r"), error)
    })
}

/// Error text for a kernel that refused a program because it lacks BTF; `None` where it has BTF.
pub(crate) fn without_types() -> Option<String> {
    (!Path::new(BTF).exists()).then(|| {
        format!(
            "this kernel has no type information (BTF, {BTF}), which capture programs need: use one that was \
             built with CONFIG_DEBUG_INFO_BTF, as those of the distributions are; captures in files can be read with -r"
        )
    })
}

/// Whether programs can detect where a batch of packets begins (bpf/clock.h): Linux 6.11.
pub(crate) fn tells_batches() -> bool {
    libbpf_rs::btf::Btf::from_vmlinux()
        .is_ok_and(|btf| btf.type_by_name::<libbpf_rs::btf::types::Struct<'_>>("bpf_net_context").is_some())
}

/// Whether packets that a generic XDP program has passed on may reach tc without their Ethernet header. Since Linux 6.9
/// programs that accept packets in several buffers, as ours do, run on a copy of the packet, for which
/// skb_pp_cow_data() (net/core/skbuff.c) does not set the length of that header, which tc needs to restore it.
pub(crate) fn generic_xdp_hides_headers() -> bool {
    read("/proc/sys/kernel/osrelease")
        .and_then(|release| numbers(&release))
        .is_some_and(|version| version >= (6, 9))
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

/// Major and minor number of a release.
fn numbers(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|digits| digits.parse::<u32>().ok());
    numbers.next().flatten().zip(numbers.next().flatten())
}

fn version(release: &str) -> Feature {
    let version = numbers(release);
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
        Some(Path::new(BTF).exists()),
        "built without CONFIG_DEBUG_INFO_BTF: captures from devices do not work, files do (-r)",
    )
}

/// Probes whether the kernel accepts a request, which needs capabilities. Without them every request is refused, which
/// does not show what the kernel supports.
fn asked(
    privileges: &Privileges,
    name: &'static str,
    title: &'static str,
    probe: impl FnOnce() -> Option<bool>,
    otherwise: &str,
) -> Feature {
    if privileges.missing(&[Capability::Bpf, Capability::NetAdmin]).is_empty() {
        match probe() {
            None => feature(name, title, None, "not known: the kernel gave no clear answer"),
            known => feature(name, title, known, otherwise),
        }
    } else {
        feature(name, title, None, "not known: asking needs CAP_BPF and CAP_NET_ADMIN")
    }
}

/// Interprets the kernel's answer to a request: `EINVAL` means that the kernel does not know it.
fn taken<T>(answer: io::Result<T>) -> Option<bool> {
    match answer {
        Ok(_) => Some(true),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Some(false),
        Err(_) => None,
    }
}

fn xdp(privileges: &Privileges) -> Feature {
    let probe = || ProgramType::Xdp.is_supported().ok();
    asked(privileges, "xdp", "XDP programs", probe, "no XDP programs can be loaded: use --hook tc")
}

fn multi_buffer(privileges: &Privileges) -> Feature {
    asked(
        privileges,
        "xdp_multi_buffer",
        "XDP on packets in several buffers",
        || taken(bpf::load_dropping_xdp(libbpf_sys::BPF_F_XDP_HAS_FRAGS)),
        "before 5.18: no XDP with jumbo frames; --hook tc captures them",
    )
}

/// Metadata functions are kernel functions, which BTF lists by name.
fn metadata() -> Feature {
    let name = b"bpf_xdp_metadata_rx_vlan_tag";
    let present = fs::read(BTF).ok().map(|types| types.windows(name.len()).any(|window| window == name));
    let note = match present {
        Some(_) => {
            "before 6.8: under XDP, a VLAN tag that the card strips is not in the capture; switch that off with \
             ethtool -K DEV rxvlan off, or use --hook tc"
        }
        None => "not known: there is no type information",
    };
    feature("xdp_metadata", "card's metadata for XDP (VLAN tag)", present, note)
}

fn live_frames(privileges: &Privileges) -> Feature {
    let run = || {
        let program = bpf::load_dropping_xdp(0)?;
        bpf::run_xdp(&program, libbpf_sys::BPF_F_TEST_XDP_LIVE_FRAMES)
    };
    asked(
        privileges,
        "xdp_live_frames",
        "packets made by XDP (live frames)",
        || taken(run()),
        "before 5.18: 'wirelane send' has --method socket only, which is slower",
    )
}

fn inner_map(privileges: &Privileges) -> Feature {
    asked(
        privileges,
        "bpf_inner_map",
        "rings of different sizes",
        || taken(bpf::create_array(libbpf_sys::BPF_F_INNER_MAP)),
        "before 5.10: the engine 'ring' does not work",
    )
}

fn ring_buffer(privileges: &Privileges) -> Feature {
    asked(
        privileges,
        "bpf_ring_buffer",
        "wake-ups by BPF ring buffers",
        || MapType::RingBuf.is_supported().ok(),
        "before 5.8: the engine 'ring' does not work",
    )
}

fn threaded_napi() -> Feature {
    let devices = fs::read_dir("/sys/class/net").map(|entries| entries.flatten().collect::<Vec<_>>());
    let present = devices
        .ok()
        .filter(|devices| !devices.is_empty())
        .map(|devices| devices.iter().any(|device| device.path().join("threaded").exists()));
    let note = match present {
        Some(_) => {
            "before 5.12: RX queues are served by soft interrupts only, not by threads that can be pinned"
        }
        None => "not known: sysfs shows no devices",
    };
    feature("threaded_napi", "threads for RX queues (NAPI)", present, note)
}

/// Whether the kernel is PREEMPT_RT. The file exists since Linux 6.12, and in the patches before; older kernels without
/// it are taken for ordinary ones.
pub(crate) fn is_realtime() -> bool {
    read("/sys/kernel/realtime").as_deref() == Some("1")
}

fn not_realtime(realtime: bool) -> Feature {
    feature(
        "not_realtime",
        "no PREEMPT_RT",
        Some(!realtime),
        "a real-time kernel: only native XDP captures; --hook generic, --hook tc and --direction tx are refused, as \
         programs on one CPU interrupt each other there",
    )
}

fn af_xdp() -> Feature {
    let present = match sys::socket(libc::AF_XDP, libc::SOCK_RAW, 0).map_err(|error| error.raw_os_error()) {
        Ok(_) => Some(true),
        // The kernel checks CAP_NET_RAW only where it knows the address family (net/xdp/xsk.c).
        Err(Some(libc::EPERM)) => Some(true),
        Err(Some(libc::EAFNOSUPPORT)) => Some(false),
        Err(_) => None,
    };
    feature(
        "af_xdp",
        "AF_XDP sockets",
        present,
        "built without CONFIG_XDP_SOCKETS: nothing that Wirelane has today needs them",
    )
}

fn tcx() -> Feature {
    // Any device will do; the loopback device is always there and always index 1.
    let (present, note) = match bpf::query_tcx(1) {
        Ok(()) => (Some(true), ""),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            (None, "not known: asking needs CAP_NET_ADMIN")
        }
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => (
            Some(false),
            "before 6.6, or built without CONFIG_NET_XGRESS: --hook tc and --direction tx work by filters on a clsact \
             qdisc instead (modules sch_ingress and cls_bpf)",
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
    fn a_realtime_kernel_is_told_what_it_cannot_do() {
        let feature = not_realtime(true);
        assert_eq!(feature.present, Some(false));
        assert!(feature.note.contains("native XDP"), "{}", feature.note);
        assert_eq!(not_realtime(false).note, "");
    }

    #[test]
    fn an_answer_that_says_nothing_about_the_kernel_is_not_known() {
        let refused = |errno| taken::<()>(Err(io::Error::from_raw_os_error(errno)));
        assert_eq!(taken(Ok(())), Some(true));
        assert_eq!(refused(libc::EINVAL), Some(false));
        assert_eq!(refused(libc::EPERM), None);
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
