//! `bpf/parse_probe.bpf.c`, loaded: the kernel's compilation of the packet functions, run by BPF_PROG_TEST_RUN.

use std::mem::MaybeUninit;
use std::ptr;

use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use libbpf_rs::{MapCore as _, MapFlags, OpenObject, ProgramInput};
use wirelane_bpf::layout::{LinkType, Parsed, RecordHeader};
use wirelane_bpf::native::PARSE_TUNNELS;
use wirelane_bpf::skel::parse_probe::{ParseProbeSkel, ParseProbeSkelBuilder};

/// Minimum length of XDP packets for BPF_PROG_TEST_RUN (the kernel's ETH_HLEN).
pub const SHORTEST: usize = 14;
/// Maximum length of one linear buffer in a page beside headroom and tailroom; the rest of a longer packet would be in
/// fragments, which the parser does not read.
pub const LONGEST: usize = 3400;

/// The kernel's results for one packet (`struct probe_output`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    pub parsed: Parsed,
    pub record: RecordHeader,
    pub outer_hash: u32,
    pub packet_hash: u32,
}

/// The loaded program.
pub struct Probe {
    pub skel: ParseProbeSkel<'static>,
}

impl Probe {
    /// Loads the program. None if the environment has WIRELANE_UNPRIVILEGED=1; otherwise a failure panics with the
    /// reason.
    pub fn load(what: &str) -> Option<Probe> {
        if std::env::var_os("WIRELANE_UNPRIVILEGED").is_some_and(|value| value == "1") {
            println!("left out: {what} (WIRELANE_UNPRIVILEGED=1: no kernel program is loaded)");
            return None;
        }
        // The object must outlive the skeleton; there is one per test, so it is leaked.
        let object: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
        let open = ParseProbeSkelBuilder::default().open(object).expect("the embedded BPF object is valid");
        match open.load() {
            Ok(skel) => Some(Probe { skel }),
            Err(error) => panic!(
                "the kernel did not load parse_probe.bpf.c: {error}. This test needs root (CAP_BPF, \
                 CAP_NET_ADMIN, CAP_PERFMON); set WIRELANE_UNPRIVILEGED=1 to leave it out."
            ),
        }
    }

    /// Parses `data`, which must be of SHORTEST to LONGEST bytes, in the kernel.
    pub fn parse(&self, link: LinkType, data: &[u8], follow_tunnels: bool, seed: u32) -> Found {
        assert!((SHORTEST..=LONGEST).contains(&data.len()), "{} bytes cannot be tested", data.len());
        let options = if follow_tunnels { PARSE_TUNNELS } else { 0 };
        let mut input = [0; 16];
        for (field, value) in input.chunks_exact_mut(4).zip([link as u32, options, seed, 0]) {
            field.copy_from_slice(&value.to_ne_bytes());
        }
        let maps = &self.skel.maps;
        maps.probe_in.update(&0u32.to_ne_bytes(), &input, MapFlags::ANY).expect("the input map is writable");
        let output = self
            .skel
            .progs
            .wl_parse_probe
            .test_run(ProgramInput { data_in: Some(data), ..Default::default() })
            .expect("BPF_PROG_TEST_RUN works");
        assert_eq!(output.return_value, 2, "the probe returns XDP_PASS");
        let bytes = maps
            .probe_out
            .lookup(&0u32.to_ne_bytes(), MapFlags::ANY)
            .expect("the output map is readable")
            .expect("an array has all its entries");
        assert_eq!(bytes.len(), size_of::<Found>(), "Found mirrors struct probe_output");
        // SAFETY: the length is that of Found, whose fields are integers and arrays of integers, so that any bytes are
        // a valid value; the read does not require alignment.
        unsafe { ptr::read_unaligned(bytes.as_ptr().cast()) }
    }
}
