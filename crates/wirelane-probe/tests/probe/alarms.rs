//! Alarms, actions and schedules, by the clock of the packets.

use serde_json::json;

use crate::traffic::*;

/// This number of packets in each second.
fn seconds(packets: &[u32]) -> Vec<Timed> {
    let mut frames = Vec::new();
    for (second, number) in packets.iter().enumerate() {
        for turn in 0..*number {
            frames.push((second as u64 * SECOND + u64::from(turn) * MS, udp(host(1), host(2), (1, 2), 10)));
        }
    }
    frames
}

const RATE: &str = "[[measurement]]\nname = \"all\"\nvalues = [\"packets\", \"pps\"]\n";

#[test]
fn alarms_are_raised_and_cleared_and_tell_what_happened() {
    let text = format!(
        "{RATE}[[alarm]]\nname = \"many\"\nmeasurement = \"all\"\nvalue = \"pps\"\nabove = 10\nclear = 5\n\
         actions = [\"tell\", \"run\"]\n[[action]]\nname = \"tell\"\nlog = true\non = [\"clear\"]\n\
         [[action]]\nname = \"run\"\nrun = [\"/bin/x\", \"{{alarm}}:{{state}}\", \"a {{value}} b\", \"{{measurement}}\"]\n"
    );
    let said = probe(&text, &seconds(&[3, 20, 8, 5, 4]));
    assert_eq!(said.alarms(), ["many raised", "many cleared"]);
    assert_eq!(said.alarms[0].time, "1700000002.000000000");
    assert_eq!(said.logs, ["alarm many cleared: pps 5 at 1700000004.000000000"]);
    assert_eq!(
        said.runs,
        [["/bin/x", "many:raised", "a 20 b", "all"], ["/bin/x", "many:cleared", "a 5 b", "all"]]
    );
    assert_eq!((said.totals.alarms_raised, said.totals.alarms_cleared), (1, 1));
}

#[test]
fn silence_is_below_and_changes_are_told() {
    let text = format!(
        "{RATE}[[alarm]]\nname = \"silence\"\nmeasurement = \"all\"\nvalue = \"packets\"\nbelow = 1\n\
         [[alarm]]\nname = \"jump\"\nmeasurement = \"all\"\nvalue = \"packets\"\nrises = 100\nleast = 10\n"
    );
    let said = probe(&text, &seconds(&[10, 12, 0, 0, 9, 30, 30]));
    assert_eq!(said.alarms(), ["silence raised", "silence cleared", "jump raised", "jump cleared"]);
}

#[test]
fn alarms_switch_measurements_from_the_next_interval_on() {
    let text = format!(
        "{RATE}[[measurement]]\nname = \"detail\"\nactive = false\nkey = [\"src\"]\nvalues = [\"packets\"]\n\
         [[alarm]]\nname = \"many\"\nmeasurement = \"all\"\nvalue = \"packets\"\nabove = 10\nactions = [\"on\", \"off\"]\n\
         [[action]]\nname = \"on\"\nactivate = [\"detail\"]\n\
         [[action]]\nname = \"off\"\non = [\"clear\"]\ndeactivate = [\"detail\"]\n"
    );
    let said = probe(&text, &seconds(&[1, 20, 30, 4, 5, 6]));
    let details: Vec<_> =
        said.of("detail", false).iter().map(|one| (one["start"].clone(), one["packets"].clone())).collect();
    let at = |second: u32| json!(format!("{}.000000000", 1_700_000_000 + second));
    assert_eq!(details, [(at(2), json!(30)), (at(3), json!(4))]);
}

#[test]
fn rules_are_switched_from_the_next_interval_on() {
    let text = format!(
        "{RATE}[[rule]]\nname = \"web\"\ndst-port = 2\n[[measurement]]\nname = \"some\"\nrule = \"web\"\nvalues = [\"packets\"]\n\
         [[alarm]]\nname = \"many\"\nmeasurement = \"all\"\nvalue = \"packets\"\nabove = 10\nactions = [\"off\", \"on\"]\n\
         [[action]]\nname = \"off\"\ndeactivate = [\"web\"]\n\
         [[action]]\nname = \"on\"\non = [\"clear\"]\nactivate = [\"web\"]\n"
    );
    let said = probe(&text, &seconds(&[1, 20, 30, 4, 5, 6]));
    let of = |name: &str| {
        said.of(name, false).iter().map(|one| one["packets"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!((of("all"), of("some")), (vec![1, 20, 30, 4, 5, 6], vec![1, 20, 0, 0, 5, 6]));
}

#[test]
fn schedules_flush_and_switch_by_the_clock_of_the_packets() {
    // Captures begin at 22:13:20.
    let text = format!(
        "{RATE}[[measurement]]\nname = \"night\"\nactive = false\nvalues = [\"packets\"]\n\
         [[schedule]]\nname = \"flush\"\nevery = \"3s\"\nflush = true\n\
         [[schedule]]\nname = \"on\"\nat = \"22:13:22\"\ndays = [\"tue\"]\nactivate = [\"night\"]\n\
         [[schedule]]\nname = \"off\"\nat = \"22:13:24\"\ndeactivate = [\"night\"]\n\
         [[schedule]]\nname = \"never\"\nat = \"22:13:25\"\ndays = [\"mon\", \"wed\"]\nactivate = [\"night\"]\n"
    );
    let said = probe(&text, &seconds(&[1, 2, 3, 4, 5, 6, 7]));
    let night: Vec<_> = said.of("night", false).iter().map(|one| one["packets"].as_u64().unwrap()).collect();
    assert_eq!(night, [3, 4]);
    // 1,700,000,001 and every three seconds after that are multiples of three.
    let totals: Vec<_> = said.of("all", true).iter().map(|one| one["packets"].as_u64().unwrap()).collect();
    assert_eq!((totals.iter().sum::<u64>(), &totals[..]), (28, &[1, 9, 18][..]));
}

#[test]
fn schedules_and_actions_give_schedules_other_times() {
    let text = format!(
        "{RATE}[[schedule]]\nname = \"flush\"\nevery = \"1s\"\nflush = true\n\
         [[schedule]]\nname = \"seldom\"\nat = \"22:13:23\"\nretime = {{ flush = \"3s\" }}\n\
         [[schedule]]\nname = \"often\"\nat = \"22:13:28\"\nretime = {{ flush = \"1s\" }}\n\
         [[alarm]]\nname = \"many\"\nmeasurement = \"all\"\nvalue = \"packets\"\nabove = 9\nactions = [\"once\"]\n\
         [[action]]\nname = \"once\"\nretime = {{ flush = \"22:13:32\" }}\n"
    );
    let said = probe(&text, &seconds(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 9, 8, 7, 6]));
    // 1,700,000,001 and every three seconds after that are multiples of three. A schedule that is due when it is
    // retimed still runs.
    let totals: Vec<_> = said.of("all", true).iter().map(|one| one["packets"].as_u64().unwrap()).collect();
    assert_eq!(totals, [1, 2, 3, 4, 5 + 6 + 7, 8 + 9, 10 + 9 + 8, 7 + 6]);
}

#[test]
fn keys_are_alarmed_each_for_itself_and_addresses_of_a_network_together() {
    let mut frames = Vec::new();
    for n in 0..30u32 {
        frames.push((u64::from(n) * MS, udp(host(0x0100 + n), host(2), (1, 2), 10)));
        frames.push((u64::from(n) * MS + 1, udp(host(0x0200), host(2), (1, 2), 10)));
    }
    frames.push((1500 * MS, udp(host(0x0200), host(2), (1, 2), 10)));
    let text = "[[measurement]]\nname = \"n\"\nkey = [\"src-net\"]\nprefix = 24\nvalues = [\"packets\"]\n\
        [[measurement]]\nname = \"h\"\nkey = [\"src\"]\nvalues = [\"packets\"]\n\
        [[alarm]]\nname = \"net\"\nmeasurement = \"n\"\nvalue = \"packets\"\nabove = 25\n\
        [[alarm]]\nname = \"host\"\nmeasurement = \"h\"\nvalue = \"packets\"\nabove = 25\n";
    let said = probe(text, &frames);
    assert_eq!(
        said.alarms(),
        [
            "net raised 10.0.1.0/24",
            "net raised 10.0.2.0/24",
            "host raised 10.0.2.0",
            "net cleared 10.0.1.0/24",
            "net cleared 10.0.2.0/24",
            "host cleared 10.0.2.0"
        ]
    );
}
