//! The ledger of a live capture is in its store, whatever analyses it.

use wirelane_tests::Lab;
use wirelane_tests::numbers::{capture, finish, send};

use super::*;

const SENT: u64 = 4000;
const COLUMNS: [&str; 8] = ["seen", "filtered", "absorbed", "shed", "lost", "delivered", "analysed", "bytes"];

/// Runs the command on the lab's receiver while packets are sent; its last ledger equals the sum of the stored ones.
fn compare(lab: &Lab, words: &[&str], folder: &Path) {
    let db = folder.join("db");
    let device = lab.receiver().device.clone();
    let options = ["--json", "--interval", "100ms", "--store", text(&db)];
    let words = match words {
        ["monitor", file] => {
            let sections = "[flows]\n[http]\n[voip]\n";
            let site = format!(
                "[capture]\ninterface = \"{device}\"\ninterval = \"100ms\"\n{sections}[store]\nfolder = \"{}\"\n",
                text(&db)
            );
            fs::write(folder.join(file), site).unwrap();
            vec!["monitor".to_owned(), text(&folder.join(file)).to_owned(), "--json".to_owned()]
        }
        [command, more @ ..] => {
            [&[*command, "-i", &device], &options[..], more].concat().into_iter().map(str::to_owned).collect()
        }
        [] => unreachable!(),
    };
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let child = capture(lab, &words).unwrap();
    for _ in 0..4 {
        send(lab, SENT / 4, &[]).unwrap();
        std::thread::sleep(Duration::from_millis(150));
    }
    let last = finish(child).unwrap();
    let sql: Vec<String> = COLUMNS.iter().map(|name| format!("coalesce(sum({name}), 0) AS {name}")).collect();
    let sql = format!("SELECT count(*) AS rows, {} FROM ledgers", sql.join(", "));
    let stored = &ask(&db, &[&sql])[0];
    for name in COLUMNS {
        assert_eq!(column(stored, name), column(&last, name), "{name} of {words:?}: {stored} {last}");
    }
    assert!(column(stored, "seen") >= SENT, "{stored}");
    assert!(column(stored, "rows") > 1, "{stored}");
    // The question what is missing has the packets of the same ledger, and so has the report.
    let missing = ask(&db, &["missing"]);
    assert_eq!(missing.iter().map(|row| column(row, "seen")).sum::<u64>(), column(&last, "seen"));
}

/// A row for each interval in which packets came, of flows, HTTP, calls, and of a monitor of all three.
#[test]
fn the_ledger_of_a_live_capture_is_stored() {
    if !require_root("the_ledger_of_a_live_capture_is_stored") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let lab = Lab::new(2).unwrap();
    for words in [
        &["flows", "--quiet"][..],
        &["flows", "--quiet", "--cache", "kernel"],
        &["http", "--quiet"],
        &["voip", "--quiet"],
        &["monitor", "site.toml"],
    ] {
        let here = folder.path().join(words.join("-"));
        fs::create_dir(&here).unwrap();
        compare(&lab, words, &here);
    }
}
