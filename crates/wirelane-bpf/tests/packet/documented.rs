//! The list of link types in the documentation matches that of the parser.

use std::collections::BTreeSet;

use wirelane_bpf::layout::{LinkType, tunnel};

#[test]
fn the_documents_say_what_is_parsed() {
    // Included in the program, as other kernels are tested without the source tree.
    let text = include_str!("../../../../docs/reference/protocols.md");
    let (mut listed, mut parsed) = (BTreeSet::new(), 0);
    for line in text.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, number, _, is_parsed @ ("yes" | "no"), why, _] = cells[..] else { continue };
        let Ok(number) = number.parse::<u32>() else { continue };
        assert!(listed.insert(number), "link type {number} is listed twice");
        assert!(!why.is_empty(), "link type {number}: no reason");
        let is_known = LinkType::from_number(number) != LinkType::Other;
        assert_eq!(is_known, is_parsed == "yes", "link type {number}: the parser's side is left");
        parsed += u32::from(is_known);
    }
    let known = (0..400).filter(|number| LinkType::from_number(*number) != LinkType::Other).count();
    assert_eq!(parsed as usize, known, "all that are parsed are listed");
    assert!(listed.len() > 195, "{} link types are listed", listed.len());
    assert_eq!(listed.last(), Some(&302), "the last that is listed");
    assert_eq!(tunnel::NSH, 18, "a kind of tunnel more is a line more in the table of tunnels");
    assert_eq!(text.lines().filter(|line| line.starts_with("| `")).count(), 18);
}
