//! The cleanup process of a capture: which actions it can undo, and with which rights.

use std::path::PathBuf;
use std::sync::Arc;

use wirelane_privsep::Capability;
use wirelane_privsep::cleanup::{ActionKind, CleanupProcess};
use wirelane_privsep::forked::{Access, Rights};

use crate::engine::ring::clsact;
use crate::settings::Settings;
use wirelane_netdev::Selected;

static KINDS: [ActionKind; 3] = [clsact::CLEANUP, wirelane_tune::polling::CLEANUP, wirelane_control::CLEANUP];

/// For a capture with these settings. Starts nothing yet.
pub(crate) fn for_capture(settings: &Settings, selected: &[Selected]) -> Arc<CleanupProcess> {
    let polled = settings.polling.is_some();
    let devices = selected.iter().filter(|_| polled).map(|one| one.device.name.clone()).collect();
    with(devices, settings.is_managed() || settings.service)
}

/// For what does not change settings of devices.
pub(crate) fn for_filters() -> Arc<CleanupProcess> {
    with(Vec::new(), false)
}

fn with(devices: Vec<String>, socket: bool) -> Arc<CleanupProcess> {
    CleanupProcess::new(&KINDS, !devices.is_empty() || socket, move || {
        let (capabilities, mut folders): (_, Vec<(PathBuf, Access)>) = match &devices[..] {
            [] => (vec![Capability::NetAdmin], Vec::new()),
            devices => wirelane_tune::rights::for_settings(devices)?,
        };
        // That there is no folder is said by whoever wants to make a socket in it.
        let sockets = socket.then(wirelane_control::folder).and_then(Result::ok);
        folders.extend(sockets.map(|folder| (folder, Access::Remove)));
        Rights::new(&capabilities, &folders)
    })
}
