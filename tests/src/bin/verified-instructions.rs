//! Loads every kernel program in every configuration that the verifier sees differently, and prints how many
//! instructions the verifier walked: one line each of object/program, configuration and number, separated by tabs. The
//! number is `-` if this kernel is too old for the program. Any other load failure ends the run with the verifier's
//! message. Needs root. `scripts/test-kernels` compares the lines with the recorded ones.
//!
//! With arguments it loads the programs of these object files instead, as they are: `scripts/check-arm64`.
//!
//! Read-only data is set before the load and the verifier removes the branches that it rules out, so the
//! default configuration alone would say little about what users load.

use std::ffi::OsStr;
use std::mem::MaybeUninit;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use libbpf_rs::libbpf_sys as sys;
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{ObjectBuilder, OpenObject, PrintLevel, Program};
use wirelane_bpf::instance::features::{
    ALL, FILTERS, FLOWS, GROUPS, HTTP, RULES, SLOTS, STREAMS, are_simple,
};
use wirelane_bpf::instance::{PROGRAM_EGRESS_MANY, PROGRAM_INGRESS_MANY};
use wirelane_bpf::layout::LinkType;
use wirelane_bpf::skel::capture_skb::CaptureSkbSkelBuilder;
use wirelane_bpf::skel::capture_skb_simple::CaptureSkbSimpleSkelBuilder;
use wirelane_bpf::skel::capture_xdp::CaptureXdpSkelBuilder;
use wirelane_bpf::skel::capture_xdp_simple::CaptureXdpSimpleSkelBuilder;
use wirelane_bpf::skel::clsact::ClsactSkelBuilder;
use wirelane_bpf::skel::filter_probe_skb::FilterProbeSkbSkelBuilder;
use wirelane_bpf::skel::filter_probe_xdp::FilterProbeXdpSkelBuilder;
use wirelane_bpf::skel::generate::GenerateSkelBuilder;
use wirelane_bpf::skel::parse_probe::ParseProbeSkelBuilder;
use wirelane_bpf::skel::rtp_probe::RtpProbeSkelBuilder;
use wirelane_bpf::skel::rule_change::RuleChangeSkelBuilder;
use wirelane_bpf::skel::rules_probe::RulesProbeSkelBuilder;
use wirelane_bpf::skel::xsk::XskSkelBuilder;
use wirelane_tests::{Lab, kernel_version, require_root};

/// Queues of the capture programs' device, or CPUs where lanes are CPUs; more would only scale indices.
const LANES: u32 = 4;
/// Programs that are also loaded with slots for users' programs: those that are not bound to a device
/// (`crates/wirelane-bpf/bpf/prog_padding.h`).
const STEERED: [&str; 2] = ["wirelane_xdp", "wirelane_in"];
/// Sets of features that captures ask for. All programs are loaded without any.
const FEATURES: [(&str, u32); 7] = [
    ("plain", 0),
    ("groups", GROUPS),
    ("filters", FILTERS),
    ("filters rules", FILTERS | RULES),
    ("filters rules streams", FILTERS | RULES | STREAMS),
    ("flows", FLOWS),
    ("http", HTTP),
];
/// The program that is bound to a device, to ask for the VLAN tag that the card stripped.
const BOUND: &str = "wirelane_xdp_md";
/// First kernel whose drivers implement that kfunc (`bpf_xdp_metadata_rx_vlan_tag`).
const VLAN_METADATA: (u32, u32) = (6, 8);

fn main() -> Result<()> {
    if !require_root("verified-instructions") {
        bail!("loading kernel programs needs root");
    }
    // libbpf prints the verifier's log of a refused program as a warning; messages of lower levels are not of use here.
    libbpf_rs::set_print(Some((PrintLevel::Warn, |_, message| eprint_line(&message))));
    let files: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    if files.is_empty() {
        capture()?;
        clsact()?;
        generate()?;
        parse_probe()?;
        filter_probe()?;
        rules_probe()?;
        rtp_probe()?;
        rule_change()?;
        xsk()
    } else {
        files.iter().try_for_each(|file| object_file(file))
    }
}

#[expect(clippy::print_stderr, reason = "a program for developers: standard error is where its errors go")]
fn eprint_line(message: &str) {
    eprintln!("{}", message.trim_end());
}

/// Loads one program of an object, by name, after `set` has configured it, and prints its line.
fn measure<'object, B: SkelBuilder<'object>>(
    builder: B,
    storage: &'object mut MaybeUninit<OpenObject>,
    (object, program): (&str, &str),
    configuration: &str,
    set: impl FnOnce(&mut B::Output) -> Result<()>,
) -> Result<()> {
    let mut open = builder.open(storage).with_context(|| format!("opening {object}"))?;
    for mut each in open.open_object_mut().progs_mut() {
        let wanted = each.name() == OsStr::new(program);
        each.set_autoload(wanted);
    }
    set(&mut open)?;
    let skel = open.load().with_context(|| format!("loading {object}/{program} ({configuration})"))?;
    let Some(loaded) = skel.object().progs().find(|each| each.name() == OsStr::new(program)) else {
        bail!("{object} has no program {program}");
    };
    println!("{object}/{program}\t{configuration}\t{}", walked(&loaded)?);
    Ok(())
}

/// Instructions that the verifier walked: `verified_insns` of bpf_prog_info (include/uapi/linux/bpf.h, since
/// Linux 5.16).
fn walked(loaded: &Program<'_>) -> Result<u32> {
    let id = Program::id_from_fd(loaded.as_fd()).context("asking for a program's id")?;
    libbpf_rs::query::ProgInfoIter::default()
        .find(|info| info.id == id)
        .map(|info| info.verified_insns)
        .context("the kernel does not list a program that it has just loaded")
}

/// Loads each program of an object file, with the read-only data that the file has.
fn object_file(file: &Path) -> Result<()> {
    let open =
        || ObjectBuilder::default().open_file(file).with_context(|| format!("opening {}", file.display()));
    let names: Vec<_> = open()?.progs().map(|program| program.name().to_owned()).collect();
    // The device-bound program can only be loaded for a device that offers the metadata.
    for name in names.iter().filter(|name| *name != BOUND) {
        let mut open = open()?;
        for mut each in open.progs_mut() {
            let wanted = each.name() == name;
            each.set_autoload(wanted);
        }
        let doing = || format!("loading {} of {}", name.display(), file.display());
        let object = open.load().with_context(doing)?;
        let loaded = object.progs().find(|each| each.name() == name).with_context(doing)?;
        println!("{}\t{}\t{}", file.display(), name.display(), walked(&loaded)?);
    }
    Ok(())
}

fn capture() -> Result<()> {
    let links = [("ethernet", LinkType::Ethernet), ("raw-ip", LinkType::Raw)];
    let programs = [
        ("wirelane_xdp", [0, 1].as_slice()),
        (BOUND, &[0]),
        ("wirelane_in", &[1]),
        ("wirelane_out", &[1]),
        (PROGRAM_INGRESS_MANY, &[1]),
        (PROGRAM_EGRESS_MANY, &[1]),
    ];
    // The kfunc of wirelane_xdp_md is resolved in the driver of the device that the program is bound to.
    let lab = Lab::new(LANES)?;
    let receiver = lab.receiver();
    let path = format!("/sys/class/net/{}/ifindex", receiver.device);
    let ifindex: u32 = lab.exec(&receiver.namespace, &["cat", &path])?.trim().parse().context(path)?;
    lab.enter(&receiver.namespace, || -> Result<()> {
        for (program, per_cpu) in programs {
            // Without slots, with slots for steering programs, and with slots for plug-ins too.
            let steered = [(1, links[0], 1, 0, ALL), (1, links[0], 1, 1, ALL)];
            // With some of the features only.
            let featured = FEATURES.map(|(_, features)| (per_cpu[0], links[0], 0, 0, features));
            let few = steered.into_iter().chain(featured);
            let few = few.filter(|of| STEERED.contains(&program) || are_simple(of.4));
            let configurations =
                per_cpu.iter().flat_map(|per_cpu| links.map(|link| (*per_cpu, link, 0, 0, ALL))).chain(few);
            for (per_cpu, (link_name, link), programs, plugins, features) in configurations {
                let lanes = if per_cpu == 1 { "lane-per-cpu" } else { "lane-per-queue" };
                let steering = if programs == 1 { " steering-programs" } else { "" };
                let plugged = if plugins == 1 { " plug-ins" } else { "" };
                let some = FEATURES.iter().find(|(_, set)| *set == features);
                let some = some.map(|(name, _)| format!(" {name}")).unwrap_or_default();
                let configuration = format!("{lanes} {link_name}{steering}{plugged}{some}");
                let bound = program == BOUND;
                if bound && kernel_version()? < VLAN_METADATA {
                    println!("capture_xdp/{program}\t{configuration}\t-");
                    continue;
                }
                let is_many = [PROGRAM_INGRESS_MANY, PROGRAM_EGRESS_MANY].contains(&program);
                // The objects of the two kinds of contexts have the same configuration, by different types.
                macro_rules! measure_capture {
                    ($builder:ident, $object:literal, $bind:expr) => {
                        measure(
                            $builder::default(),
                            &mut MaybeUninit::uninit(),
                            ($object, program),
                            &configuration,
                            |open| {
                                let rodata = open.maps.rodata_data.as_deref_mut();
                                let config = &mut rodata.context("no read-only data")?.wl_config;
                                config.lanes = LANES;
                                config.queues = LANES;
                                config.per_cpu = per_cpu;
                                config.link = link as u32;
                                config.programs = programs;
                                config.plugins = plugins;
                                config.features = features | if is_many { SLOTS } else { 0 };
                                $bind(open.open_object_mut());
                                Ok(())
                            },
                        )
                    };
                }
                if program.starts_with("wirelane_xdp") {
                    let bind = |object: &mut OpenObject| {
                        for mut each in object.progs_mut().filter(|each| bound && each.name() == BOUND) {
                            each.set_ifindex(ifindex);
                            each.set_flags(sys::BPF_F_XDP_DEV_BOUND_ONLY | sys::BPF_F_XDP_HAS_FRAGS);
                        }
                    };
                    if are_simple(features) {
                        measure_capture!(CaptureXdpSimpleSkelBuilder, "capture_xdp_simple", bind)?;
                    } else {
                        measure_capture!(CaptureXdpSkelBuilder, "capture_xdp", bind)?;
                    }
                } else if are_simple(features) {
                    measure_capture!(
                        CaptureSkbSimpleSkelBuilder,
                        "capture_skb_simple",
                        |_: &mut OpenObject| ()
                    )?;
                } else {
                    measure_capture!(CaptureSkbSkelBuilder, "capture_skb", |_: &mut OpenObject| ())?;
                }
            }
        }
        Ok(())
    })?
}

fn clsact() -> Result<()> {
    let program = ("clsact", "wirelane_clsact");
    measure(ClsactSkelBuilder::default(), &mut MaybeUninit::uninit(), program, "-", |_| Ok(()))
}

/// Offsets as `wirelane send` sets them for Ethernet, with a VLAN tag in the larger of the two.
fn generate() -> Result<()> {
    for (configuration, tcp, vlan, sizes, gap) in
        [("udp full-speed", 0, 0, 1, 0), ("tcp vlan imix paced", 1, 4, 48, 4096)]
    {
        measure(
            GenerateSkelBuilder::default(),
            &mut MaybeUninit::uninit(),
            ("generate", "wl_generate"),
            configuration,
            |open| {
                let config = &mut open.maps.rodata_data.as_deref_mut().context("no read-only data")?.config;
                config.ifindex = 1;
                config.l3 = 14 + vlan;
                config.l4 = config.l3 + 20;
                config.payload = config.l4 + if tcp == 1 { 20 } else { 8 };
                config.rotating = config.l3 + 16;
                config.flows = 4096;
                config.tcp = tcp;
                config.largest = 1514;
                config.sizes_count = sizes;
                config.stride = 1;
                config.limit = 1;
                config.gap = gap;
                config.header_words = (config.payload + 4).div_ceil(8);
                Ok(())
            },
        )?;
    }
    Ok(())
}

fn parse_probe() -> Result<()> {
    for program in ["wl_parse_probe", "wl_parse_cost", "wl_empty_cost"] {
        measure(
            ParseProbeSkelBuilder::default(),
            &mut MaybeUninit::uninit(),
            ("parse_probe", program),
            "-",
            |_| Ok(()),
        )?;
    }
    Ok(())
}

fn filter_probe() -> Result<()> {
    let program = ("filter_probe_xdp", "wl_filter_probe");
    measure(FilterProbeXdpSkelBuilder::default(), &mut MaybeUninit::uninit(), program, "-", |_| Ok(()))?;
    let program = ("filter_probe_skb", "wl_filter_probe");
    measure(FilterProbeSkbSkelBuilder::default(), &mut MaybeUninit::uninit(), program, "-", |_| Ok(()))
}

fn rtp_probe() -> Result<()> {
    for program in ["wl_rtp_probe", "wl_rtp_read_probe"] {
        measure(
            RtpProbeSkelBuilder::default(),
            &mut MaybeUninit::uninit(),
            ("rtp_probe", program),
            "-",
            |_| Ok(()),
        )?;
    }
    Ok(())
}

fn rule_change() -> Result<()> {
    let program = ("rule_change", "wirelane_rule_change");
    measure(RuleChangeSkelBuilder::default(), &mut MaybeUninit::uninit(), program, "-", |_| Ok(()))
}

fn rules_probe() -> Result<()> {
    for program in ["wl_rules_probe", "wl_rules_cost"] {
        measure(
            RulesProbeSkelBuilder::default(),
            &mut MaybeUninit::uninit(),
            ("rules_probe", program),
            "-",
            |_| Ok(()),
        )?;
    }
    Ok(())
}

/// With all options that engine xsk can request, and with the fewest.
fn xsk() -> Result<()> {
    for (configuration, multi_buffer, stamp) in [("several-buffers stamped", 1, 1), ("one-buffer", 0, 0)] {
        measure(
            XskSkelBuilder::default(),
            &mut MaybeUninit::uninit(),
            ("xsk", "wirelane_xsk"),
            configuration,
            |open| {
                let rodata = open.maps.rodata_data.as_deref_mut().context("no read-only data")?;
                rodata.wl_xsk_config.multi_buffer = multi_buffer;
                rodata.wl_xsk_config.stamp = stamp;
                Ok(())
            },
        )?;
    }
    Ok(())
}
