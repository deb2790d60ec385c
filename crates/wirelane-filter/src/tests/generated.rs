//! Generated expressions, and those of libpcap's own tests, over every capture of the corpus: our verdicts equal
//! libpcap's.

use std::ffi::CString;
use std::fs;

use super::super::translate::{Classic, translate};
use super::super::{Filter, Origin, libpcap};
use super::Dice;
use super::generator::{self, Values};
use super::packets::{Capture, captures, corpus};
use wirelane_bpf::linktype;

/// Maximum number of packets used per capture; packets of long captures resemble each other.
const OF_A_CAPTURE: usize = 100;
/// Number of packets of each capture that an expression is evaluated on, different for each expression.
const AT_A_TIME: usize = 3;
/// Number of generated expressions.
const EXPRESSIONS: usize = 2400;
/// Minimum number of expressions that libpcap must compile.
const COMPILED: usize = 2000;

/// The same expression, for us and for libpcap; the error is libpcap's, or states that the expression needs a loop.
fn both(expression: &str, link: u32) -> Result<(Filter, Vec<Classic>), String> {
    let text = CString::new(expression).expect("no zero byte");
    let classic = libpcap::compile(&text, link, Origin::File)?;
    let steps = match translate(&classic, false) {
        Ok(steps) => steps,
        // The only feature of pcap-filter(7) that cannot be translated.
        Err(reason) if reason.contains("takes a loop") && expression.contains("protochain") => {
            return Err(reason);
        }
        Err(reason) => panic!("{expression:?} on link type {link}: {reason}"),
    };
    Ok((Filter { text: expression.to_owned(), steps }, libpcap::oracle::defined(&classic)))
}

/// Results of comparisons.
#[derive(Default)]
struct Tally {
    accepted: u64,
    refused: u64,
    /// Number of expressions that are invalid for the link type of some captures.
    not_for_link: u64,
}

/// Evaluates packets of every capture with an expression, by both implementations.
fn evaluate(expression: &str, turn: usize, captures: &[Capture], tally: &mut Tally) -> bool {
    // There are some thirty link types, so a linear search is sufficient.
    let mut compiled: Vec<(u32, Option<Both>)> = Vec::new();
    for capture in captures {
        let packets = &capture.packets;
        for step in 0..AT_A_TIME.min(packets.len()) {
            let packet = &packets[(turn * AT_A_TIME + step) % packets.len()];
            let known = compiled.iter().position(|(link, _)| *link == packet.link).unwrap_or_else(|| {
                let both = both(expression, packet.link).ok();
                tally.not_for_link += u64::from(both.is_none());
                compiled.push((packet.link, both));
                compiled.len() - 1
            });
            let Some((ours, classic)) = &compiled[known].1 else { continue };
            let expected = libpcap::oracle::accepts(classic, &packet.data, packet.wire_len);
            assert_eq!(
                ours.accepts(&packet.data, packet.wire_len, false),
                expected,
                "{expression:?}, a packet of {} ({} of {} bytes: {:02x?}): right is libpcap",
                capture.name,
                packet.data.len(),
                packet.wire_len,
                &packet.data[..packet.data.len().min(128)]
            );
            if expected { tally.accepted += 1 } else { tally.refused += 1 }
        }
    }
    compiled.iter().any(|(_, both)| both.is_some())
}

/// Our filter, and libpcap's program.
type Both = (Filter, Vec<Classic>);

#[test]
fn verdicts_on_generated_expressions_are_libpcaps() {
    let what = "verdicts_on_generated_expressions_are_libpcaps";
    let Some(captures) = captures(what, OF_A_CAPTURE) else { return };
    let values = Values::of(&captures);
    let mut links: Vec<u32> = captures.iter().flat_map(|c| c.packets.iter().map(|p| p.link)).collect();
    links.sort_unstable();
    links.dedup();
    let mut dice = Dice(0x5eed);
    let (mut tally, mut compiled) = (Tally::default(), 0);
    for turn in 0..EXPRESSIONS {
        // Half of them for Ethernet; the others for each link type of the corpus, in turn.
        let link = if turn % 2 == 0 { linktype::ETHERNET } else { links[turn / 2 % links.len()] };
        let expression = generator::expression(&mut dice, &values, link);
        compiled += usize::from(evaluate(&expression, turn, &captures, &mut tally));
    }
    let Tally { accepted, refused, not_for_link } = tally;
    println!(
        "{compiled} of {EXPRESSIONS} expressions over {} captures and {} link types: {} verdicts equal to libpcap's \
         ({accepted} accepted, {refused} refused); {not_for_link} times an expression is not for a link type",
        captures.len(),
        links.len(),
        accepted + refused
    );
    assert!(compiled >= COMPILED, "the generator makes too many that libpcap does not compile");
    // Otherwise equal verdicts would prove little.
    assert!(accepted * 10 > refused && refused * 10 > accepted);
}

/// The LINKTYPE number of a link type in files (pcap-common.c), by the name used in libpcap's tests.
pub(super) fn link_of_name(name: &str) -> Option<u32> {
    Some(match name {
        "NULL" => 0,
        "EN10MB" => 1,
        "AX25" => 3,
        "IEEE802" => 6,
        "ARCNET" => 7,
        "SLIP" => 8,
        "PPP" => 9,
        "FDDI" => 10,
        "PPP_SERIAL" => 50,
        "PPP_ETHER" => 51,
        "ATM_RFC1483" => 100,
        "RAW" => 101,
        "C_HDLC" => 104,
        "IEEE802_11" => 105,
        "FRELAY" => 107,
        "LOOP" => 108,
        "LINUX_SLL" => 113,
        "LTALK" => 114,
        "PFLOG" => 117,
        "PRISM_HEADER" => 119,
        "IP_OVER_FC" => 122,
        "SUNATM" => 123,
        "IEEE802_11_RADIO" => 127,
        "ARCNET_LINUX" => 129,
        "APPLE_IP_OVER_IEEE1394" => 138,
        "MTP2_WITH_PHDR" => 139,
        "MTP2" => 140,
        "MTP3" => 141,
        "IEEE802_11_RADIO_AVS" => 163,
        "BACNET_MS_TP" => 165,
        "PPP_BSDOS" => 103,
        "PPI" => 192,
        "IPNET" => 226,
        "IPV4" => 228,
        "IPV6" => 229,
        "LINUX_SLL2" => 276,
        _ => return None,
    })
}

/// A table of libpcap's own tests.
pub(super) fn table(what: &str, name: &str) -> Option<Vec<serde_json::Value>> {
    let corpus = corpus(what)?;
    let text = fs::read_to_string(corpus.join("filters").join(name)).expect("the table is readable");
    let table: serde_json::Value = serde_json::from_str(&text).expect("the table is JSON");
    Some(table.as_array().expect("an array").clone())
}

/// Whether the expression contains a name that can be resolved only on the machine of libpcap's tests.
fn has_name(expression: &str) -> bool {
    expression.to_ascii_lowercase().contains("libpcap.test")
}

/// All expressions that libpcap's own tests accept (if this libpcap accepts them), over packets of every capture.
#[test]
fn verdicts_on_libpcaps_own_expressions_are_libpcaps() {
    let what = "verdicts_on_libpcaps_own_expressions_are_libpcaps";
    let Some(table) = table(what, "libpcap-accept.json") else { return };
    let Some(captures) = captures(what, OF_A_CAPTURE) else { return };
    let (mut tally, mut compiled, mut unknown) = (Tally::default(), 0, 0);
    let mut turn = 0;
    for entry in &table {
        let link = entry["DLT"].as_str().map_or(Some(1), link_of_name);
        for alias in entry["aliases"].as_array().into_iter().flatten() {
            let expression = alias.as_str().expect("a text");
            if has_name(expression) {
                continue;
            }
            // For its own link type, which may have no packet in the corpus.
            match link.map(|link| both(expression, link)) {
                Some(Ok(_)) => compiled += 1,
                Some(Err(_)) | None => unknown += 1,
            }
        }
        // Aliases are one program.
        turn += 1;
        let first = entry["aliases"][0].as_str().expect("a text");
        if !has_name(first) {
            evaluate(first, turn, &captures, &mut tally);
        }
    }
    println!(
        "{compiled} expressions, {unknown} that are newer than this libpcap: {} verdicts equal",
        tally.accepted + tally.refused
    );
    assert!(compiled > 500 && tally.accepted > 10_000 && tally.refused > 10_000);
}

/// The results of libpcap's tests for each packet of a capture.
#[test]
fn results_of_libpcaps_own_tests_are_ours() {
    let what = "results_of_libpcaps_own_tests_are_ours";
    let Some(table) = table(what, "libpcap-apply.json") else { return };
    let Some(captures) = captures(what, usize::MAX) else { return };
    let (mut equal, mut changed, mut newer) = (0, 0, 0);
    for entry in &table {
        let name = entry["capture"].as_str().unwrap_or_default();
        let same = |capture: &&Capture| capture.name.trim_end_matches(".gz") == name.trim_end_matches(".gz");
        let capture = captures.iter().find(same).unwrap_or_else(|| panic!("{name} is not in the corpus"));
        let results = entry["results"].as_array().expect("results");
        let expression = entry["expr"].as_str().or(entry["aliases"][0].as_str()).expect("an expression");
        // A protochain is a loop, and a file has no netmask; expressions newer than this libpcap have no result.
        if expression.contains("protochain") || entry.get("netmask").is_some() {
            continue;
        }
        let Ok((ours, classic)) = both(expression, capture.packets[0].link) else {
            newer += 1;
            continue;
        };
        assert!(results.len() <= capture.packets.len(), "{name}");
        for (packet, result) in capture.packets.iter().zip(results) {
            let expected = result.as_u64().expect("a number") != 0;
            // If this libpcap disagrees with the newer one that produced the results, our verdict must equal this
            // one's.
            let here = libpcap::oracle::accepts(&classic, &packet.data, packet.wire_len);
            assert_eq!(ours.accepts(&packet.data, packet.wire_len, false), here, "{expression:?}, {name}");
            if here == expected {
                equal += 1;
            } else {
                println!("{expression:?} over {name}: this libpcap says {here}, the newer one {expected}");
                changed += 1;
            }
        }
    }
    println!(
        "{equal} results are equal, {changed} are other ones in this libpcap, {newer} expressions it does not know"
    );
    assert!(equal > 200 && changed < 10, "{equal} {changed}");
}
