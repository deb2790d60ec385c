//! The documentation shows the example of the library as it is, which cargo compiles with the tests.

use std::fs;
use std::path::Path;

#[test]
fn the_documentation_shows_the_example_as_it_is() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(here.join("../../docs/extend/library.md")).unwrap();
    let example = fs::read_to_string(here.join("examples/count.rs")).unwrap();
    assert!(
        page.contains(&format!("```rust\n{example}```\n")),
        "examples/count.rs has changed: copy it to docs/extend/library.md"
    );
}
