//! `wirelane probe` with measurements from the counters of a user's BPF program: exact, while packets are measured
//! beside them.

use std::fs;
use std::path::Path;

use serde_json::Value;
use wirelane_tests::frames::{ethernet, replay, udp};
use wirelane_tests::numbers::{LIMIT, capture, column, last_of, send, wirelane};
use wirelane_tests::{Child, Lab, LabOptions, program_file, repository, require_root};

/// A multiple of eight, as `plugin_number` decides by the lowest bits of a packet's number.
const PACKETS: u64 = 640;

fn configuration(folder: &Path, place: &str) -> String {
    let object = program_file(folder, "plugin_number").unwrap();
    let path = folder.join(format!("{place}.toml"));
    let text = format!(
        "interval = \"100ms\"\n[[plugin]]\nname = \"number\"\nfile = \"{}\"\n\
         [[measurement]]\nname = \"said\"\nplugin = \"number\"\n\
         [[measurement]]\nname = \"some\"\nplugin = \"number\"\ncounters = [\"bits\", \"matched\"]\n\
         [[measurement]]\nname = \"all\"\nanalysis = \"{place}\"\nvalues = [\"packets\"]\n\
         [[alarm]]\nname = \"low\"\nmeasurement = \"said\"\ncounter = \"lower half\"\nabove = 0\n",
        object.display()
    );
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// A time budget that no plug-in exceeds, even on a busy machine.
const PATIENT: [&str; 2] = ["--plugin-budget", "1000000000"];

fn start(lab: &Lab, config: &str, options: &[&str]) -> Child {
    let device = &lab.receiver().device;
    capture(lab, &[&["probe", config, "-i", device, "--json"], &PATIENT[..], options].concat()).unwrap()
}

/// Counters of a measurement: the sum of its intervals, and its total.
fn counters(lines: &[Value], name: &str) -> [Vec<(String, u64)>; 2] {
    let of = |total: bool| {
        let mut sum = std::collections::BTreeMap::<String, u64>::new();
        for line in lines.iter().filter(|line| line["measurement"] == name && line["total"] == total) {
            let counters = line["rows"][0]["counters"].as_object().unwrap();
            assert_eq!(line["rows"].as_array().unwrap().len(), 1);
            counters
                .iter()
                .for_each(|(name, number)| *sum.entry(name.clone()).or_default() += number.as_u64().unwrap());
        }
        sum.into_iter().collect()
    };
    [of(false), of(true)]
}

fn expected(packets: u64, names: &[&str]) -> Vec<(String, u64)> {
    let of = |name: &&str| {
        let number = match *name {
            "asked" => packets,
            // Expected per eight numbers: lowest three bits 1 to 4 match; below 4; the sum of the bits; 7.
            "matched" | "lower half" => packets / 2,
            "bits" => packets / 8 * 28,
            _ => packets / 8,
        };
        ((*name).to_owned(), number)
    };
    names.iter().map(of).collect()
}

const ALL: [&str; 5] = ["asked", "bits", "counter 7", "lower half", "matched"];

#[test]
fn what_a_plug_in_counts_is_measured_shown_and_alarmed_exactly() {
    if !require_root("what_a_plug_in_counts_is_measured_shown_and_alarmed_exactly") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let lab = Lab::with(&LabOptions { queues: 2, ..LabOptions::default() }).unwrap();
    let user = start(&lab, &configuration(folder.path(), "user"), &["--workers", "2"]);
    let kernel = start(&lab, &configuration(folder.path(), "kernel"), &[]);
    let few = start(&lab, &configuration(folder.path(), "user"), &["-c", "100"]);
    for _ in 0..2 {
        send(&lab, PACKETS, &["--flows", "20"]).unwrap();
    }
    // One probe ends by itself, before all packets have arrived: its counters still add up.
    let few = few.finish(LIMIT).unwrap().json().unwrap();
    let [intervals, total] = counters(&few, "said");
    assert_eq!(intervals, total);
    assert!(total.iter().any(|(name, asked)| name == "asked" && *asked >= 100), "{total:?}");
    for child in [user, kernel] {
        let lines = child.terminate(LIMIT).unwrap().json().unwrap();
        for (name, names) in [("said", &ALL[..]), ("some", &["bits", "matched"])] {
            let expected = expected(2 * PACKETS, names);
            assert_eq!(counters(&lines, name), [expected.clone(), expected], "{name}");
        }
        let of_packets: u64 = lines
            .iter()
            .filter(|line| line["measurement"] == "all" && line["total"] == true)
            .map(|line| column(line, "packets"))
            .sum();
        assert_eq!(of_packets, 2 * PACKETS);
        let raised = lines.iter().filter(|line| line["alarm"] == "low" && line["state"] == "raised");
        let values: Vec<_> =
            raised.map(|line| (line["value_name"].clone(), line["value"].as_f64().unwrap() > 0.0)).collect();
        assert!(
            !values.is_empty() && values.iter().all(|value| *value == ("lower half".into(), true)),
            "{values:?}"
        );
        assert_eq!(column(lines.last().unwrap(), "probed"), 2 * PACKETS);
    }
}

#[test]
fn plug_ins_are_refused_where_they_do_not_run_or_do_not_count_that() {
    if !require_root("plug_ins_are_refused_where_they_do_not_run_or_do_not_count_that") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let lab = Lab::new(1).unwrap();
    let config = configuration(here, "user");
    let file = here.join("in.pcap");
    fs::write(&file, b"").unwrap();
    let other = here.join("other.toml");
    fs::write(&other, fs::read_to_string(&config).unwrap().replace("\"matched\"", "\"metched\"")).unwrap();
    let rules = here.join("rules.toml");
    fs::write(&rules, "[[rule]]\nid = 1\nport = 1\naction = \"none\"\n").unwrap();
    let [file, other, rules] = [&file, &other, &rules].map(|path| path.to_str().unwrap());
    let device = &lab.receiver().device;
    let device = ["-i", device.as_str()];
    for (config, options, status, what) in [
        (config.as_str(), &["-r", file][..], 2, "-r: the configuration has the plug-in 'number'"),
        (&config, &[&device[..], &["--engine", "packet"]].concat(), 2, "only engine 'ring' runs them"),
        (
            &config,
            &[&device[..], &["--rules", rules]].concat(),
            2,
            "has no rule that asks the plug-in 'number'",
        ),
        (
            other,
            &device[..],
            1,
            "asks for 'metched', and the plug-in number counts asked, bits, lower half, matched",
        ),
    ] {
        let words = [&["probe", config, "--json"], options].concat();
        let finished = wirelane(&lab, &lab.receiver().namespace, &words).unwrap().finish(LIMIT).unwrap();
        assert_eq!(finished.status.code(), Some(status), "{options:?}: {}", finished.stderr);
        assert!(finished.stderr.contains(what), "{options:?}: {}", finished.stderr);
        assert!(last_of(&finished).is_err());
    }
}

/// A plug-in runs for every packet, whether the packet is delivered to user space or added to a flow in the kernel.
#[test]
fn plug_ins_are_asked_beside_packets_that_come_up() {
    if !require_root("plug_ins_are_asked_beside_packets_that_come_up") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let lab = Lab::new(1).unwrap();
    let path = configuration(folder.path(), "kernel");
    let text = fs::read_to_string(&path).unwrap();
    let children = [("udp", PACKETS), ("tcp", 0)].map(|(protocol, come_up)| {
        let beside = format!(
            "[[rule]]\nname = \"these\"\nprotocol = \"{protocol}\"\n\
             [[measurement]]\nname = \"these\"\nrule = \"these\"\nvalues = [\"packets\", \"lengths\"]\n"
        );
        let path = folder.path().join(format!("{protocol}.toml"));
        fs::write(&path, text.clone() + &beside).unwrap();
        (start(&lab, path.to_str().unwrap(), &[]), come_up)
    });
    send(&lab, PACKETS, &["--flows", "20"]).unwrap();
    for (child, come_up) in children {
        let lines = child.terminate(LIMIT).unwrap().json().unwrap();
        let expected = expected(PACKETS, &ALL);
        assert_eq!(counters(&lines, "said"), [expected.clone(), expected]);
        let last = lines.last().unwrap();
        assert_eq!((column(last, "delivered"), column(last, "absorbed")), (come_up, PACKETS - come_up));
        assert_eq!(column(last, "probed"), PACKETS);
        let packets = |name: &str| -> u64 {
            let of = lines.iter().filter(|line| line["measurement"] == name && line["total"] == true);
            of.map(|line| column(line, "packets")).sum()
        };
        assert_eq!((packets("all"), packets("these")), (PACKETS, come_up));
    }
}

/// The example and its configuration, with matching traffic: numbers, alarm, and rows of a store.
#[test]
fn the_example_is_measured_and_stored() {
    if !require_root("the_example_is_measured_and_stored") {
        return;
    }
    const TIMES: u64 = 60;
    let folder = tempfile::tempdir().unwrap();
    let object = program_file(folder.path(), "dns").unwrap();
    let text = fs::read_to_string(repository().join("examples/plugins/dns-probe.toml")).unwrap();
    let config = folder.path().join("probe.toml");
    let file = format!("file = \"{}\"", object.display());
    fs::write(&config, text.replace("file = \"dns.bpf.o\"", &file)).unwrap();
    let store = folder.path().join("store");
    let [config, store] = [&config, &store].map(|path| path.to_str().unwrap());
    let message = |flags: u16, kind: u16| {
        let mut bytes: Vec<u8> = [7, flags, 1, 0, 0, 0].into_iter().flat_map(u16::to_be_bytes).collect();
        bytes.extend(b"\x07example\x00");
        bytes.extend([kind, 1].into_iter().flat_map(u16::to_be_bytes));
        bytes
    };
    let (client, server) = ([192, 168, 0, 1], [192, 168, 0, 53]);
    let frames = [
        udp(client, server, (40_000, 53), &message(0x0100, 1)),
        udp(client, server, (40_000, 53), &message(0x0100, 16)),
        udp(server, client, (53, 40_000), &message(0x8180, 16)),
        udp(client, server, (40_000, 54), &message(0x0100, 16)),
    ]
    .map(|packet| ethernet(0x0800, &packet));
    let lab = Lab::new(1).unwrap();
    let child = start(&lab, config, &["--store", store]);
    replay(&lab, folder.path(), &frames, TIMES).unwrap();
    let finished = child.terminate(LIMIT).unwrap();
    let lines = finished.json().unwrap();
    // A query for an address, one for text, which matches, and an answer.
    let expected: Vec<(String, u64)> = [("answers", TIMES), ("matched", TIMES), ("queries", 2 * TIMES)]
        .map(|(name, number)| (name.to_owned(), number))
        .into();
    assert_eq!(counters(&lines, "dns"), [expected.clone(), expected]);
    assert!(lines.iter().any(|line| line["alarm"] == "dns-tunnels" && line["state"] == "raised"));
    assert!(finished.stderr.contains("alarm dns-tunnels raised: matched"), "{}", finished.stderr);
    let question = "SELECT item, sum(packets) AS sum FROM measurements WHERE list = 'counters' GROUP BY item ORDER BY item";
    let words = ["query", "--store", store, "--json", question];
    let asked = wirelane(&lab, &lab.receiver().namespace, &words).unwrap().finish(LIMIT).unwrap();
    let rows: Vec<(String, u64)> = asked
        .json()
        .unwrap()
        .iter()
        .filter(|row| row.get("item").is_some())
        .map(|row| (row["item"].as_str().unwrap().to_owned(), column(row, "sum")))
        .collect();
    assert_eq!(
        rows,
        [("answers".to_owned(), TIMES), ("matched".to_owned(), TIMES), ("queries".to_owned(), 2 * TIMES)]
    );
}
