//! A probe that is killed under traffic, with a shipper beside it.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use wirelane_tests::numbers::{LIMIT, capture, column, wirelane};
use wirelane_tests::{Child, Lab, Signal, require_root};

use super::ask;
use super::beside::open_folder;
use super::door::{Door, ship, shipping};
use super::shipping::files;

/// Sums of a store: flows, their packets, packets that the ledgers have as seen and as lost, and rows that were not stored.
fn sums(db: &Path) -> [u64; 5] {
    let sum = |sql: &str| ask(db, &[sql]).remove(0);
    let flows = sum("SELECT count(*) AS n, coalesce(sum(packets), 0) AS p FROM flows");
    let ledger = sum(
        "SELECT coalesce(sum(seen), 0) AS s, coalesce(sum(lost), 0) AS l, coalesce(sum(unstored), 0) AS u FROM ledgers",
    );
    let [n, p] = ["n", "p"].map(|name| column(&flows, name));
    let [s, l, u] = ["s", "l", "u"].map(|name| column(&ledger, name));
    [n, p, s, l, u]
}

/// The same sums of the server.
fn arrived(door: &Door) -> Vec<String> {
    let of = |columns: &str, table: &str| {
        door.ask(&format!("SELECT {columns} FROM fleet.{table} FORMAT TabSeparated"))
    };
    let all = of("count(), sum(packets)", "flows")
        + "\t"
        + &of("sum(seen), sum(lost), coalesce(sum(unstored), 0)", "ledgers");
    all.split('\t').map(str::to_owned).collect()
}

/// Number of marks of processes that write the store, or were killed.
fn marks(db: &Path) -> u64 {
    let names = fs::read_dir(db.join(".writers")).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| !name.to_string_lossy().starts_with('.')).count() as u64
}

/// `kill -9` of a probe under traffic at random moments, every third time with the server or the shipper: after each, the
/// server has every row of the store once, and says that the probe was interrupted. Of a probe that ends in an orderly way,
/// the flows have all packets of the ledger.
/// Battery: F4
#[test]
fn a_probe_killed_under_traffic_repeats_no_row_and_its_loss_is_not_silent() {
    let test = "a_probe_killed_under_traffic_repeats_no_row_and_its_loss_is_not_silent";
    if !require_root(test) {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let inside = lab.receiver().namespace.clone();
    let folder = open_folder();
    let started = lab.enter(&inside, || Door::start(test, &folder.path().join("door"), &[])).unwrap();
    let Some(mut door) = started else { return };
    let (db, to) = (folder.path().join("db"), door.to());
    let file = folder.path().join("site.toml");
    let configure = |flows: &str| {
        let (device, db) = (&lab.receiver().device, db.display());
        let text = format!(
            "[capture]\ninterface = \"{device}\"\ndirection = \"rx\"\ninterval = 0.2\n[flows]\ninactive-timeout = 1\n\
             {flows}[store]\nfolder = \"{db}\"\nrotate = \"1s\"\nprobe = \"edge-9\"\n"
        );
        fs::write(&file, text).unwrap();
    };
    configure("output-rate = 0\n");
    let probe = || capture(&lab, &["monitor", file.to_str().unwrap(), "--json"]).unwrap();
    let sender = |packets: &str| -> Child {
        let (end, rate) = (lab.sender(), "20k");
        let words = ["send", "-i", &end.device, "--packets", packets, "--rate", rate, "--flows", "20000"];
        wirelane(&lab, &end.namespace, &[&words[..], &["--size", "100", "--method", "socket"]].concat())
            .unwrap()
    };
    let ended = |monitor: Child| {
        let finished = monitor.terminate(LIMIT).unwrap();
        assert_eq!(finished.status.code(), Some(0), "{}", finished.stderr);
    };
    // The store is there before it is shipped.
    ended(probe());
    let created = lab.enter(&inside, || ship(&db, &to, &["--create", "--once"])).unwrap();
    assert_eq!(created.status.code(), Some(0), "{}", created.stderr);
    let ships = || lab.enter(&inside, || shipping(&db, &to)).unwrap();
    let mut shipper = ships();

    let mut random = std::env::var("WIRELANE_SEED").map_or(0xfeed, |seed| seed.parse::<u64>().unwrap());
    println!("WIRELANE_SEED={random}");
    let rounds = std::env::var("WIRELANE_KILLS").map_or(8, |rounds| rounds.parse().unwrap());
    let (mut before, mut killed, mut with_rows) = (sums(&db), 0, 0);
    for round in 0..rounds {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let monitor = probe();
        let is_orderly = round % 8 == 7;
        let traffic = sender(if is_orderly { "20000" } else { "2000000" });
        if is_orderly {
            assert!(traffic.finish(LIMIT).unwrap().status.success());
            ended(monitor);
        } else {
            // Half of them once the store has grown.
            let (begun, so_far) = (Instant::now(), files(&db.join("flows")).len());
            while round % 2 == 1 && files(&db.join("flows")).len() == so_far {
                assert!(begun.elapsed() < LIMIT, "round {round}: no file of flows");
                std::thread::sleep(Duration::from_millis(20));
            }
            std::thread::sleep(Duration::from_millis((random >> 33) % 2500));
            match round % 3 {
                0 => lab.enter(&inside, || door.kill()).unwrap(),
                1 => shipper.signal(Signal::Kill).unwrap(),
                _ => {}
            }
            monitor.signal(Signal::Kill).unwrap();
            monitor.finish(LIMIT).unwrap();
            traffic.signal(Signal::Kill).unwrap();
            traffic.finish(LIMIT).unwrap();
            match round % 3 {
                0 => lab.enter(&inside, || door.open()).unwrap(),
                1 => {
                    shipper.finish(LIMIT).unwrap();
                    shipper = ships();
                }
                _ => {}
            }
        }
        let after = sums(&db);
        let growth: Vec<u64> = after.iter().zip(before).map(|(after, before)| after - before).collect();
        println!("round {round}: flows, packets, seen, lost, unstored: {growth:?}");
        if is_orderly {
            // Each flow has one packet. A busy machine may not store all of them, and says so.
            assert_eq!((growth[1] + growth[4], growth[2], growth[3]), (20_000, 20_000, 0), "round {round}");
            assert_eq!(marks(&db), killed, "an orderly end leaves no mark");
        } else {
            // A process that has written a row has left its mark.
            let left = marks(&db) - killed;
            assert!(left <= 1 && (left == 1 || growth == [0; 5]), "round {round}: {left} {growth:?}");
            killed += left;
            with_rows += u64::from(growth[0] > 0);
        }
        before = after;
        let expected: Vec<String> = after.iter().map(u64::to_string).collect();
        let interrupted = "SELECT count(), sum(files) FROM fleet.shipments WHERE kind = 'interrupted' AND \
                           probe = 'edge-9' FORMAT TabSeparated";
        let begun = Instant::now();
        lab.enter(&inside, || {
            // A `Door` may be sent to the thread in the namespace, but not shared with it.
            let door = &mut door;
            while arrived(door) != expected || door.ask(interrupted) != format!("{killed}\t{killed}") {
                let (found, notes) = (arrived(door), door.ask(interrupted));
                assert!(begun.elapsed() < LIMIT, "round {round}: {found:?} {expected:?}, {notes} {killed}");
                std::thread::sleep(Duration::from_millis(50));
            }
            if after[0] > 0 {
                door.has_all_of(&db);
            }
        })
        .unwrap();
    }
    assert!(4 * with_rows >= rounds, "only {with_rows} of {rounds} runs had rows when they were killed");

    // The store and the server say the same.
    let missing = |place: [&str; 2]| {
        let finished = super::run(&[&["query", "missing", "--json"], &place[..]].concat());
        assert_eq!(finished.status.code(), Some(0), "{}", finished.stderr);
        finished.json().unwrap()
    };
    let both = || {
        let at_the_server = lab.enter(&inside, || missing(["--at", &to])).unwrap();
        assert_eq!(at_the_server, missing(["--store", db.to_str().unwrap()]));
        at_the_server
    };
    let at_the_server = both();
    let names = ["interrupted", "rows missing"];
    let states = at_the_server.iter().filter(|row| names.iter().any(|name| row["state"] == *name));
    assert_eq!(states.map(|row| column(row, "interrupted")).sum::<u64>(), killed, "{at_the_server:?}");

    // Rows beyond the write limit, which each of these flows of one small packet exceeds, are not silent either.
    configure("");
    let monitor = probe();
    assert!(sender("20000").finish(LIMIT).unwrap().status.success());
    ended(monitor);
    let after = sums(&db);
    let [flows, seen, unstored] = [0, 2, 4].map(|at| after[at] - before[at]);
    assert!(unstored > 1000, "{flows} {unstored}");
    assert_eq!((flows + unstored, seen), (20_000, 20_000));
    let begun = Instant::now();
    lab.enter(&inside, || {
        let door = &mut door;
        while arrived(door)[4] != after[4].to_string() {
            assert!(begun.elapsed() < LIMIT, "the ledger does not arrive");
            std::thread::sleep(Duration::from_millis(50));
        }
    })
    .unwrap();
    let finished = shipper.terminate(LIMIT).unwrap();
    assert_eq!(finished.status.code(), Some(0), "{}", finished.stderr);
    let short = both().into_iter().filter(|row| row["state"] == "rows missing");
    assert_eq!(short.map(|row| column(&row, "unstored")).sum::<u64>(), after[4]);
}
