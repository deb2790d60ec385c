//! The model can fail: each of these tests breaks one assumption of the protocol, and loom must detect it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use loom::sync::atomic::Ordering;

use super::{Publish, Rules, records};

/// loom's message about a data cell that two sides access without an order between them.
const RACE: &str = "Causality violation";
/// Message of [`records::check`] where the two disagree.
const OTHER_RECORDS: &str = "what was read is not what was delivered";

/// Fails unless loom finds this fault in the protocol with these rules.
#[track_caller]
fn assert_caught(rules: Rules, expected: &str) {
    // A ring that fills and wraps, read by published head and by peeking.
    let explored = catch_unwind(AssertUnwindSafe(|| {
        loom::model(move || {
            records::check(rules, 1, &[1, 1, 1, 1], &[false, true, false]);
        });
    }));
    let Err(fault) = explored else { panic!("loom found nothing wrong with {rules:?}") };
    let fault = fault.downcast_ref::<String>().map_or("(no message)", String::as_str);
    assert!(fault.contains(expected), "{rules:?}: {fault}");
}

#[test]
fn a_relaxed_publication_is_caught() {
    assert_caught(Rules { publish: Publish::Store(Ordering::Relaxed), ..Rules::default() }, RACE);
}

#[test]
fn a_head_that_runs_ahead_of_its_record_is_caught() {
    assert_caught(Rules { head_first: true, ..Rules::default() }, RACE);
}

#[test]
fn a_relaxed_look_at_the_published_head_is_caught() {
    assert_caught(Rules { relaxed_published: true, ..Rules::default() }, RACE);
}

#[test]
fn a_relaxed_peek_is_caught() {
    assert_caught(Rules { relaxed_peek: true, ..Rules::default() }, RACE);
}

#[test]
fn a_tail_that_is_not_waited_for_is_caught() {
    // As if the lane's stores could be reordered before the branch on the tail.
    assert_caught(Rules { tail: Ordering::Relaxed, ..Rules::default() }, RACE);
}

#[test]
fn a_relaxed_release_is_caught() {
    assert_caught(Rules { relaxed_release: true, ..Rules::default() }, RACE);
}

#[test]
fn a_release_before_the_reading_is_caught() {
    assert_caught(Rules { release_first: true, ..Rules::default() }, RACE);
}

#[test]
fn a_lane_that_overestimates_the_room_is_caught() {
    assert_caught(Rules { extra_room: 1, ..Rules::default() }, OTHER_RECORDS);
}
