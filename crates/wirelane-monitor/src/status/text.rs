//! The status of a running monitor as text.

use std::time::Duration;

use wirelane::control::Status as About;
use wirelane_export::OutputState;
use wirelane_screen::table::{Table, amount, printable};

use super::Status;

/// The status as text. `about`: the capture.
pub fn text(about: &About, status: &Status) -> String {
    let devices = printable(&about.devices.join(",")).into_owned();
    let uptime = humantime::format_duration(Duration::from_secs(status.uptime_s as u64));
    let mut text = format!(
        "monitor {} on {devices}: engine {}, running for {uptime}\n",
        about.pid,
        printable(&status.engine)
    );
    if status.reloads + status.reloads_refused > 0 {
        let (done, refused) = (amount(status.reloads), amount(status.reloads_refused));
        text += &format!("the file was read again: {done} times, refused {refused} times\n");
    }
    let names = ["seen", "filtered", "absorbed", "shed", "lost", "delivered", "analysed", "in_flight"];
    let mut table = Table::new([
        "LEDGER",
        "seen",
        "filtered",
        "absorbed",
        "shed",
        "lost",
        "delivered",
        "analysed",
        "in flight",
    ]);
    let column = |name: &str| amount(status.ledger[name].as_u64().unwrap_or(0));
    let mut row = vec!["packets".to_owned()];
    row.extend(names.iter().map(|name| column(name)));
    if let Ok(row) = row.try_into() {
        table.row(row);
    }
    text += &format!("\n{table}");
    let mut table = Table::new(["WORKER", "busy", "state"]).words_from(2);
    for worker in &status.workers {
        let state = if worker.progress { "works" } else { "MAKES NO PROGRESS" };
        table.row([worker.worker.to_string(), format!("{:.0} %", worker.busy * 100.0), state.to_owned()]);
    }
    text += &format!("\n{table}");
    let mut table = Table::new(["ANALYSIS", "results"]).words_from(1);
    for analysis in &status.analyses {
        let counts: Vec<String> = analysis
            .counts
            .iter()
            .map(|(name, number)| format!("{} {}", amount(*number), printable(&name.replace('_', " "))))
            .collect();
        table.row([printable(&analysis.name).into_owned(), counts.join(", ")]);
    }
    text += &format!("\n{table}");
    let mut table = Table::new(["OUTPUT", "written", "lost", "suppressed", "waiting", "state"]).words_from(5);
    let outputs =
        status.analyses.iter().flat_map(|one| one.outputs.iter().map(move |output| (&one.name, output)));
    for (analysis, output) in outputs {
        table.row([
            printable(&format!("{analysis}: {}", output.target)).into_owned(),
            amount(output.written),
            amount(output.lost),
            amount(output.suppressed),
            amount(output.waiting_bytes),
            state(output),
        ]);
    }
    text + &format!("\n{table}")
}

/// The state of an output in words.
fn state(output: &OutputState) -> String {
    let error = output.error.as_deref().unwrap_or_default();
    let state = match (output.works, output.failing_since_s) {
        (true, _) if output.lost > 0 && !error.is_empty() => format!("works; the last error: {error}"),
        (true, _) => "works".to_owned(),
        (false, since) => {
            let since = std::time::UNIX_EPOCH.checked_add(Duration::from_secs(since.unwrap_or(0)));
            let since = since.map(|time| humantime::format_rfc3339_seconds(time).to_string());
            format!("FAILS since {}: {error}", since.unwrap_or_default())
        }
    };
    printable(&state).into_owned()
}
