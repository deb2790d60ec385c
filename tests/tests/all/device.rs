//! Devices as the library reports them, on veth pairs in states that the test sets.

use wirelane::device::{Device, Duplex, Error, Monitor, Promiscuous, Selector, XdpMode};
use wirelane_tests::{ForeignXdp, Lab, in_own_process, open_descriptors, require_root};

#[test]
fn a_device_is_read_in_full() {
    if !require_root("a_device_is_read_in_full") {
        return;
    }
    let lab = Lab::new(4).unwrap();
    let end = lab.receiver();
    let look = || lab.enter(&end.namespace, || Device::open(&end.device).unwrap()).unwrap();

    let device = look();
    assert_eq!((device.name.as_str(), device.driver.as_deref()), ("rx0", Some("veth")));
    assert_eq!(device.mac.unwrap().0, end.mac);
    assert_eq!((device.mtu, device.up, device.carrier), (1500, true, true));
    assert_eq!((device.speed_mbps, device.duplex), (Some(10_000), Some(Duplex::Full)));
    assert_eq!((device.rx_queues.len(), device.max_rx_queues), (4, 4));
    assert!(device.xdp.is_empty());
    if let Some(features) = device.xdp_features {
        assert!(features.native && features.redirect && !features.zero_copy && !features.offload);
    }

    lab.exec(&end.namespace, &["ethtool", "-L", "rx0", "rx", "2"]).unwrap();
    let fewer = look();
    assert_eq!((fewer.rx_queues.len(), fewer.max_rx_queues), (2, 4));

    lab.exec(&lab.sender().namespace, &["ip", "link", "set", "tx0", "down"]).unwrap();
    assert!(look().up && !look().carrier);
    lab.exec(&end.namespace, &["ip", "link", "set", "rx0", "down"]).unwrap();
    assert!(!look().up);

    lab.exec(
        &end.namespace,
        &["ip", "link", "property", "add", "dev", "rx0", "altname", "capture-port-of-rack-12"],
    )
    .unwrap();
    let by_alternative =
        lab.enter(&end.namespace, || Device::open("capture-port-of-rack-12").unwrap()).unwrap();
    assert_eq!(by_alternative.name, "rx0");
}

#[test]
fn sysfs_of_another_namespace_is_not_believed() {
    if !require_root("sysfs_of_another_namespace_is_not_believed") {
        return;
    }
    let lab = Lab::new(2).unwrap();
    let end = lab.receiver();
    // In a thread that has entered the namespace, as after `nsenter --net`, sysfs still shows the test's own namespace.
    let device = lab.enter(&end.namespace, || Device::open(&end.device).unwrap()).unwrap();
    assert_eq!(device.rx_queues.len(), 2, "what a capture needs does not come from sysfs");
    assert_eq!(device.threaded_napi, None, "what only sysfs has is absent");
    assert!(device.irqs.is_empty());
}

#[test]
fn selectors_name_what_exists() {
    if !require_root("selectors_name_what_exists") {
        return;
    }
    let lab = Lab::new(4).unwrap();
    let end = lab.receiver();
    lab.exec(&end.namespace, &["ip", "link", "add", "rx0@7", "type", "veth", "peer", "name", "odd,name"])
        .unwrap();
    lab.enter(&end.namespace, || {
        let resolve = |input: &str| Selector::resolve_all(&Selector::parse_list(input)?);
        let all = resolve("rx0@0-1,rx0@3,lo").unwrap();
        assert_eq!(all.len(), 2, "one entry per device");
        assert_eq!((all[0].device.name.as_str(), &all[0].queues[..]), ("rx0", &[0, 1, 3][..]));
        assert_eq!((all[1].device.name.as_str(), &all[1].queues[..]), ("lo", &[0][..]));

        let error = resolve("rx0@9").unwrap_err().to_string();
        assert_eq!(error, "'rx0' has no RX queue 9; it has rx0@0 to rx0@3");
        match resolve("rx1").unwrap_err() {
            Error::UnknownDevice { name, known } => {
                assert_eq!(name, "rx1");
                assert!(known.starts_with("lo, ") && known.contains("rx0"), "{known}");
            }
            other => panic!("{other}"),
        }

        // The kernel accepts such names, so a name is tried as a whole before it is split.
        assert_eq!(resolve("rx0@7").unwrap()[0].device.name, "rx0@7");
        assert_eq!(resolve("odd,name").unwrap()[0].device.name, "odd,name");
        assert_eq!(resolve("rx0@7@0").unwrap()[0].device.name, "rx0@7");
    })
    .unwrap();
}

#[test]
fn attached_programs_are_named() {
    if !require_root("attached_programs_are_named") {
        return;
    }
    let lab = Lab::new(2).unwrap();
    let end = lab.receiver();
    for (native, mode) in [(true, XdpMode::Native), (false, XdpMode::Generic)] {
        let foreign = ForeignXdp::attach(&lab, end, native).unwrap();
        assert!(foreign.is_attached().unwrap());
        let device = lab.enter(&end.namespace, || Device::open(&end.device).unwrap()).unwrap();
        assert_eq!(device.xdp.len(), 1);
        assert_eq!(device.xdp[0].mode, mode);
        assert_eq!(device.xdp[0].name.as_deref(), Some("other_program"));
        drop(foreign);
        let device = lab.enter(&end.namespace, || Device::open(&end.device).unwrap()).unwrap();
        assert!(device.xdp.is_empty());
    }
}

#[test]
fn promiscuous_mode_ends_with_its_guard() {
    if !require_root("promiscuous_mode_ends_with_its_guard") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let end = lab.receiver();
    // The count of memberships, as `ip -d link` shows it.
    let memberships = || {
        let text = lab.exec(&end.namespace, &["ip", "-d", "link", "show", "rx0"]).unwrap();
        let words: Vec<&str> = text.split_whitespace().collect();
        let at = words.iter().position(|word| *word == "promiscuity").unwrap();
        words[at + 1].parse::<u32>().unwrap()
    };
    assert_eq!(memberships(), 0);
    let ifindex = lab.enter(&end.namespace, || Device::open(&end.device).unwrap().ifindex).unwrap();
    let guards =
        lab.enter(&end.namespace, || [(); 2].map(|()| Promiscuous::enter(ifindex).unwrap())).unwrap();
    assert_eq!(memberships(), 2);
    drop(guards);
    assert_eq!(memberships(), 0);
}

#[test]
fn a_device_that_goes_is_noticed() {
    if !require_root("a_device_that_goes_is_noticed") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let end = lab.receiver();
    lab.enter(&end.namespace, || {
        let ifindex = Device::open(&end.device).unwrap().ifindex;
        let mut monitor = Monitor::open().unwrap();
        assert!(monitor.exists(ifindex).unwrap() && monitor.is_up(ifindex).unwrap());
        lab.exec(&end.namespace, &["ip", "link", "set", &end.device, "down"]).unwrap();
        assert!(monitor.exists(ifindex).unwrap() && !monitor.is_up(ifindex).unwrap());
        lab.exec(&end.namespace, &["ip", "link", "del", &end.device]).unwrap();
        assert!(!monitor.exists(ifindex).unwrap() && !monitor.is_up(ifindex).unwrap());
        assert!(matches!(monitor.statistics(ifindex), Err(Error::DeviceGone { .. })));
    })
    .unwrap();
}

#[test]
fn nothing_stays_open() {
    if !in_own_process("device::nothing_stays_open") {
        return;
    }
    let descriptors = || open_descriptors(std::process::id()).unwrap();
    Device::list().unwrap();
    let before = descriptors();
    for _ in 0..50 {
        Device::list().unwrap();
        wirelane::device::exists(1).unwrap();
    }
    assert_eq!(descriptors(), before);
}
