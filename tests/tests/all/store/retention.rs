//! Old rows go.

use super::*;

#[test]
fn old_flows_go_by_age_and_by_size() {
    let folder = tempfile::tempdir().unwrap();
    let (input, db) = (folder.path().join("in.pcap"), folder.path().join("db"));
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
    make_file(&input, 0..100, now - 20 * 3_600_000_000_000, 1000);
    assert_eq!(store(&input, &db, &[]).0.status.code(), Some(0));
    make_file(&input, 100..300, now, 1000);
    let (_, kept, last) = store(&input, &db, &["--store-max-age", "18h"]);
    assert_eq!(column(&last["store"], "removed_files"), 1, "{last}");
    assert_eq!(sums(&db)[0], kept.len() as u64);
    for round in 0..12 {
        make_file(&input, round * 4000..(round + 1) * 4000, now, 1000);
        let (finished, ..) = store(&input, &db, &["--store-max-size", "1MiB"]);
        assert_eq!(finished.status.code(), Some(0), "{}", finished.stderr);
    }
    let bytes: u64 = files(&db).0.iter().map(|file| file.metadata().unwrap().len()).sum();
    assert!((500_000..=1 << 20).contains(&bytes), "{bytes}");
}
