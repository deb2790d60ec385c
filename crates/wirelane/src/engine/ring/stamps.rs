//! Clock of a device's timestamps, and its requirements.

use crate::clock::CardClock;
use crate::error::{Error, Result};
use crate::hook::Hook;
use crate::settings::Clock;
use wirelane_netdev::{self as device, CardStamps, Device, XdpMode};

/// The clock by which packets of this device will be stamped, where that is the card's.
///
/// The card's setting is read and not changed: it affects the whole machine, and linuxptp may depend on it.
///
/// # Errors
/// [`Error::Unsupported`], which names the requirements of the requested clock.
pub(crate) fn card_clock(asked: Clock, device: &Device, hook: Hook) -> Result<Option<CardClock>> {
    let cannot = |needs: &str, instead: &str| {
        Err(Error::Unsupported {
            what: format!("stamping packets of {} with {asked} time", device.name),
            needs: needs.into(),
            instead: instead.into(),
        })
    };
    match asked {
        Clock::Packet => Ok(None),
        Clock::Batch if crate::kernel::tells_batches() => Ok(None),
        Clock::Batch => {
            cannot("Linux 6.11 or newer with BTF", "--clock packet reads the clock for every packet")
        }
        Clock::Card => {
            let without = "--clock packet stamps with the kernel's clock";
            match hook {
                Hook::Xdp(XdpMode::Native)
                    if !device.xdp_features.as_ref().is_some_and(|f| f.rx_timestamp) =>
                {
                    return cannot(
                        "a driver that tells XDP programs the card's time",
                        "--hook tc, or --clock packet",
                    );
                }
                Hook::Xdp(XdpMode::Generic | XdpMode::Offloaded) => {
                    return cannot("native XDP or tc: generic XDP is not told the card's time", without);
                }
                Hook::Egress => return cannot("received packets", "--direction rx, or --clock packet"),
                Hook::Xdp(XdpMode::Native) | Hook::Ingress => {}
            }
            match device::card_clock(&device.name)? {
                CardStamps::None => cannot("a card with a clock of its own (see ethtool -T)", without),
                CardStamps::Ptp => cannot(
                    "a card that stamps all received packets: this one only stamps those of PTP (see ethtool -T)",
                    without,
                ),
                CardStamps::Off { .. } => cannot(
                    &format!(
                        "time stamps for all received packets, which are off: hwstamp_ctl -i {} -r 1 (linuxptp) \
                         switches them on",
                        device.name
                    ),
                    without,
                ),
                CardStamps::On { clock } => CardClock::open(clock).map(Some),
            }
        }
    }
}
