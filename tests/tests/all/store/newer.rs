//! Stores of newer versions.

use std::fs;

use wirelane_tests::recordings::NOON_NS;

use super::{files, make_file, run, store, text};

/// A store whose newest file is of a newer schema is neither read nor written to, and the refusal names the file and what
/// to do.
#[test]
fn a_store_of_a_newer_version_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (input, db) = (folder.path().join("in.pcap"), folder.path().join("db"));
    make_file(&input, 0..100, NOON_NS, 1000);
    assert_eq!(store(&input, &db, &[]).0.status.code(), Some(0));
    let [file] = &files(&db).0[..] else { panic!("not one file") };
    let mut bytes = fs::read(file).unwrap();
    let key = b"wirelane.schema";
    let at = bytes.windows(key.len()).position(|part| part == key).unwrap() + key.len();
    // The field and the length of the value are before it (Thrift's compact protocol).
    assert_eq!(&bytes[at..at + 3], b"\x18\x012");
    bytes[at + 2] = b'9';
    fs::write(file, &bytes).unwrap();
    let expected = format!("{} was written by a newer Wirelane (wirelane ", file.display());
    let asked = run(&["query", "--json", "--store", text(&db), "SELECT count(*) FROM flows"]);
    let (stored, ..) = store(&input, &db, &[]);
    let site = folder.path().join("site.toml");
    let monitor = format!(
        "[capture]\nread = \"{}\"\n[flows]\n[store]\nfolder = \"{}\"\n",
        input.display(),
        db.display()
    );
    fs::write(&site, monitor).unwrap();
    let monitored = run(&["monitor", text(&site), "--json"]);
    for refused in [asked, stored, monitored] {
        assert_eq!(refused.status.code(), Some(1), "{}", refused.stderr);
        assert!(refused.stderr.contains(&expected), "{}", refused.stderr);
        let rest = "schema 9; this one knows up to 2): use that version, or another folder";
        assert!(refused.stderr.contains(rest), "{}", refused.stderr);
    }
    assert_eq!((files(&db).0.len(), fs::read(file).unwrap()), (1, bytes));
}
