use super::super::pattern::{IMIX, Pattern, Traffic};
use super::*;

/// The program in the kernel and [`Template::write`] in user space make the same packets, byte by byte.
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
    let larger: Vec<u16> = IMIX.iter().map(|size| (*size).max(70)).collect();
    for transport in [Transport::Udp, Transport::Tcp] {
        for pattern in [Pattern::Papers, Pattern::Sources, Pattern::Ports] {
            for (vlan, sizes) in [(None, vec![70]), (Some(7), larger.clone())] {
                for share in [Share { first: 0, stride: 1 }, Share { first: 4_294_967_290, stride: 5 }] {
                    let traffic = Traffic {
                        sizes: sizes.clone(),
                        transport,
                        pattern,
                        vlan,
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
    // Without a device to redirect to, the program hands the packet back.
    let skel = load(&mut storage, 0, template, share).unwrap();
    let mut expected = template.frame.clone();
    let mut made: Vec<u8> = Vec::with_capacity(4096);
    // A page holds what an earlier packet left in it: start from other bytes in every variable field.
    let mut stale = template.frame.clone();
    template.write(0x5555_aaaa_5555_aaaa, &mut stale);
    for step in 0..40 {
        let number = share.first + step * share.stride;
        let size = template.write(number, &mut expected);
        assert_eq!(run(&skel, &stale, 1, 0, Some(&mut made)).unwrap(), XDP_TX);
        assert_eq!(made, expected[..size], "packet {number}");
    }
}
