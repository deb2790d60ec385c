//! `wirelane count --top` on a terminal.

use wirelane_tests::numbers::send;
use wirelane_tests::terminal::Terminal;
use wirelane_tests::{Lab, require_root};

#[test]
fn the_screen_of_count_has_the_packets_of_each_queue() {
    if !require_root("the_screen_of_count_has_the_packets_of_each_queue") {
        return;
    }
    let lab = Lab::new(2).unwrap();
    let device = lab.receiver().device.as_str();
    let words =
        ["count", "-i", device, "--top", "--interval", "0.2", "--hook", "native", "--direction", "rx", "udp"];
    let mut terminal = Terminal::start(&lab, 80, 24, &words);
    terminal.until_text(&format!("wirelane count  {device}  engine ring"));
    send(&lab, 5000, &["--flows", "5", "--rate", "50000"]).unwrap();
    terminal.until_text("analysed 5,000  in flight 0");
    for (columns, rows) in [(80, 24), (160, 50), (1, 1), (80, 24)] {
        terminal.resize(columns, rows);
        if columns > 1 {
            terminal.until("the sum of both queues", |rows| {
                rows[0].chars().count() == usize::from(columns)
                    && rows.iter().any(|row| row.starts_with("2 lines") && row.contains(" 5,000 "))
            });
            println!("{}", terminal.rows().join("\n"));
        }
        std::thread::sleep(std::time::Duration::from_millis(300));
    }
    terminal.type_in("/@1");
    terminal.until("one queue", |rows| rows.iter().any(|row| row.starts_with("1 line ")));
    terminal.type_in("\u{1b}q");
    let (status, rows) = terminal.ended();
    let text = rows.join("\n");
    assert!(status.success() && text.contains("the ledger balances"), "{status} {text}");
    // The ledger at the end fits the terminal.
    assert!(rows.iter().any(|row| row.starts_with("ledger ") && row.ends_with(" bytes")), "{text}");
}
