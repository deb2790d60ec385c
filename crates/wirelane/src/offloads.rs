//! Offloads of a device that an XDP program turns off, and that are on again after it.

use std::sync::Arc;

use wirelane_netdev::{Device, XdpMode};
use wirelane_privsep::broker::Broker;
use wirelane_tune::offloads::{OffloadHold, RequestedOffloads};

use crate::error::Result;
use crate::hook::Hook;

/// To be dropped after the program has gone.
#[derive(Debug)]
pub(crate) enum Offloads {
    /// Of a native program.
    Requested { _again: RequestedOffloads },
    /// Of a generic program.
    Held { _hold: OffloadHold },
}

impl Offloads {
    /// Notes what is on before a program is attached to this hook; `None` if it turns nothing off.
    ///
    /// # Errors
    /// If no broker runs and none can be started.
    pub(crate) fn before(device: &Device, hook: Hook, broker: &Arc<Broker>) -> Result<Option<Offloads>> {
        match hook {
            Hook::Xdp(XdpMode::Native) => {
                let noted = RequestedOffloads::note(device, broker)?;
                Ok(noted.map(|again| Offloads::Requested { _again: again }))
            }
            Hook::Xdp(XdpMode::Generic) => match OffloadHold::take(device, broker) {
                Ok(held) => Ok(held.map(|hold| Offloads::Held { _hold: hold })),
                // The journal is a file of root's; a capture with capabilities only goes on without it.
                Err(e) => {
                    tracing::warn!(
                        "{}: offloads that generic XDP turns off stay off after it: {e}",
                        device.name
                    );
                    Ok(None)
                }
            },
            _ => Ok(None),
        }
    }
}
