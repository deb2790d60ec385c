//! The kernel's build of the interpreter, and filters as instructions, compared to the native interpreter:
//! `bpf/filter_probe.h`, which includes the capture programs' verdict.h and filter_code.h, run by BPF_PROG_TEST_RUN.
//! The hooks around it are tested with traffic (tests/tests/all/filters_live.rs).

use std::cell::{Cell, RefCell};
use std::mem::MaybeUninit;

use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use libbpf_rs::{ErrorKind, MapCore as _, MapFlags, Object, ObjectBuilder, OpenObject, ProgramInput};
use wirelane_bpf::filter::{MAX_STEPS, MEMORY, Step, op};
use wirelane_bpf::native;
use wirelane_bpf::skel::filter_probe_xdp::{FilterProbeXdpSkel, FilterProbeXdpSkelBuilder};
use wirelane_bpf::skel::{FILTER_PROBE_SKB_OBJECT, FILTER_PROBE_XDP_OBJECT};

use super::super::instructions::{self, Context};
use super::super::{Filter, Origin};
use super::Dice;
use super::generator::{self, Values};
use super::packets::{Capture, captures};
use wirelane_bpf::linktype;

/// Minimum length of an XDP packet for BPF_PROG_TEST_RUN (the kernel's ETH_HLEN).
const SHORTEST: usize = 14;
/// Maximum length; packets of about 3500 bytes and more are in several buffers.
const LONGEST: usize = 9000;
/// Position of a VLAN tag in a packet.
const TAG: std::ops::Range<usize> = 12..16;
/// `struct probe_lane`: the interpreter's memory, the packet's first bytes with their tag, and the inputs of the run.
const RUN: usize = 96;
const HEAD: usize = 24;

/// The program of the filter as instructions.
const CODE: &str = "wl_filter_code_probe";

/// Maximum length of a packet for BPF_PROG_TEST_RUN with a socket buffer.
const LONGEST_SKB: usize = 3400;

struct Probe {
    interpreter: FilterProbeXdpSkel<'static>,
    /// The filter as instructions, for each context; none where it does not fit.
    code: RefCell<Vec<(Context, Object)>>,
    /// Filters that were loaded as instructions, and verdicts of these.
    compiled: Cell<u32>,
    ran: Cell<u64>,
}

/// Loads the filter as instructions, over the maps of the interpreter's probe.
fn load_code(probe: &FilterProbeXdpSkel<'_>, filter: &Filter, context: Context) -> Option<Object> {
    use std::os::fd::AsFd as _;
    let object = match context {
        Context::Xdp => FILTER_PROBE_XDP_OBJECT,
        Context::Skb => FILTER_PROBE_SKB_OBJECT,
    };
    let mut object = object.to_vec();
    if !instructions::put(&mut object, &[(1, filter.steps())], context) {
        return None;
    }
    let mut open = ObjectBuilder::default().open_memory(&object).expect("the embedded BPF object is valid");
    for mut map in open.maps_mut() {
        if map.name() == "probe_lane" {
            map.reuse_fd(probe.maps.probe_lane.as_fd()).unwrap();
        } else {
            map.set_autocreate(map.name() != "probe_filter").unwrap();
        }
    }
    for mut program in open.progs_mut() {
        let wanted = program.name() == CODE;
        program.set_autoload(wanted);
    }
    Some(
        open.load().unwrap_or_else(|error| {
            panic!("{}: {error} ({} steps)", filter.expression(), filter.steps().len())
        }),
    )
}

impl Probe {
    /// Loads the program, or reports that `what` is skipped.
    fn load(what: &str) -> Option<Probe> {
        if std::env::var_os("WIRELANE_UNPRIVILEGED").is_some_and(|value| value == "1") {
            println!("left out: {what} (WIRELANE_UNPRIVILEGED=1: no kernel program is loaded)");
            return None;
        }
        // The object outlives the skeleton; one per test, so it may live as long as the process.
        let object: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
        let open =
            FilterProbeXdpSkelBuilder::default().open(object).expect("the embedded BPF object is valid");
        match open.load() {
            Ok(skel) => Some(Probe {
                interpreter: skel,
                code: RefCell::default(),
                compiled: Cell::default(),
                ran: Cell::default(),
            }),
            Err(error) => panic!(
                "the kernel did not load filter_probe_xdp.bpf.c: {error}. This test needs root (CAP_BPF, CAP_NET_ADMIN, \
                 CAP_PERFMON); set WIRELANE_UNPRIVILEGED=1 to leave it out."
            ),
        }
    }

    /// Sets the steps for the following packets.
    fn use_filter(&self, filter: &Filter) {
        let bytes = filter.encode();
        let load = |context| Some((context, load_code(&self.interpreter, filter, context)?));
        let code: Vec<_> = [Context::Xdp, Context::Skb].into_iter().filter_map(load).collect();
        self.compiled.set(self.compiled.get() + u32::from(code.len() == 2));
        self.code.replace(code);
        self.interpreter
            .maps
            .probe_filter
            .update(&0u32.to_ne_bytes(), &bytes, MapFlags::ANY)
            .expect("the map is writable");
    }

    /// The kernel's verdict on a packet; `tagged`: bytes 12 to 15 are a VLAN tag that is not in the packet's memory.
    fn accepts(&self, packet: &[u8], tagged: bool, outgoing: bool) -> bool {
        let mut lane = [0xa5u8; RUN + HEAD + 8];
        lane[RUN..RUN + HEAD].fill(0);
        let mut data = packet.to_vec();
        if tagged {
            let head = packet.len().min(HEAD);
            lane[RUN..RUN + head].copy_from_slice(&packet[..head]);
            data.drain(TAG);
        }
        lane[RUN + HEAD..RUN + HEAD + 4].copy_from_slice(&u32::from(tagged).to_ne_bytes());
        lane[RUN + HEAD + 4..].copy_from_slice(&u32::from(outgoing).to_ne_bytes());
        self.interpreter
            .maps
            .probe_lane
            .update(&0u32.to_ne_bytes(), &lane, MapFlags::ANY)
            .expect("the map is writable");
        let input = ProgramInput { data_in: Some(&data), ..Default::default() };
        let output = self.interpreter.progs.wl_filter_probe.test_run(input).expect("BPF_PROG_TEST_RUN works");
        let verdict = match output.return_value {
            1 => false, // XDP_DROP
            2 => true,  // XDP_PASS
            other => panic!("the probe returned {other}"),
        };
        for (context, object) in self.code.borrow_mut().iter_mut() {
            if *context == Context::Skb && data.len() > LONGEST_SKB {
                continue;
            }
            let program = object.progs_mut().find(|program| program.name() == CODE).unwrap();
            let input = ProgramInput { data_in: Some(&data), ..Default::default() };
            let found = match program.test_run(input) {
                Ok(output) => output.return_value,
                // As socket buffers, test runs refuse packets with cut IP headers.
                Err(error) if *context == Context::Skb && error.kind() == ErrorKind::InvalidInput => continue,
                Err(error) => panic!("BPF_PROG_TEST_RUN for {context:?}: {error}"),
            };
            self.ran.set(self.ran.get() + 1);
            assert_eq!(
                found,
                if verdict { 2 } else { 1 },
                "instructions for {context:?} and the interpreter differ: {packet:02x?}"
            );
        }
        verdict
    }
}

/// Results of comparing both verdicts.
#[derive(Default)]
struct Tally {
    accepted: u64,
    refused: u64,
    in_pieces: u64,
}

impl Tally {
    fn compare(
        &mut self,
        probe: &Probe,
        steps: &[Step],
        packet: &[u8],
        tagged: bool,
        outgoing: bool,
        what: &str,
    ) {
        let expected = native::filter(steps, packet, packet.len() as u32, outgoing);
        assert_eq!(
            probe.accepts(packet, tagged, outgoing),
            expected,
            "{what}, {} bytes, tagged {tagged}, outgoing {outgoing}: right is native; {:02x?}",
            packet.len(),
            &packet[..packet.len().min(96)]
        );
        *(if expected { &mut self.accepted } else { &mut self.refused }) += 1;
        self.in_pieces += u64::from(packet.len() > 3600);
    }

    fn show(&self, what: &str, probe: &Probe) {
        println!(
            "{what}: {} verdicts of kernel and native are equal ({} accepted, {} refused), {} of packets in several \
             buffers; {} verdicts of {} filters as instructions",
            self.accepted + self.refused,
            self.accepted,
            self.refused,
            self.in_pieces,
            probe.ran.get(),
            probe.compiled.get(),
        );
    }
}

fn filter_of(steps: Vec<Step>) -> Filter {
    Filter { text: "steps".into(), steps }
}

/// Packets that a test run accepts.
fn testable(captures: &[Capture]) -> Vec<&[u8]> {
    captures
        .iter()
        .flat_map(|capture| &capture.packets)
        .filter(|packet| packet.link == linktype::ETHERNET)
        .map(|packet| packet.data.as_slice())
        .filter(|data| (SHORTEST..=LONGEST).contains(&data.len()))
        .collect()
}

#[test]
fn kernel_and_native_agree_on_expressions() {
    let what = "kernel_and_native_agree_on_expressions";
    let Some(captures) = captures(what, 20) else { return };
    let Some(probe) = Probe::load(what) else { return };
    let values = Values::of(&captures);
    let packets = testable(&captures);
    let (mut dice, mut tally, mut longest) = (Dice(3), Tally::default(), 0);
    let mut expressions = 0;
    while expressions < 400 {
        let expression = generator::expression(&mut dice, &values, linktype::ETHERNET);
        let Ok(filter) = Filter::try_of(&expression, linktype::ETHERNET, Origin::Live) else { continue };
        expressions += 1;
        longest = longest.max(filter.steps().len());
        probe.use_filter(&filter);
        for _ in 0..40 {
            let packet = *dice.pick(&packets);
            // A packet without its tag: any packet with a valid tag position.
            let tagged = packet.len() >= TAG.end + SHORTEST && dice.once_in(3);
            let outgoing = dice.once_in(2);
            tally.compare(&probe, filter.steps(), packet, tagged, outgoing, &expression);
        }
    }
    tally.show(&format!("{expressions} expressions, of up to {longest} steps"), &probe);
    assert!(tally.accepted > 2000 && tally.refused > 2000 && longest > 64);
    // Almost all packets are run in both contexts.
    assert!(probe.compiled.get() == expressions && probe.ran.get() > 30_000);
}

/// The direction of a packet is the only input that a file does not have.
#[test]
fn the_kernel_knows_the_direction() {
    let what = "the_kernel_knows_the_direction";
    let Some(probe) = Probe::load(what) else { return };
    let packet = [0u8; 60];
    for (expression, of_outgoing) in [("inbound", false), ("outbound", true), ("not inbound", true)] {
        let filter = Filter::of(expression, linktype::ETHERNET, Origin::Live).unwrap();
        probe.use_filter(&filter);
        for outgoing in [false, true] {
            let expected = outgoing == of_outgoing;
            assert_eq!(filter.accepts(&packet, 60, outgoing), expected, "{expression}");
            assert_eq!(probe.accepts(&packet, false, outgoing), expected, "{expression}");
        }
    }
}

/// Random valid steps: all operations, with loads at all offsets, also across the ends of buffers.
/// Battery: I8
#[test]
fn kernel_and_native_agree_on_any_steps() {
    let what = "kernel_and_native_agree_on_any_steps";
    let Some(probe) = Probe::load(what) else { return };
    let (mut dice, mut tally) = (Dice(5), Tally::default());
    let packets: Vec<Vec<u8>> = [14, 15, 17, 18, 20, 60, 61, 300, 1514, 3500, 3520, 3700, 4096, 7600, 9000]
        .iter()
        .map(|length| (0..*length).map(|_| dice.next() as u8).collect())
        .collect();
    for round in 0..1500 {
        let count = match round % 10 {
            0 => MAX_STEPS,
            1 => 17,
            2 => 18,
            _ => 17 + dice.below(60),
        };
        // As in translated programs: memory is written before it is read.
        let clear = (0..MEMORY).map(|value| Step { op: op::KEEP_A, yes: 1, no: 1, value, ..Step::default() });
        let rest = count - MEMORY as usize;
        let steps: Vec<Step> = clear.chain((0..rest).map(|at| any_step(&mut dice, rest - at))).collect();
        let filter = filter_of(steps);
        probe.use_filter(&filter);
        for _ in 0..8 {
            let packet = dice.pick(&packets);
            let tagged = packet.len() >= TAG.end + SHORTEST && dice.once_in(3);
            let outgoing = dice.once_in(2);
            tally.compare(&probe, filter.steps(), packet, tagged, outgoing, &format!("round {round}"));
        }
    }
    tally.show("any steps", &probe);
    assert!(probe.compiled.get() > 500 && probe.ran.get() > 10_000);
    assert!(tally.accepted > 1000 && tally.refused > 1000 && tally.in_pieces > 1000);
}

/// A step that jumps forward, with `left` steps from this one to the end.
fn any_step(dice: &mut Dice, left: usize) -> Step {
    let on = |dice: &mut Dice| (1 + dice.below(left.min(4))) as u16;
    let mut step = Step {
        op: dice.below(32) as u8, // one more than there are
        with_x: u8::from(dice.once_in(3)),
        size: *dice.pick(&[1, 2, 4]),
        yes: on(dice),
        no: on(dice),
        value: dice.word(),
        ..Step::default()
    };
    // Most steps continue, so that later steps are reached; and most loads are within the packet.
    let ends = [op::REFUSE, op::IF_A, 31];
    if ends.contains(&step.op) || step.op == op::ACCEPT && !dice.once_in(3) {
        step.op = *dice.pick(&[op::ADD, op::XOR, op::GO, op::X_IS_A]);
    }
    if [op::LOAD, op::HEADER].contains(&step.op) && !dice.once_in(20) {
        let below = *dice.pick(&[14, 60, 60, 60, 3600]);
        (step.with_x, step.value) = (0, dice.below(below) as u32);
    }
    if [op::DIVIDE, op::MODULO].contains(&step.op) && !dice.once_in(10) {
        (step.with_x, step.value) = (0, step.value.max(1));
    }
    // Memory at an index is for the interpreter only.
    if [op::A_RECALL, op::X_RECALL, op::KEEP_A].contains(&step.op) && !dice.once_in(50) {
        step.with_x = 0;
    }
    if left == 1 {
        step.op = *dice.pick(&[op::ACCEPT, op::IF_A, op::REFUSE]);
    }
    step
}

/// Every load near the end of a buffer, and of the packet: the bytes are present or not, byte by byte.
#[test]
fn loads_at_the_ends_of_buffers_are_whole() {
    let what = "loads_at_the_ends_of_buffers_are_whole";
    let Some(probe) = Probe::load(what) else { return };
    let mut dice = Dice(11);
    let mut tally = Tally::default();
    let packet: Vec<u8> = (0..8000).map(|_| dice.next() as u8).collect();
    let ends = [14usize, 60, 128, 1514, 3520, 4096 - 256, 7616, 8000];
    for length in ends {
        let packet = &packet[..length];
        for end in ends.iter().filter(|end| **end <= length) {
            for at in end.saturating_sub(6)..end + 3 {
                for size in [1, 2, 4] {
                    // Accepted if the bytes are the packet's own.
                    let mut value = [0; 4];
                    let bytes = packet.get(at..at + usize::from(size)).unwrap_or_default();
                    value[4 - bytes.len()..].copy_from_slice(bytes);
                    let load =
                        Step { op: op::LOAD, size, yes: 1, no: 1, value: at as u32, ..Step::default() };
                    let same = Step {
                        op: op::EQUAL,
                        yes: 1,
                        no: 2,
                        value: u32::from_be_bytes(value),
                        ..Step::default()
                    };
                    let accept = Step { op: op::ACCEPT, yes: 1, no: 1, ..Step::default() };
                    let filter = filter_of(vec![load, same, accept, Step::default()]);
                    probe.use_filter(&filter);
                    let there = !bytes.is_empty();
                    assert_eq!(
                        probe.accepts(packet, false, false),
                        there,
                        "{size} bytes at {at} of {length}"
                    );
                    tally.compare(&probe, filter.steps(), packet, false, false, "a load");
                    if length >= TAG.end + SHORTEST {
                        assert_eq!(
                            probe.accepts(packet, true, false),
                            there,
                            "{size} at {at} of {length}, tagged"
                        );
                    }
                }
            }
        }
    }
    tally.show("loads at ends", &probe);
    assert!(probe.compiled.get() > 100 && probe.ran.get() > 500);
}
