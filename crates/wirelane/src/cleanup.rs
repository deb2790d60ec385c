//! The cleanup process of a capture: its cleanup actions and its rights.

use std::path::PathBuf;
use std::sync::Arc;

use wirelane_privsep::Capability;
use wirelane_privsep::cleanup::{ActionKind, CleanupProcess};
use wirelane_privsep::forked::{Access, Rights};

use crate::engine::ring::clsact;
use crate::settings::Settings;
use wirelane_netdev::Selected;

static KINDS: [ActionKind; 3] = [clsact::CLEANUP, wirelane_tune::polling::CLEANUP, wirelane_control::CLEANUP];

/// The cleanup process for a capture with these settings. Starts nothing yet.
pub(crate) fn for_capture(settings: &Settings, selected: &[Selected]) -> Arc<CleanupProcess> {
    let polled = settings.polling.is_some();
    let devices = selected.iter().filter(|_| polled).map(|one| one.device.name.clone()).collect();
    with(devices, settings.is_managed() || settings.service.is_some())
}

/// The cleanup process for an operation that does not change device settings.
pub(crate) fn for_filters() -> Arc<CleanupProcess> {
    with(Vec::new(), false)
}

fn with(devices: Vec<String>, socket: bool) -> Arc<CleanupProcess> {
    CleanupProcess::new(&KINDS, !devices.is_empty() || socket, move || {
        let (capabilities, mut folders): (_, Vec<(PathBuf, Access)>) = match &devices[..] {
            [] => (vec![Capability::NetAdmin], Vec::new()),
            devices => wirelane_tune::rights::for_settings(devices)?,
        };
        // A missing folder is reported when a socket is opened in it.
        let sockets = socket.then(wirelane_control::folder).and_then(Result::ok);
        folders.extend(sockets.map(|folder| (folder, Access::Remove)));
        Rights::new(&capabilities, &folders)
    })
}
