//! Builds packets from parts: each function returns the bytes of one header followed by its payload.

/// 10.0.0.1, the source of all IPv4 packets here.
pub const A4: [u8; 4] = [10, 0, 0, 1];
/// 10.0.0.2, their destination.
pub const B4: [u8; 4] = [10, 0, 0, 2];

fn join(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

pub fn address6(last: u8) -> [u8; 16] {
    let mut address = [0; 16];
    address[..4].copy_from_slice(&[0x20, 0x01, 0x0d, 0xb8]);
    address[15] = last;
    address
}

pub fn ethernet(ether_type: u16, payload: &[u8]) -> Vec<u8> {
    join(&[&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2], &ether_type.to_be_bytes(), payload])
}

/// A VLAN tag behind an Ethernet header with its EtherType: TCI and the EtherType of the payload.
pub fn tag(tci: u16, ether_type: u16, payload: &[u8]) -> Vec<u8> {
    join(&[&tci.to_be_bytes(), &ether_type.to_be_bytes(), payload])
}

pub fn mpls(label: u32, bottom: bool, payload: &[u8]) -> Vec<u8> {
    join(&[&(label << 12 | u32::from(bottom) << 8 | 64).to_be_bytes(), payload])
}

pub fn pppoe(protocol: u16, payload: &[u8]) -> Vec<u8> {
    let length = payload.len() as u16 + 2;
    join(&[&[0x11, 0, 0, 7], &length.to_be_bytes(), &protocol.to_be_bytes(), payload])
}

/// IPv4 with all variable fields; `fragment` is the flags and offset field.
pub fn ipv4_full(
    proto: u8,
    fragment: u16,
    options: &[u8],
    src: [u8; 4],
    dst: [u8; 4],
    payload: &[u8],
) -> Vec<u8> {
    let header = 20 + options.len();
    let length = (header + payload.len()) as u16;
    join(&[
        &[0x40 | (header / 4) as u8, 0x2e],
        &length.to_be_bytes(),
        &[0xbe, 0xef],
        &fragment.to_be_bytes(),
        &[63, proto, 0, 0],
        &src,
        &dst,
        options,
        payload,
    ])
}

pub fn ipv4(proto: u8, payload: &[u8]) -> Vec<u8> {
    ipv4_full(proto, 0x4000, &[], A4, B4, payload)
}

pub fn ipv6(next: u8, payload: &[u8]) -> Vec<u8> {
    let length = payload.len() as u16;
    join(&[&[0x6b, 0x80, 0, 0], &length.to_be_bytes(), &[next, 62], &address6(1), &address6(2), payload])
}

/// An IPv6 extension header of the common format, of `units` times 8 bytes.
pub fn extension(next: u8, units: usize, payload: &[u8]) -> Vec<u8> {
    let mut header = vec![0; units * 8];
    header[0] = next;
    header[1] = (units - 1) as u8;
    join(&[&header, payload])
}

/// An IPv6 fragment header; `field` is offset and M flag.
pub fn fragment6(next: u8, field: u16, payload: &[u8]) -> Vec<u8> {
    join(&[&[next, 0], &field.to_be_bytes(), &[0xca, 0xfe, 0xba, 0xbe], payload])
}

/// An authentication header with a check value of 12 bytes.
pub fn ah(next: u8, payload: &[u8]) -> Vec<u8> {
    join(&[&[next, 4, 0, 0], &[0; 20], payload])
}

pub fn udp(src: u16, dst: u16, payload: &[u8]) -> Vec<u8> {
    let length = payload.len() as u16 + 8;
    join(&[&src.to_be_bytes(), &dst.to_be_bytes(), &length.to_be_bytes(), &[0, 0], payload])
}

/// TCP with SYN and ACK, sequence number 1, acknowledgement 2, window 3.
pub fn tcp(src: u16, dst: u16, options: &[u8], payload: &[u8]) -> Vec<u8> {
    join(&[
        &src.to_be_bytes(),
        &dst.to_be_bytes(),
        &[0, 0, 0, 1, 0, 0, 0, 2],
        &[(((20 + options.len()) / 4) << 4) as u8, 0x12, 0, 3, 0, 0, 0, 0],
        options,
        payload,
    ])
}

/// GRE with the given flag bits and as many optional words as they announce, each 0x0000002a.
pub fn gre(bits: u16, ether_type: u16, payload: &[u8]) -> Vec<u8> {
    let words = [0x8000, 0x2000, 0x1000].iter().filter(|&&bit| bits & bit != 0).count();
    join(&[&bits.to_be_bytes(), &ether_type.to_be_bytes(), &[0, 0, 0, 42].repeat(words), payload])
}

pub fn vxlan(vni: u32, payload: &[u8]) -> Vec<u8> {
    join(&[&[0x08, 0, 0, 0], &(vni << 8).to_be_bytes(), payload])
}

pub fn geneve(vni: u32, options: &[u8], ether_type: u16, payload: &[u8]) -> Vec<u8> {
    join(&[
        &[(options.len() / 4) as u8, 0],
        &ether_type.to_be_bytes(),
        &(vni << 8).to_be_bytes(),
        options,
        payload,
    ])
}

/// GTP-U version 1 G-PDU; `optional` is everything between the 8 mandatory bytes and the payload.
pub fn gtpu(flags: u8, teid: u32, optional: &[u8], payload: &[u8]) -> Vec<u8> {
    let length = (optional.len() + payload.len()) as u16;
    join(&[&[0x30 | flags, 255], &length.to_be_bytes(), &teid.to_be_bytes(), optional, payload])
}

pub fn arp() -> Vec<u8> {
    join(&[&[0, 1, 8, 0, 6, 4, 0, 1], &[2, 0, 0, 0, 0, 2], &A4, &[0; 6], &B4])
}
