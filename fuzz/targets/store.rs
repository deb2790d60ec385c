//! Files of a store: any bytes are a valid file, or one that is reported and skipped, and the rest is answered.
//!
//! Input: a byte that selects the table, the file.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wirelane_store::Table;
use wirelane_store::query::{AskSettings, Asker, Form};

fuzz_target!(|data: &[u8]| {
    let [table, file @ ..] = data else { return };
    let table = Table::ALL[usize::from(*table) % Table::ALL.len()];
    let folder = std::env::temp_dir().join(format!("wirelane-fuzz-store-{}", std::process::id()));
    let hour = folder.join(table.name()).join("date=2026-01-01").join("hour=00");
    std::fs::create_dir_all(&hour).expect("a folder for the store");
    std::fs::write(hour.join("a.parquet"), file).expect("the file is written");
    let settings =
        AskSettings { folder: folder.clone(), memory_mib: 64, from_ns: None, to_ns: None, probe: None };
    let mut asker = Asker::open(settings).expect("the store is there");
    let (mut answer, mut named) = (Vec::new(), 0);
    let mut sink = |bytes: &[u8]| {
        answer.extend_from_slice(bytes);
        Ok(())
    };
    let sql = format!("SELECT * FROM {} LIMIT 10", table.name());
    let asked = asker.ask(&sql, Form::Json, &mut sink, &mut |_, why| {
        assert!(!why.is_empty());
        named += 1;
    });
    if let Err(error) = asked {
        assert!(!error.to_string().is_empty());
    }
    assert!(named <= 1, "there is one file");
    std::fs::remove_dir_all(&folder).expect("the store goes");
});
