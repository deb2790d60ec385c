//! The table in `tests/BATTERY.md` equals the one generated from the marks in the tests, and every item has a test.

use std::fs;

use wirelane_tests::{battery, repository};

#[test]
fn every_item_has_a_test_and_the_table_is_up_to_date() {
    let table = battery::table(&repository()).unwrap();
    let written = fs::read_to_string(repository().join("tests/BATTERY.md")).unwrap();
    assert!(table == written, "tests/BATTERY.md is out of date: run scripts/battery");
}
