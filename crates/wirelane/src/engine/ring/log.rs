//! Log of libbpf.

use std::cell::RefCell;

thread_local! {
    /// Warnings of libbpf in this thread, inside [`listening`].
    static HEARD: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// Sends libbpf's messages to the log.
pub(crate) fn trace_libbpf() {
    libbpf_rs::set_print(Some((libbpf_rs::PrintLevel::Debug, |level, message| {
        // The verifier's log is for developers, not for users: WIRELANE_LOG=debug shows it.
        tracing::debug!("libbpf {level:?}: {}", message.trim_end());
        if matches!(level, libbpf_rs::PrintLevel::Warn) {
            HEARD.with_borrow_mut(|heard| {
                if let Some(heard) = heard {
                    heard.push(message);
                }
            });
        }
    })));
}

/// Runs `work`, and returns libbpf's warnings during it.
pub(super) fn listening<T>(work: impl FnOnce() -> T) -> (T, Vec<String>) {
    trace_libbpf();
    HEARD.set(Some(Vec::new()));
    let result = work();
    (result, HEARD.take().unwrap_or_default())
}

/// Number of lines of the verifier's log that are shown.
const LINES: usize = 10;

/// The end of the verifier's log, which has the reason of the refusal; `None` where there is no log.
pub(super) fn verdict(log: &str) -> Option<String> {
    let statistics = ["processed ", "verification time ", "stack depth ", "peak_states"];
    let lines: Vec<&str> = log
        .lines()
        .filter(|line| !line.trim().is_empty() && !statistics.iter().any(|first| line.starts_with(first)))
        .collect();
    let shown = &lines[lines.len().saturating_sub(LINES)..];
    (!shown.is_empty()).then(|| shown.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_the_log_its_end_is_shown() {
        let long: String = (0..40).map(|line| format!("line {line}\n")).collect();
        let shown = verdict(&format!("{long}\nbad access\nprocessed 7 insns (limit 1000000)\n")).unwrap();
        assert_eq!(shown.lines().count(), LINES);
        assert!(shown.starts_with("line 31\n") && shown.ends_with("line 39\nbad access"), "{shown}");
        assert_eq!(verdict("processed 7 insns (limit 1000000)\n"), None);
        assert_eq!(verdict(""), None);
    }
}
