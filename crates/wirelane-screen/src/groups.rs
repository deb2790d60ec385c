//! Groups of captures as text.

use wirelane::groups::Group;

use crate::table::{Table, amount, printable};

/// An expression, shortened for a column: the JSON output contains all of it.
fn shortened(expression: &str) -> String {
    const MOST: usize = 40;
    let shown = printable(expression).to_string();
    if shown.chars().count() <= MOST {
        return shown;
    }
    shown.chars().take(MOST - 3).chain("...".chars()).collect()
}

/// A line for each group.
pub fn table(groups: &[Group]) -> String {
    let mut table = Table::new([
        "GROUP",
        "OWNER",
        "WORKERS",
        "FILTER",
        "seen",
        "filtered",
        "absorbed",
        "shed",
        "lost",
        "delivered",
    ]);
    for group in groups {
        let c = &group.counters;
        let gone = if group.alive { "" } else { " gone" };
        let wide = if group.device_wide { ", device-wide" } else { "" };
        let adaptive = if group.adaptive { ", adaptive" } else { "" };
        table.row([
            format!("{} {} {}{wide}", printable(&group.device), group.hook, group.place),
            format!("{} {}{gone}", printable(&group.owner), group.pid),
            format!("{} by {}{adaptive}", group.workers, group.steering),
            group.filter.as_deref().map_or_else(|| "-".to_owned(), shortened),
            amount(c.seen),
            amount(c.filtered),
            amount(c.absorbed),
            amount(c.shed),
            amount(c.lost),
            amount(c.delivered),
        ]);
    }
    table.to_string()
}
