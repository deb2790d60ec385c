//! The state of a running probe as text.

use std::time::{Duration, UNIX_EPOCH};

use wirelane_export::clock;
use wirelane_screen::table::{Table, amount, printable};

use super::change::Standing;

impl Standing {
    /// The state as text.
    pub fn text(&self) -> String {
        let conditions = &self.conditions;
        let time = humantime::format_duration(Duration::from_nanos(conditions.interval_ns));
        let mut text = format!("{}, intervals of {time}\n", printable(&self.config));
        if !self.set.is_empty() {
            text += &format!("set since it was read: {}\n", printable(&self.set.join(" ")));
        }
        let active = |is_active: bool| if is_active { "active" } else { "not active" }.to_owned();
        let mut table = Table::new(["MEASUREMENT", "state"]).words_from(1);
        for one in &conditions.measurements {
            table.row([printable(&one.measurement).into_owned(), active(one.active)]);
        }
        text += &table.to_string();
        if !conditions.alarms.is_empty() {
            let mut table = Table::new(["ALARM", "state", "of", "when"]).words_from(1);
            for one in &conditions.alarms {
                let state = match one.raised {
                    0 => active(one.active),
                    1 if one.keys.is_empty() => "RAISED".to_owned(),
                    keys => {
                        let more = if keys > one.keys.len() { ", ..." } else { "" };
                        format!("RAISED for {}: {}{more}", amount(keys as u64), one.keys.join(", "))
                    }
                };
                let cells = [&one.alarm, &state, &one.measurement, &one.when];
                table.row(cells.map(|cell| printable(cell).into_owned()));
            }
            text += &table.to_string();
        }
        if !conditions.schedules.is_empty() {
            let mut table = Table::new(["SCHEDULE", "next (UTC)", "when", "what"]).words_from(1);
            for one in &conditions.schedules {
                let day = day(one.next_ns);
                let next = format!("{day} {}", clock(one.next_ns).trim_end());
                table.row(
                    [&one.schedule, &next, &one.when, &one.what].map(|cell| printable(cell).into_owned()),
                );
            }
            text += &table.to_string();
        }
        text
    }
}

/// A date as people write it: `2026-03-01`.
fn day(ns: u64) -> String {
    let time = UNIX_EPOCH + Duration::from_nanos(ns);
    humantime::format_rfc3339_seconds(time).to_string().chars().take(10).collect()
}
