//! `wirelane probe --print-config`: the printed file is accepted, and a monitor that runs it has the results of the command.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use wirelane_tests::numbers::{LIMIT, capture, column, last_of, send};
use wirelane_tests::recordings::{NOON_NS, packet, write_header, write_packet};
use wirelane_tests::{Lab, frames, program_file, require_root, wirelane_binary};

fn run(folder: &Path, words: &[&str]) -> Output {
    Command::new(wirelane_binary().unwrap()).current_dir(folder).args(words).output().unwrap()
}

/// The standard output of a command that succeeds.
fn done(folder: &Path, words: &[&str]) -> String {
    let output = run(folder, words);
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Rows of a store, as JSON.
fn rows(folder: &Path, store: &str, sql: &str) -> Vec<Value> {
    let text = done(folder, &["query", sql, "--json", "--store", store]);
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Prints the file of a command, and checks it.
fn printed(folder: &Path, words: &[&str]) -> String {
    let text = done(folder, &[words, &["--print-config"]].concat());
    fs::write(folder.join("site.toml"), &text).unwrap();
    done(folder, &["check", "site.toml"]);
    text
}

/// Measurements and alarms that are stored are equal, row by row, where `[capture]` of the probe's file names input and filter.
#[test]
fn a_printed_probe_stores_what_the_command_stores() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let mut traffic = fs::File::create(here.join("in.pcap")).unwrap();
    write_header(&mut traffic).unwrap();
    for number in 0_u64..60 {
        let datagram = frames::udp([10, 0, 0, 1], [10, 0, 0, 2], (1, 2), &number.to_be_bytes());
        let frame = match number % 2 {
            0 => frames::ethernet(0x0800, &datagram),
            // Noise that the filter rejects.
            _ => packet(number, 100),
        };
        write_packet(&mut traffic, NOON_NS + number * number * 1_000_000, &frame).unwrap();
    }
    drop(traffic);
    let config = "[capture]\nread = \"in.pcap\"\nfilter = \"udp\"\nworkers = 2\nengine = \"ring\"\n\
        [[measurement]]\nname = \"all\"\nvalues = [\"packets\", \"bytes\"]\n\
        [[measurement]]\nname = \"ports\"\nkey = [\"src\", \"dst-port\"]\nvalues = [\"packets\"]\n\
        [[alarm]]\nname = \"many\"\nmeasurement = \"all\"\nvalue = \"packets\"\nabove = 5\n";
    fs::write(here.join("p.toml"), config).unwrap();
    done(here, &["probe", "p.toml", "--store", "alone", "--quiet"]);
    let text = printed(here, &["probe", "p.toml", "--store", "shared", "--quiet"]);
    assert_eq!(
        text,
        "# Configuration of 'wirelane monitor' with the options of 'wirelane probe'.\n\n[capture]\nread = \"in.pcap\"\n\
         engine = \"auto\"\nworkers = 1\nfilter = \"udp\"\n\n[probe]\nconfig = \"p.toml\"\n\n[store]\nfolder = \"shared\"\n"
    );
    done(here, &["monitor", "site.toml"]);
    for (table, least) in [("measurements", 8), ("alarms", 1)] {
        let sql = format!("SELECT * FROM {table}");
        let [mut alone, mut shared] = ["alone", "shared"]
            .map(|store| rows(here, store, &sql).iter().map(Value::to_string).collect::<Vec<_>>());
        alone.sort();
        shared.sort();
        assert!(alone.len() >= least, "{table}: {alone:#?}");
        assert_eq!(shared, alone, "{table}");
    }
    // Options take precedence over the file's [capture], here and there.
    let text = printed(here, &["probe", "p.toml", "-i", "eth7", "--workers", "3", "tcp", "port", "80"]);
    for line in ["interface = \"eth7\"", "engine = \"ring\"", "workers = 3", "filter = \"tcp port 80\""] {
        assert_eq!(text.matches(line).count(), 1, "{line}\n{text}");
    }
    let text = printed(here, &["probe", "--ready", "bandwidth", "-i", "eth7", "udp", "port", "53"]);
    assert!(text.contains("filter = \"udp port 53\"\n\n[probe]\nready = \"bandwidth\"\n"), "{text}");
    let text = printed(here, &["record", "-i", "eth7", "-w", "x.pcap", "-C", "5"]);
    assert!(text.contains("rotate-size = \"5MB\"\n"), "{text}");
}

/// What is refused names its place: a filter that the monitor's file does not repeat, what the kernel does beside other sections,
/// and a configuration on standard input.
#[test]
fn what_a_monitor_cannot_take_from_a_probe_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let measured = "[[measurement]]\nname = \"all\"\nvalues = [\"packets\"]\n";
    fs::write(here.join("filtered.toml"), format!("[capture]\nfilter = \"udp\"\n{measured}")).unwrap();
    fs::write(here.join("kernel.toml"), format!("{measured}analysis = \"kernel\"\n")).unwrap();
    fs::write(here.join("auto.toml"), format!("{measured}analysis = \"auto\"\n")).unwrap();
    for (probe, others, expected) in [
        ("config = \"filtered.toml\"", "", Some("site.toml:4:10: config: [capture] has filter")),
        ("config = \"kernel.toml\"", "", None),
        (
            "config = \"kernel.toml\"",
            "[flows]\n",
            Some("site.toml:4:10: config: kernel.toml: analysis = \"kernel\""),
        ),
        ("config = \"auto.toml\"", "[flows]\n", None),
        ("ready = \"bandwidth\"", "[flows]\n", None),
        ("ready = \"nothing\"", "", Some("site.toml:4:9: ready: there are arp-spoofing, bandwidth")),
        ("config = \"auto.toml\"\ncache-entries = 128", "[flows]\n", Some("site.toml:5:17: cache-entries: ")),
    ] {
        let text = format!("[capture]\ninterface = \"eth7\"\n[probe]\n{probe}\n{others}");
        fs::write(here.join("site.toml"), &text).unwrap();
        let output = run(here, &["check", "site.toml"]);
        let errors = String::from_utf8(output.stderr).unwrap();
        match expected {
            None => assert!(output.status.success(), "{text}\n{errors}"),
            Some(expected) => {
                assert!(output.status.code() == Some(2) && errors.contains(expected), "{text}\n{errors}");
            }
        }
    }
    let output = run(here, &["probe", "-", "-i", "eth7", "--print-config"]);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && errors.contains("reads no standard input"), "{errors}");
}

/// Both at once on one device: measurements in the kernel, and counters of a plug-in.
#[test]
fn a_printed_probe_measures_in_the_kernel_and_by_plug_ins() {
    if !require_root("a_printed_probe_measures_in_the_kernel_and_by_plug_ins") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let lab = Lab::new(1).unwrap();
    let device = lab.receiver().device.as_str();
    let object = program_file(here, "plugin_number").unwrap();
    let config = here.join("p.toml");
    let text = format!(
        "interval = \"100ms\"\n[[plugin]]\nname = \"number\"\nfile = \"{}\"\n\
         [[measurement]]\nname = \"said\"\nplugin = \"number\"\n\
         [[measurement]]\nname = \"all\"\nanalysis = \"kernel\"\nvalues = [\"packets\", \"bytes\"]\n\
         [[measurement]]\nname = \"sources\"\nanalysis = \"kernel\"\nkey = [\"src\"]\nvalues = [\"packets\"]\n",
        object.display()
    );
    fs::write(&config, text).unwrap();
    let config = config.to_str().unwrap();
    let stores = ["alone", "shared"].map(|name| here.join(name).display().to_string());
    // A time budget that the plug-in does not exceed, even on a busy machine, and rights to write to the folder.
    let common = ["-i", device, "--cache-entries", "512", "--plugin-budget", "1000000000", "--keep-rights"];
    let words = |store| [&["probe", config], &common[..], &["--store", store, "--quiet", "--json"]].concat();
    printed(here, &words(&stores[1]));
    let site = here.join("site.toml");
    let alone = capture(&lab, &words(&stores[0])).unwrap();
    let shared = capture(&lab, &["monitor", site.to_str().unwrap(), "--json"]).unwrap();
    send(&lab, 1000, &["--flows", "20"]).unwrap();
    let [alone, shared] = [alone, shared].map(|child| last_of(&child.terminate(LIMIT).unwrap()).unwrap());
    let probed = &shared["analyses"]["probe"];
    for name in ["probed", "probed_bytes"] {
        assert_eq!(column(probed, name), column(&alone, name), "{name}: {shared}\n{alone}");
    }
    for name in ["seen", "absorbed", "delivered", "lost"] {
        assert_eq!(column(&shared, name), column(&alone, name), "{name}: {shared}\n{alone}");
    }
    assert_eq!((column(&shared, "absorbed"), column(&shared, "delivered")), (1000, 0), "{shared}");
    assert_eq!(shared["rules"], alone["rules"], "{shared}\n{alone}");
    // Intervals begin at different times: the sums are compared.
    let sql = "SELECT measurement, kind, key, sum(packets) AS p, sum(bytes) AS b FROM measurements GROUP BY 1, 2, 3 ORDER BY 1, 2, 3";
    let [alone, shared] = [0, 1].map(|store: usize| rows(here, &stores[store], sql));
    assert!(alone.iter().any(|row| row["measurement"] == "all" && column(row, "p") == 1000), "{alone:#?}");
    assert_eq!(shared, alone);
}
