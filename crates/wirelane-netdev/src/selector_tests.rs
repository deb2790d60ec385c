//! Tests of [`super::Selector`]: tables, and properties over generated text.

use proptest::prelude::*;

use super::*;
use crate::RxQueue;

fn device_with(name: &str, queues: u32) -> Device {
    let mut device = Device::empty(name);
    device.rx_queues = (0..queues).map(|queue| RxQueue::new(name, queue)).collect();
    device
}

#[test]
fn one_selector() {
    let table = [
        ("eth1", "eth1", None),
        ("eth1@2", "eth1", Some(2..=2)),
        ("eth1@0-3", "eth1", Some(0..=3)),
        ("eth1@3-3", "eth1", Some(3..=3)),
        ("br0.100", "br0.100", None),
        ("enp1s0-lan", "enp1s0-lan", None),
        ("a@b@1", "a@b", Some(1..=1)),
        ("veth@4294967295", "veth", Some(u32::MAX..=u32::MAX)),
    ];
    for (input, device, queues) in table {
        let selector: Selector = input.parse().unwrap();
        assert_eq!((selector.device.as_str(), selector.queues), (device, queues), "{input}");
    }
}

#[test]
fn what_is_no_selector_says_why() {
    let table = [
        ("", "name is missing"),
        ("@1", "name is missing"),
        ("eth1@", "queue number is missing"),
        ("eth1@-3", "queue number is missing"),
        ("eth1@1-", "queue number is missing"),
        ("eth1@x", "'x' is not a queue number"),
        ("eth1@+1", "'+1' is not a queue number"),
        ("eth1@1-2-3", "'2-3' is not a queue number"),
        ("eth1@4294967296", "too large"),
        ("eth1@3-1", "ends before it starts"),
        ("eth 1", "white space"),
        ("eth1:0", "':'"),
        ("../eth1", "no '/'"),
        ("..", "no '/'"),
        ("eth\u{1b}[31m", "control characters"),
    ];
    for (input, reason) in table {
        let error = input.parse::<Selector>().unwrap_err();
        assert!(matches!(error, Error::BadSelector { .. }), "{input}");
        let text = error.to_string();
        assert!(text.contains(reason), "{input}: {text}");
        assert!(text.contains("as in eth1@0-3"), "the error shows how: {text}");
        assert!(!text.contains('\u{1b}'), "no raw control byte reaches a terminal: {text}");
    }
}

#[test]
fn lists_are_split_at_commas() {
    let list = Selector::parse_list_with("eth1@0-1, eth2,eth3@7", |_| false).unwrap();
    let written: Vec<String> = list.iter().map(ToString::to_string).collect();
    assert_eq!(written, ["eth1@0-1", "eth2", "eth3@7"]);
    assert!(Selector::parse_list_with("eth1,,eth2", |_| false).is_err());
    assert!(Selector::parse_list_with("", |_| false).is_err());
    assert!(Selector::parse_list_with("eth1@0,2", |_| false).is_ok_and(|list| list[1].device == "2"));
}

#[test]
fn a_device_of_that_very_name_comes_first() {
    let exists = |name: &str| ["eth1@2", "a,b"].contains(&name);
    let list = Selector::parse_list_with("eth1@2,eth1@3", exists).unwrap();
    assert_eq!(list[0], Selector { device: "eth1@2".to_owned(), queues: None });
    assert_eq!(list[1], Selector { device: "eth1".to_owned(), queues: Some(3..=3) });
    assert_eq!(Selector::parse_list_with("a,b", exists).unwrap(), [Selector::whole("a,b")]);
}

#[test]
fn patterns_stand_for_the_devices_that_are_up() {
    let link = |name: &str, up: bool| Link {
        name: name.to_owned(),
        flags: if up { libc::IFF_UP as u32 } else { 0 },
        ..Link::default()
    };
    let links = [link("lo", true), link("veth0", true), link("veth1", false), link("veth12", true)];
    let matching = |input: &str| -> Result<Vec<String>> {
        let selector: Selector = input.parse()?;
        assert!(selector.is_pattern(), "{input}");
        Ok(selector.matching(&links)?.iter().map(ToString::to_string).collect())
    };
    assert_eq!(matching("any").unwrap(), ["lo", "veth0", "veth12"]);
    assert_eq!(matching("veth*").unwrap(), ["veth0", "veth12"]);
    assert_eq!(matching("veth?@0-1").unwrap(), ["veth0@0-1"]);
    assert_eq!(matching("[lv]*[o2]").unwrap(), ["lo", "veth12"]);
    for (input, reason) in [("veth1?3", "no device that is up matches"), ("eth[", "it is not a pattern")] {
        assert!(matching(input).unwrap_err().to_string().contains(reason), "{input}");
    }
    assert!(!"veth0@1".parse::<Selector>().unwrap().is_pattern());
}

#[test]
fn queues_that_do_not_exist_are_named_with_those_that_do() {
    let table = [
        ("eth1@9", 4, 9, "eth1@0 to eth1@3"),
        ("eth1@2-9", 4, 4, "eth1@0 to eth1@3"),
        ("eth1@1", 1, 1, "only eth1@0"),
        ("eth1@2", 2, 2, "eth1@0 and eth1@1"),
    ];
    for (input, queues, first_missing, listed) in table {
        let selector: Selector = input.parse().unwrap();
        match selector.pick(device_with("eth1", queues)).unwrap_err() {
            Error::UnknownQueue { device, queue, known } => {
                assert_eq!((device.as_str(), queue, known.as_str()), ("eth1", first_missing, listed));
            }
            other => panic!("{input}: {other}"),
        }
    }
}

#[test]
fn existing_queues_are_picked() {
    let pick = |input: &str| input.parse::<Selector>().unwrap().pick(device_with("eth1", 4)).unwrap();
    assert_eq!(pick("eth1").queues, [0, 1, 2, 3]);
    assert!(pick("eth1").is_whole_device());
    assert_eq!(pick("eth1@3").queues, [3]);
    assert_eq!(pick("eth1@1-2").queues, [1, 2]);
    assert!(!pick("eth1@1-2").is_whole_device());
}

proptest! {
    #[test]
    fn whatever_is_written_reads_back(
        device in "[a-zA-Z0-9._@-]{1,15}",
        queues in prop::option::of((any::<u32>(), any::<u32>())),
    ) {
        prop_assume!(device != "." && device != "..");
        // A bare name with '@' in it is ambiguous and needs the list of devices.
        prop_assume!(queues.is_some() || !device.contains('@'));
        let queues = queues.map(|(a, b)| a.min(b)..=a.max(b));
        let selector = Selector { device, queues };
        let again: Selector = selector.to_string().parse().unwrap();
        prop_assert_eq!(again, selector);
    }

    #[test]
    fn any_text_is_read_or_refused(input in any::<String>()) {
        for exists in [true, false] {
            if let Ok(list) = Selector::parse_list_with(&input, |_| exists) {
                prop_assert!(!list.is_empty());
                for selector in list {
                    prop_assert!(check_name(&selector.device).is_ok());
                    prop_assert!(selector.queues.is_none_or(|range| range.start() <= range.end()));
                }
            }
        }
    }
}
