//! `[[patterns]]`: patterns to search payloads for, as text, in hexadecimal digits, or in a file with one text per
//! line.

use super::files::{self, LARGEST_LIST};
use super::node::{Entry, Node};
use super::position::{Lines, Position};
use super::values::{self, number, text};
use super::{Document, Reader};
use crate::patterns::{LAST_ID, Pattern, Patterns};

/// Keys of `[[patterns]]`.
const KNOWN: &[&str] = &["name", "id", "text", "hex", "file", "nocase", "offset", "depth"];

impl Reader {
    /// Reads a table of `[[patterns]]`.
    pub(super) fn patterns(&mut self, document: &Document, node: &Node) {
        let place = document.place(node);
        let (mut name, mut id, mut nocase, mut offset, mut depth) = (None, None, false, 0, None);
        let (mut all, mut whole) = (Vec::new(), true);
        for Entry { key, at, node } in node.entries() {
            let here = document.place(node);
            let read = match key.as_str() {
                "name" => text(node).map(|read| name = Some(read.to_owned())),
                "id" => number(node, 1..=LAST_ID).map(|read| id = Some(read)),
                "nocase" => values::truth(node).map(|read| nocase = read),
                "offset" => number(node, 0..=u32::MAX).map(|read| offset = read),
                "depth" => number(node, 1..=u32::MAX).map(|read| depth = Some(read)),
                "text" | "hex" | "file" => {
                    let read = match key.as_str() {
                        "text" => {
                            self.each_pattern(document, node, |text| Ok(Pattern(text.as_bytes().to_vec())))
                        }
                        "hex" => self.each_pattern(document, node, Pattern::of_hex),
                        _ => self.pattern_files(document, node),
                    };
                    whole &= read.map(|read| all.extend(read)).is_some();
                    Ok(())
                }
                _ => {
                    self.unknown(document, key, *at, KNOWN);
                    Ok(())
                }
            };
            whole &= self.mistakes.take(here, read).is_some();
        }
        let has = |key| node.entry(key).is_some();
        if !has("name") {
            self.mistakes
                .add_if_readable(place, "the patterns have no name, by which rules could ask for them");
        }
        if !has("id") {
            self.mistakes.add_if_readable(place, "the patterns have no id: the number of the first of them");
        }
        if !(has("text") || has("hex") || has("file")) {
            self.mistakes.add_if_readable(place, "there is no pattern: write text, hex or file");
            whole = false;
        }
        let Some(((name, id), true)) = name.clone().zip(id).map(|both| (both, whole)) else {
            // The name of faulty patterns is registered, or each use of it would be reported as another mistake.
            self.faulty_sets.extend(name);
            return;
        };
        self.set.patterns.push(Patterns { name, id, patterns: all.into(), nocase, offset, depth });
        self.patterns_at.push(place);
    }

    /// Reads patterns given as values.
    fn each_pattern(
        &mut self,
        document: &Document,
        node: &Node,
        of: impl Fn(&str) -> values::Read<Pattern>,
    ) -> Option<Vec<Pattern>> {
        if node.elements().is_empty() {
            self.mistakes.add(document.place(node), "the list is empty: write at least one pattern");
            return None;
        }
        let read = |node: &Node| {
            let pattern = of(text(node)?)?;
            pattern.fault().map_or(Ok(pattern), Err)
        };
        let (mut all, mut whole) = (Vec::new(), true);
        for element in node.elements() {
            match self.mistakes.take(document.place(element), read(element)) {
                Some(pattern) => all.push(pattern),
                None => whole = false,
            }
        }
        whole.then_some(all)
    }

    /// Reads patterns from files, one per line. Empty lines are skipped.
    fn pattern_files(&mut self, document: &Document, node: &Node) -> Option<Vec<Pattern>> {
        let (mut all, mut whole) = (Vec::new(), true);
        for element in node.elements() {
            let place = document.place(element);
            let read = self.pattern_file(document, element, place);
            whole &= read.map(|read| all.extend(read)).is_some();
        }
        whole.then_some(all)
    }

    fn pattern_file(&mut self, document: &Document, node: &Node, place: Position) -> Option<Vec<Pattern>> {
        let path = text(node).and_then(|name| document.folder.file(name));
        let path = self.mistakes.take(place, path)?;
        let content =
            files::read(&path, LARGEST_LIST).map_err(|reason| format!("{} {reason}", files::name(&path)));
        let content = self.mistakes.take(place, content)?;
        let file = self.mistakes.file(path);
        let lines = Lines::new(file.file, content.as_str());
        let (mut all, mut whole) = (Vec::new(), true);
        for line in content.lines().filter(|line| !line.is_empty()) {
            let pattern = Pattern(line.as_bytes().to_vec());
            if let Some(reason) = pattern.fault() {
                // The line borrows from `content`, so its offset is the difference of the pointers.
                self.mistakes.add(lines.place(line.as_ptr().addr() - content.as_ptr().addr()), reason);
                whole = false;
            }
            all.push(pattern);
        }
        if all.is_empty() {
            self.mistakes.add(file, "has no pattern in it");
            return None;
        }
        whole.then_some(all)
    }
}
