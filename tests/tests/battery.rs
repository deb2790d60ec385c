//! The table of tests/BATTERY.md names tests that exist.

use std::fs;

use wirelane_tests::repository;

#[test]
fn every_test_of_the_table_exists() {
    let root = repository();
    let table = fs::read_to_string(root.join("tests/BATTERY.md")).unwrap();
    let mut named = 0;
    for code in table.split('`').skip(1).step_by(2) {
        let Some((file, test)) = code.split_once("::") else { continue };
        let path = if file.contains('/') { root.join(file) } else { root.join("tests/tests").join(file) };
        let source =
            fs::read_to_string(&path).unwrap_or_else(|error| panic!("{code}: {}: {error}", path.display()));
        assert!(source.contains(&format!("fn {test}(")), "{code}: there is no such test");
        named += 1;
    }
    assert!(named > 40, "only {named} tests were found in the table");
}
