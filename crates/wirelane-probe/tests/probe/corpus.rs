//! Every capture of the corpus: sums match the packets that were read, and estimates are within their stated error.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use wirelane::{FileOptions, FileSource};

use crate::traffic::*;

pub fn captures(test: &str) -> Option<Vec<PathBuf>> {
    let folder = std::env::var_os("WIRELANE_CORPUS")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/corpus"), PathBuf::from);
    let Ok(manifest) = std::fs::read_to_string(folder.join("MANIFEST.tsv")) else {
        println!("left out: {test} (no corpus)");
        return None;
    };
    let path = |line: &str| folder.join(line.split('\t').nth(1).expect("the second column is the path"));
    Some(manifest.lines().skip(1).map(path).collect())
}

const TEXT: &str = "interval = \"1day\"\n[[measurement]]\nname = \"all\"\n\
    values = [\"packets\", \"bytes\", \"distinct-src\", \"distinct-dst\", \"top-src\"]\n\
    [[measurement]]\nname = \"pairs\"\nkey = [\"pair\"]\nkeys = 100\nvalues = [\"packets\", \"one-way\"]\n";

/// Battery: I10
#[test]
fn captures_of_the_corpus_come_to_what_was_read() {
    let Some(captures) = captures("captures_of_the_corpus_come_to_what_was_read") else { return };
    let (mut files, mut worst) = (0, 0.0f64);
    for path in captures {
        let (mut sources, mut bytes, mut from) = (HashSet::new(), 0u64, std::collections::HashMap::new());
        let Ok(mut source) = FileSource::open(&path, FileOptions::as_written()) else { continue };
        while let Ok(Some(batch)) = source.next_batch(Duration::ZERO) {
            for record in batch {
                bytes += u64::from(record.wire_len());
                let parsed = wirelane_bpf::native::parse(record.link_type(), record.data(), false).outer;
                if parsed.l3 != 0 {
                    // Like keys: ARP and IPv4 share their addresses.
                    let address = (parsed.l3 == 6, parsed.src);
                    sources.insert(address);
                    *from.entry(address).or_insert(0u64) += 1;
                }
            }
        }
        let said = probe_files(config(TEXT), std::slice::from_ref(&path), 2, |_, _| {});
        assert_eq!(said.totals.bytes, bytes, "{}", path.display());
        for name in ["all", "pairs"] {
            let of = |total: bool| -> u64 {
                said.of(name, total).iter().map(|one| one["packets"].as_u64().unwrap()).sum()
            };
            assert_eq!(
                (of(false), of(true)),
                (said.totals.packets, said.totals.packets),
                "{}",
                path.display()
            );
        }
        let Some(total) = said.of("all", true).first().copied() else { continue };
        files += 1;
        let row = &total["rows"][0];
        let (exact, estimate) = (sources.len() as f64, row["distinct_src"].as_f64().unwrap());
        let off = (estimate - exact).abs() / exact.max(1.0);
        worst = worst.max(off);
        assert!(
            off * 100.0 <= 3.0 * total["error_percent"].as_f64().unwrap(),
            "{}: {estimate} of {exact}",
            path.display()
        );
        // The maximum is not lower than the lower bound of the sketch.
        let most = from.values().copied().max().unwrap_or(0);
        if let Some(first) = row["top_src"].as_array().and_then(|rows| rows.first()) {
            let (count, error) = (first["packets"].as_u64().unwrap(), first["error"].as_u64().unwrap());
            assert!(count >= most && count - error <= most, "{}: {first} of {most}", path.display());
        }
    }
    assert!(files > 100, "{files} captures");
    println!("{files} captures; the worst estimate was off by {:.2} %", worst * 100.0);
}
