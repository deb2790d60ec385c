//! Pages of HTML, which are also well-formed XML: another program's parser is the judge.

use std::io::Write;
use std::process::{Command, Stdio};

/// Counts the elements by name; an attribute that runs something is an error, as is a page that is not well-formed.
const SCRIPT: &str = "\
import collections, sys, xml.etree.ElementTree as tree
names = collections.Counter()
for element in tree.parse(sys.stdin.buffer).getroot().iter():
    names[element.tag.split('}')[-1]] += 1
    assert not any(name.startswith('on') or name in ('href', 'src') for name in element.attrib), element.attrib
print(' '.join(f'{name}={count}' for name, count in sorted(names.items())))
";

/// Asserts that expat parses a page and that nothing in it runs or fetches; returns the elements, as `svg=2`.
pub fn elements(page: &str) -> Vec<String> {
    let mut python = Command::new("python3")
        .args(["-c", SCRIPT])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    python.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let output = python.wait_with_output().unwrap();
    assert!(output.status.success(), "{}\n{page}", String::from_utf8_lossy(&output.stderr));
    let names = String::from_utf8(output.stdout).unwrap();
    assert!(!names.contains("script="), "{names}");
    names.split_whitespace().map(str::to_owned).collect()
}
