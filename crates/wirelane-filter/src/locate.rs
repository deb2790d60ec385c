//! Position of a mistake in a filter expression, which libpcap does not report.
//!
//! A word quoted in libpcap's message is located first. Otherwise prefixes of the expression are compiled, to find the
//! first word after which no continuation is valid. A prefix is valid if one of several trial continuations compiles.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use crate::suggest::suggestion;

/// Trial continuations of a valid prefix, before open parentheses and brackets are closed.
const ENDINGS: &[&str] = &[
    "",
    "1",
    "0",
    "1 = 1",
    "$1",
    "beacon",
    "tcp",
    "port 1",
    "1-2",
    "1.2.3.4",
    "::1",
    "net 1.2.3.4",
    "ff:ff:ff:ff:ff:ff",
    "host ff:ff:ff:ff:ff:ff",
    "= 1",
    "0] = 1",
    "] = 1",
    "1] = 1",
    "mask 255.255.255.0",
    "proto 1",
    "broadcast",
    "type mgt",
    "\\tcp",
    "igrp",
    "port range",
];
/// Time limit of the search: long expressions compile slowly. The position found by then is not after the mistake.
const LONGEST_SEARCH: Duration = Duration::from_secs(2);
/// Maximum number of characters of an expression that are shown.
const SHOWN: usize = 76;

/// The byte offset of the mistake in `expression`, which does not compile for `reason`; the end of the expression if
/// something is missing there.
pub(super) fn mistake(expression: &str, reason: &str, compiles: impl Fn(&str) -> bool) -> usize {
    if expression.len() > super::LONGEST {
        return 0;
    }
    if let Some(at) = expression.find('\0') {
        return at;
    }
    let words = words(expression);
    if let Some(at) = quoted(expression, &words, reason) {
        return at;
    }
    let end = expression.trim_end().len();
    let deadline = Instant::now() + LONGEST_SEARCH;
    // Binary search: every extension of an invalid prefix is invalid. `right` words are valid, `wrong` words are not.
    let (mut right, mut wrong) = (0, words.len() + 1);
    while wrong - right > 1 && Instant::now() < deadline {
        let count = right.midpoint(wrong);
        let until = words.get(count).map_or(end, |next| next.0);
        if is_beginning(expression[..until].trim_end(), &compiles) {
            right = count;
        } else {
            wrong = count;
        }
    }
    words.get(right).map_or(end, |word| word.0)
}

/// Whether a continuation makes the text a valid expression.
fn is_beginning(text: &str, compiles: &impl Fn(&str) -> bool) -> bool {
    let mut open = Vec::new();
    for character in text.chars() {
        match character {
            '(' => open.push(')'),
            '[' => open.push(']'),
            ')' | ']' => {
                open.pop();
            }
            _ => {}
        }
    }
    let close: String = open.iter().rev().collect();
    let in_brackets = open.last() == Some(&']');
    ENDINGS.iter().any(|ending| {
        let whole = format!("{text} {ending}{close}");
        compiles(&whole)
            || (!close.is_empty() && compiles(&format!("{whole} = 1")))
            || (in_brackets && compiles(&format!("{text} {ending}] = 1{}", &close[1..])))
    })
}

/// The position of the word of the expression that the message quotes or names, if any.
fn quoted(expression: &str, words: &[(usize, usize)], reason: &str) -> Option<usize> {
    let quote = reason.split(['\'', '"']).nth(1).filter(|quote| !quote.is_empty());
    if let Some(quote) = quote {
        let word = words.iter().find(|(start, end)| &expression[*start..*end] == quote);
        if let Some((start, _)) = word {
            return Some(*start);
        }
    }
    // "illegal port number 99999 > 65535"
    let number = reason.split_whitespace().find(|word| {
        word.bytes().all(|byte| byte.is_ascii_digit())
            && words.iter().filter(|(start, end)| expression[*start..*end] == **word).count() == 1
    })?;
    words.iter().find(|(start, end)| &expression[*start..*end] == number).map(|(start, _)| *start)
}

/// The words of an expression, as byte offsets of start and end.
fn words(expression: &str) -> Vec<(usize, usize)> {
    let alone = |c: char| "()[]!&|<>=".contains(c);
    let mut words = Vec::new();
    let mut start = None;
    for (at, character) in expression.char_indices() {
        if character.is_whitespace() || alone(character) {
            if let Some(start) = start.take() {
                words.push((start, at));
            }
            if alone(character) {
                match words.last_mut() {
                    // && || <= >= << and the like are single words.
                    Some((first, end))
                        if *end == at
                            && "&|<>=!".contains(character)
                            && expression[*first..*end].chars().all(|c| "&|<>=!".contains(c)) =>
                    {
                        *end = at + 1;
                    }
                    _ => words.push((at, at + 1)),
                }
            }
        } else if start.is_none() {
            start = Some(at);
        }
    }
    if let Some(start) = start {
        words.push((start, expression.len()));
    }
    words
}

/// The message: the reason, the expression, and a mark under the position, with the word that was probably meant.
pub fn show(expression: &str, at: usize, reason: &str) -> String {
    // One character each, so that the mark is aligned; no control character reaches a terminal.
    let plain = |c: char| {
        if c.is_whitespace() {
            ' '
        } else if c.is_control() {
            '?'
        } else {
            c
        }
    };
    let characters: Vec<char> = expression.chars().map(plain).collect();
    let mark = expression.char_indices().take_while(|(offset, _)| *offset < at).count();
    let first = if characters.len() <= SHOWN { 0 } else { mark.saturating_sub(SHOWN / 2) };
    let shown: String = characters.iter().skip(first).take(SHOWN).collect();
    let (before, after) =
        (if first > 0 { "..." } else { "" }, if first + SHOWN < characters.len() { "..." } else { "" });
    let mut text = format!("filter: {reason}\n  {before}{}{after}\n  ", shown.trim_end());
    let _ = write!(text, "{}^", " ".repeat(before.len() + mark - first));
    if at >= expression.trim_end().len() {
        text.push_str(" here something is missing");
    } else if let Some(advice) = suggestion(expression, at) {
        let _ = write!(text, " {advice}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_told_apart() {
        let text = "tcp[13]&2!=0 and(port 80||fe80::1)";
        let found: Vec<&str> = words(text).into_iter().map(|(start, end)| &text[start..end]).collect();
        assert_eq!(
            found,
            ["tcp", "[", "13", "]", "&", "2", "!=", "0", "and", "(", "port", "80", "||", "fe80::1", ")"]
        );
    }

    #[test]
    fn the_mark_is_under_the_mistake() {
        assert_eq!(
            show("tcp prot 80", 4, "no"),
            "filter: no\n  tcp prot 80\n      ^ 'prot': did you mean 'port'?"
        );
        assert_eq!(
            show("tcp port", 8, "no"),
            "filter: no\n  tcp port\n          ^ here something is missing"
        );
        assert_eq!(show("a\x1b[0m", 1, "no"), "filter: no\n  a?[0m\n   ^");
        let long = format!("{}prot 80 {}", "tcp or ".repeat(30), "or tcp ".repeat(30));
        let shown = show(&long, 210, "no");
        let lines: Vec<&str> = shown.lines().collect();
        let mark = lines[2].find('^').unwrap();
        assert_eq!(&lines[1][mark..mark + 4], "prot");
        assert!(lines[1].len() < 90, "{shown}");
    }
}
