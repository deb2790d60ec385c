//! A captured device does not send anything by itself.

use wirelane_tests::numbers::{capture, column, finish, send};
use wirelane_tests::{End, Lab, require_root};

/// Packets received and transmitted, as the device counts them.
fn counters(lab: &Lab, end: &End) -> (u64, u64) {
    let text = lab.exec(&end.namespace, &["ip", "-s", "-json", "link", "show", &end.device]).unwrap();
    let link: serde_json::Value = serde_json::from_str(&text).unwrap();
    let stats = &link[0]["stats64"];
    (column(&stats["rx"], "packets"), column(&stats["tx"], "packets"))
}

/// From before the start to after the end: no ARP or neighbour discovery for addresses in packets, no look-ups of their
/// names, no report of a promiscuous device's group memberships.
/// Battery: S9
#[test]
fn a_captured_device_transmits_nothing() {
    if !require_root("a_captured_device_transmits_nothing") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("out.pcapng");
    let file = file.to_str().unwrap();
    let lab = Lab::new(2).unwrap();
    let (from, to) = (lab.sender(), lab.receiver());
    let device = ["-i", &to.device, "--json"];
    let record = ["record", "-w", file, "--overwrite"];
    let cases = [
        vec!["count"],
        vec!["count", "--direction", "both"],
        vec!["count", "--hook", "generic"],
        vec!["count", "--hook", "tc", "--exclusive"],
        record.to_vec(),
        [&record[..], &["--direction", "both"]].concat(),
    ];
    for words in cases {
        let before = (counters(&lab, from), counters(&lab, to));
        let child = capture(&lab, &[&words[..], &device].concat()).unwrap();
        // Many addresses, none of which belongs to a host.
        send(&lab, 4096, &["--flows", "4096", "--pattern", "sources"]).unwrap();
        let last = finish(child).unwrap();
        assert_eq!(column(&last, "analysed"), 4096, "{words:?}");
        let after = (counters(&lab, from), counters(&lab, to));
        assert_eq!(
            (after.1.1 - before.1.1, after.0.0 - before.0.0),
            (0, 0),
            "{words:?}: something was sent back"
        );
        assert_eq!((after.0.1 - before.0.1, after.1.0 - before.1.0), (4096, 4096), "{words:?}");
    }
}
