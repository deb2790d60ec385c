//! Rules of a whole device on every kernel; tests/rules_wide.rs has what does not hang on these.

#[path = "device_wide.rs"]
mod device_wide;

use device_wide::block;

use super::require_root;

#[test]
fn device_wide_rules_block_native() {
    if require_root("device_wide_rules_block_native") {
        block("native", false);
    }
}

#[test]
fn device_wide_rules_block_tc() {
    if require_root("device_wide_rules_block_tc") {
        block("tc", false);
    }
}
