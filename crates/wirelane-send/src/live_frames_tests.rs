use super::super::pattern::{DST, IMIX, Pattern, SRC, Traffic};
use super::super::stamp::{NUMBER_BYTES, Stamp};
use super::*;

/// The program in the kernel and [`Template::write`] in user space generate the same packets, byte by byte.
#[test]
fn kernel_and_user_space_write_the_same_packets() {
    if permitted().is_err() {
        assert!(
            std::env::var_os("WIRELANE_UNPRIVILEGED").is_some(),
            "this test loads a BPF program and needs root; WIRELANE_UNPRIVILEGED=1 leaves it out"
        );
        println!("left out: kernel_and_user_space_write_the_same_packets (no root)");
        return;
    }
    let larger: Vec<u16> = IMIX.iter().map(|size| (*size).max(120)).collect();
    let ipv6 = ["fd00::1".parse().unwrap(), "fd00::2".parse().unwrap()];
    for transport in [Transport::Udp, Transport::Tcp] {
        for pattern in [Pattern::Papers, Pattern::Sources, Pattern::Ports] {
            for (vlans, sizes, stream, [src, dst]) in [
                (vec![], vec![70], None, [SRC.into(), DST.into()]),
                (vec![7], larger.clone(), Some(258), [SRC.into(), DST.into()]),
                (vec![], vec![90], None, ipv6),
                (vec![100, 7], larger.clone(), Some(1), ipv6),
            ] {
                for share in [
                    Share { first: 0, stride: 1, limit: u64::MAX, pps: None },
                    Share { first: 4_294_967_290, stride: 5, limit: u64::MAX, pps: None },
                ] {
                    let traffic = Traffic {
                        sizes: sizes.clone(),
                        transport,
                        pattern,
                        vlans: vlans.clone(),
                        stream,
                        src,
                        dst,
                        flows: 9,
                        ..Traffic::default()
                    };
                    compare(&Template::new(&traffic).unwrap(), share);
                }
            }
        }
    }
}

fn compare(template: &Template, share: Share) {
    const XDP_TX: u32 = 3;
    let mut storage = MaybeUninit::uninit();
    // Without a device to redirect to, the program returns the packet.
    let program = load(&mut storage, 0, template, share).unwrap();
    let mut expected = template.frame.clone();
    let mut made: Vec<u8> = Vec::with_capacity(4096);
    // A page contains data of an earlier packet and its receiver: start from other bytes in all headers.
    let mut stale = template.frame.clone();
    stale[..template.payload + NUMBER_BYTES].fill(0xa5);
    stale[template.payload + NUMBER_BYTES..template.head()].fill(0xa5);
    for step in 0..40 {
        let number = share.first + step * share.stride;
        let before = utc_minus_monotonic().wrapping_add(monotonic_ns());
        assert_eq!(test_run(program.handle().program, &stale, 1, 0, Some(&mut made)).unwrap(), XDP_TX);
        let after = utc_minus_monotonic().wrapping_add(monotonic_ns());
        let sent_ns = Stamp::read(&made[template.payload..]).and_then(|stamp| stamp.sent_ns);
        // The distance of the clocks was read at other moments.
        let slack = 1_000_000;
        assert!(sent_ns.is_none_or(|time| (before - slack..after + slack).contains(&time)), "{sent_ns:?}");
        let (first, flows) = share.flows(template.flows);
        let flow = first + number / share.stride % flows * share.stride;
        let size = template.write(number, flow, sent_ns.unwrap_or(0), &mut expected);
        assert_eq!(made, expected[..size], "packet {number}");
    }
    assert_eq!(program.handle().counts().offered, 40);
}

/// With a rate, the program sends the packets that are due and no more; beyond the limit it sends nothing.
#[test]
fn the_program_holds_rate_and_limit() {
    const XDP_DROP: u32 = 1;
    if permitted().is_err() {
        assert!(
            std::env::var_os("WIRELANE_UNPRIVILEGED").is_some(),
            "this test loads a BPF program and needs root; WIRELANE_UNPRIVILEGED=1 leaves it out"
        );
        println!("left out: the_program_holds_rate_and_limit (no root)");
        return;
    }
    let template = Template::new(&Traffic::default()).unwrap();
    let mut storage = MaybeUninit::uninit();
    let share = Share { first: 0, stride: 1, limit: 5, pps: Some(100.0) };
    let program = load(&mut storage, 0, &template, share).unwrap();
    let start = std::time::Instant::now();
    let mut is_dropped = false;
    while start.elapsed() < std::time::Duration::from_millis(35) {
        is_dropped |= test_run(program.handle().program, &template.frame, 1, 0, None).unwrap() == XDP_DROP;
    }
    // At 0, 10, 20 and 30 ms, and later ones if the machine stalled before the last run; packets that are more than 20 ms
    // late are skipped.
    let due = 1 + start.elapsed().as_millis() as u64 / 10;
    let counts = program.handle().counts();
    assert!(counts.offered + counts.given_up <= due && counts.offered >= 1, "{counts:?}");
    // A stalled machine may have a packet due in each run, all of which are sent then.
    assert!(is_dropped || counts.offered == 5, "{counts:?}");
    // All five in the end, however slow the machine is, and no sixth.
    while program.handle().counts().offered < 5 && start.elapsed() < std::time::Duration::from_secs(20) {
        test_run(program.handle().program, &template.frame, 1, 0, None).unwrap();
    }
    for _ in 0..1000 {
        test_run(program.handle().program, &template.frame, 1, 0, None).unwrap();
    }
    assert_eq!(program.handle().counts().offered, 5);
}
