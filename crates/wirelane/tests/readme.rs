//! The README shows the example of the library as it is, which cargo compiles with the tests.

use std::fs;
use std::path::Path;

#[test]
fn the_readme_shows_the_example_as_it_is() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = fs::read_to_string(here.join("../../README.md")).unwrap();
    let example = fs::read_to_string(here.join("examples/count.rs")).unwrap();
    assert!(
        readme.contains(&format!("```rust\n{example}```\n")),
        "examples/count.rs has changed: copy it to README.md"
    );
}
