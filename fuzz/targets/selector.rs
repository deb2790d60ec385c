//! Device selectors: any text is an error, or selectors whose text has the same meaning.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wirelane::Selector;

fuzz_target!(|text: &str| {
    // Some devices exist, whatever their names: this decides the meaning of an ambiguous name.
    for exists in [false, true] {
        let exists = move |name: &str| exists && name.len().is_multiple_of(2);
        let Ok(selectors) = Selector::parse_list_with(text, exists) else { continue };
        assert!(!selectors.is_empty(), "neither a selector nor an error");
        for selector in selectors {
            let printed = selector.to_string();
            // Names with a comma or an at sign are existing devices; only those have an ambiguous text.
            if let Ok(again) = Selector::parse_list_with(&printed, exists) {
                assert_eq!(again.first().map(ToString::to_string), Some(printed), "{text:?}");
            }
        }
    }
});
