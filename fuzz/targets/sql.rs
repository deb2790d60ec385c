//! Queries of a store: any text has an answer or a printable error, and a query does not write anything.
#![no_main]

use std::path::PathBuf;
use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use wirelane_store::Table;
use wirelane_store::query::{AskSettings, Asker, Form};

/// A store without rows.
fn store() -> &'static PathBuf {
    static STORE: OnceLock<PathBuf> = OnceLock::new();
    STORE.get_or_init(|| {
        let folder = std::env::temp_dir().join(format!("wirelane-fuzz-sql-{}", std::process::id()));
        for table in Table::ALL {
            std::fs::create_dir_all(folder.join(table.name())).expect("a folder for the store");
        }
        folder
    })
}

fuzz_target!(|sql: &str| {
    // A product of series may take any time, limited by memory and by the user, which is not a fault.
    let words = sql.to_ascii_lowercase();
    if sql.len() > 2000 || words.contains("series") || words.contains("recursive") {
        return;
    }
    let settings =
        AskSettings { folder: store().clone(), memory_mib: 64, from_ns: None, to_ns: None, probe: None };
    let mut asker = Asker::open(settings).expect("the store is there");
    let mut answer = Vec::new();
    let mut sink = |bytes: &[u8]| {
        answer.extend_from_slice(bytes);
        Ok(())
    };
    let asked = asker.ask(sql, Form::Json, &mut sink, &mut |_, _| {});
    if let Err(error) = asked {
        assert!(!error.to_string().is_empty());
    } else {
        assert!(
            std::str::from_utf8(&answer).expect("JSON is text").lines().all(|line| line.starts_with('{'))
        );
    }
    for table in Table::ALL {
        let left = std::fs::read_dir(store().join(table.name())).expect("the table is there").count();
        assert_eq!(left, 0, "a question has written");
    }
});
