//! Jumbo frames, which arrive in several buffers of the driver.

use std::process::Command;

use serde_json::Value;
use wirelane_tests::kernel_version;

use super::{Bench as _, Guest, LIMIT, field, last_of};

/// First kernel whose virtio_net passes packets in several buffers to native XDP.
const VIRTIO_JUMBO: (u32, u32) = (6, 3);
const JUMBO: u64 = 9000;
const USUAL: u64 = 1500;

fn ip(words: &[&str]) -> Result<Vec<u8>, String> {
    let output = Command::new("ip").args(words).output().unwrap();
    if output.status.success() {
        Ok(output.stdout)
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into())
    }
}

/// A device's MTU, restored on drop: other tests need the usual one.
struct Mtu<'a>(&'a str);

impl<'a> Mtu<'a> {
    /// The largest MTU of the device.
    fn most(device: &str) -> u64 {
        let text = ip(&["-details", "-json", "link", "show", device]).unwrap();
        let links: Value = serde_json::from_slice(&text).unwrap();
        field(&links[0], "max_mtu")
    }

    fn set(device: &'a str, bytes: u64) -> Mtu<'a> {
        // Created before the change, so that a failed change is reverted too.
        let mtu = Mtu(device);
        ip(&["link", "set", device, "mtu", &bytes.to_string()])
            .unwrap_or_else(|why| panic!("{device} cannot be set to an MTU of {bytes}: {why}"));
        mtu
    }
}

impl Drop for Mtu<'_> {
    fn drop(&mut self) {
        if let Err(why) = ip(&["link", "set", self.0, "mtu", &USUAL.to_string()]) {
            println!("the MTU of {} stays as it is: {why}", self.0);
        }
    }
}

#[test]
fn virtio_net_jumbo_frames() {
    let Some(guest) = Guest::find("virtio_net with jumbo frames") else { return };
    let most = Mtu::most(guest.device());
    if most < JUMBO {
        println!("left out: virtio_net with jumbo frames (its MTU is {most} at most)");
        return;
    }
    let _mtu = Mtu::set(guest.device(), JUMBO);
    for hook in ["native", "generic", "tc"] {
        if hook == "native" && kernel_version().unwrap() < VIRTIO_JUMBO {
            let words = ["count", "-i", guest.device(), "--hook", hook];
            let refused = guest.wirelane(&words).finish(LIMIT).unwrap();
            assert_eq!(refused.status.code(), Some(1), "{}", refused.stderr);
            assert!(refused.stderr.contains("MTU"), "{}", refused.stderr);
            println!("left out: virtio_net with jumbo frames by native XDP (needs Linux 6.3, and says so)");
            continue;
        }
        let mut counter = guest.wirelane(&["count", "-i", guest.device(), "--hook", hook, "--json"]);
        counter.wait_ready(LIMIT).unwrap();
        guest.send_with(300, "socket", "--size 9014");
        let last = last_of(counter, 300);
        let counted = (field(&last, "analysed"), field(&last, "lost"), field(&last, "bytes"));
        assert_eq!(counted, (300, 0, 300 * 9014), "{hook}: {last}");
    }
}
