//! Device-wide rules on every kernel; rules_wide.rs beside this folder has the tests that do not depend on the kernel.

use super::device_wide::block;
use super::require_root;

/// Battery: L1, F2
#[test]
fn device_wide_rules_block_native() {
    if require_root("device_wide_rules_block_native") {
        block("native", false);
    }
}

/// Battery: L1
#[test]
fn device_wide_rules_block_tc() {
    if require_root("device_wide_rules_block_tc") {
        block("tc", false);
    }
}
