//! Runs the store's fuzz targets (`fuzz/`) over their seeds, as `tests/tests/all/fuzz_targets.rs` does for the others.

#![expect(unused_attributes, reason = "targets are programs without main()")]

// The targets need libFuzzer's macro; this test provides a replacement.
extern crate self as libfuzzer_sys;

use std::path::Path;

#[path = "../../../fuzz/seeds.rs"]
mod seeds;
#[path = "../../../fuzz/targets/sql.rs"]
mod sql;
#[path = "../../../fuzz/targets/store.rs"]
mod store;

#[test]
fn seeds_and_seeds_with_a_byte_changed_do_no_harm() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    // The targets have seeds without captures, too.
    let captures = repository.join("../shared/corpus/captures");
    seeds::run(&repository, &captures, &[("sql", sql::one_input, 1), ("store", store::one_input, 1)]);
}
