//! A new configuration is adopted between two packets, without lost or repeated counts.

use wirelane_probe::Plan;

use crate::traffic::*;

/// Battery: L1
#[test]
fn a_configuration_is_replaced_with_every_packet_in_one_of_the_two() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("in.pcap");
    // More packets than a batch.
    let frames: Vec<Timed> = (0..40_000u32)
        .map(|n| (u64::from(n) * MS / 10, udp(host(n % 50), host(n % 7), (n as u16, 53), 200)))
        .collect();
    write(&path, &frames);
    let text = |name: &str, interval: &str| {
        format!(
            "interval = \"{interval}\"\n[[measurement]]\nname = \"{name}\"\nvalues = [\"packets\", \"bytes\"]\n\
            [[alarm]]\nname = \"any\"\nmeasurement = \"{name}\"\nvalue = \"packets\"\nabove = 1\n"
        )
    };
    for workers in [1, 3] {
        let mut replaced = 0;
        let said = probe_files(
            config(&text("old", "1s")),
            std::slice::from_ref(&path),
            workers,
            |switches, packets| {
                let due = [(1, "500ms"), (2, "2s")].into_iter().find(|(turn, _)| replaced + 1 == *turn);
                if let Some((turn, interval)) = due.filter(|(turn, _)| packets > turn * 10_000) {
                    switches.replace(Plan::new(config(&text(&format!("new{turn}"), interval)), 5).unwrap());
                    replaced = turn;
                }
            },
        );
        assert_eq!((replaced, said.totals.reloads), (2, 2));
        let of = |name: &str| -> u64 {
            said.of(name, false).iter().map(|one| one["packets"].as_u64().unwrap()).sum()
        };
        let parts = [of("old"), of("new1"), of("new2")];
        assert!(parts.iter().all(|part| *part > 1000) && parts.iter().sum::<u64>() == 40_000, "{parts:?}");
        for (name, part) in ["old", "new1", "new2"].iter().zip(parts) {
            let totals: u64 = said.of(name, true).iter().map(|one| one["packets"].as_u64().unwrap()).sum();
            assert_eq!(totals, part, "{name}");
        }
        // Alarms that the old configurations raised are cleared with them.
        assert_eq!((said.totals.alarms_raised, said.totals.alarms_cleared), (3, 2));
    }
}
