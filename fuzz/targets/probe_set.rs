//! Settings of a running probe: for any settings and any configuration, the answer is a list of mistakes with
//! positions, or a text with the requested values and otherwise the previous ones.
//!
//! Input: the length of the configuration (two bytes), the configuration, then words with zeros between them.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use wirelane_probe::{Changes, Config};

/// Value that a word sets for this name: `measurement.NAME.active` and the like.
fn asked<'w>(words: &'w [String], place: &str) -> Option<&'w str> {
    words.iter().find_map(|word| word.strip_prefix(place)?.strip_prefix('='))
}

/// Each mistake is one line, with the word that caused it or its position in the file.
fn assert_told(said: &str, words: &[String], text: &str) {
    let lines = text.split('\n').count();
    for line in said.split('\n') {
        assert!(!line.is_empty() && !line.contains(char::is_control), "{said:?}");
        let of_a_word = words.iter().any(|word| line.starts_with(&word.escape_debug().to_string()));
        if !of_a_word {
            let place = line.strip_prefix("p.toml:").and_then(|rest| rest.split(':').next()?.parse().ok());
            assert!(place.is_some_and(|place: usize| (1..=lines).contains(&place)), "{said:?}");
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let [low, high, rest @ ..] = data else { return };
    let (text, words) = rest.split_at(usize::from(u16::from_le_bytes([*low, *high])).min(rest.len()));
    let (Ok(text), Ok(words)) = (std::str::from_utf8(text), std::str::from_utf8(words)) else { return };
    let words: Vec<String> = words.split('\0').map(str::to_owned).collect();
    let changes = match Changes::parse(&words) {
        Ok(changes) => changes,
        Err(said) => {
            assert!(!said.is_empty() && !said.contains(char::is_control), "{said:?}");
            return;
        }
    };
    let path = Path::new("p.toml");
    let changed = changes.apply(text, path);
    // Such a text is never active, but it must not cause a crash either.
    let Ok(before) = Config::parse(text, path) else { return };
    let changed = match changed {
        Ok(changed) => changed,
        Err(said) => return assert_told(&said, &words, text),
    };
    let after = &changed.config;
    // The text has the same content as the configuration, and applying the changes again has no effect.
    assert_eq!(Config::parse(&changed.text, path).as_ref(), Ok(after), "{}", changed.text);
    assert_eq!(changes.apply(&changed.text, path).map(|again| again.config).as_ref(), Ok(after));
    // The requested values are set, and the others unchanged.
    if asked(&words, "interval").is_none() {
        assert_eq!(after.interval_ns, before.interval_ns);
    }
    assert_eq!(
        (after.measurements.len(), after.alarms.len()),
        (before.measurements.len(), before.alarms.len())
    );
    for (after, before) in after.measurements.iter().zip(&before.measurements) {
        let mut expected = before.clone();
        match asked(&words, &format!("measurement.{}.active", before.name)) {
            Some("") => expected.active = true,
            Some(value) => expected.active = value == "true",
            None => {}
        }
        assert_eq!(*after, expected);
    }
    for (after, before) in after.alarms.iter().zip(&before.alarms) {
        let of_it = format!("alarm.{}.", before.name);
        if !words.iter().any(|word| word.starts_with(&of_it)) {
            assert_eq!(after, before);
        }
    }
    assert_eq!((&after.rules, &after.actions), (&before.rules, &before.actions));
});
