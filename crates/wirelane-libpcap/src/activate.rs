//! Starting the capture of a handle, and its errors in libpcap's words.

use std::ffi::{CStr, c_int};
use std::sync::Once;
use std::time::Duration;

use wirelane::{Builder, Capture, Error, LinkType, Selector};
use wirelane_netdev::Error as Netdev;
use wirelane_privsep::Error as Privsep;

use crate::abi;
use crate::handle::{Handle, Options};
use crate::inject::Sender;
use crate::names::Wanted;
use crate::read::{Live, Opened, SLICE};
use crate::share::Share;
use crate::system::system;

/// Minimum and maximum size of a ring in bytes.
const RING: std::ops::RangeInclusive<usize> = (1 << 20)..=(1 << 30);

/// `pcap_activate()`: starts the capture and returns libpcap's status.
pub(crate) fn activate(handle: &Handle) -> c_int {
    if handle.live.get().is_some() {
        return handle.fail(abi::ERROR_ACTIVATED, "can't perform  operation on activated capture");
    }
    let options = handle.options.borrow().clone();
    let wanted = match &options.device {
        Ok(wanted) => wanted,
        Err(reason) => return handle.fail(abi::ERROR_NO_SUCH_DEVICE, reason),
    };
    if options.monitor {
        return plainly(handle, abi::ERROR_RFMON_NOTSUP);
    }
    if options.protocol != 0 {
        let reason = "pcap_set_protocol_linux() is not there on devices that Wirelane captures: use a filter, as in \
                      'ether proto 0x88cc'";
        return handle.fail(abi::ERROR, reason);
    }
    match open(&options, wanted) {
        Ok((live, warning)) => {
            let (opened, precision) = (live.opened(), options.precision as u32);
            // SAFETY: takes only numbers.
            let twin = unsafe {
                (system().pcap_open_dead_with_tstamp_precision)(opened.dlt, opened.snap_len, precision)
            };
            if twin.is_null() {
                live.close();
                return handle.fail(abi::ERROR, "the system's libpcap has made no handle for filters");
            }
            handle.set_twin(twin);
            let _ = handle.live.set(live);
            match warning {
                Some(warning) => handle.fail(abi::WARNING, &warning),
                None => 0,
            }
        }
        Err(error) => {
            let status = status(&error);
            match &error {
                // libpcap returns no further message if the status says everything.
                _ if status == abi::ERROR_IFACE_NOT_UP => plainly(handle, status),
                // The library's message is written for the wirelane command.
                Error::Privsep(Privsep::MissingCapability { missing, action, .. }) => {
                    handle.fail(status, &format!("missing {missing}: {action} needs that; run it with sudo"))
                }
                _ => handle.fail(status, &error.to_string()),
            }
        }
    }
}

/// Sets libpcap's message for a status.
fn plainly(handle: &Handle, status: c_int) -> c_int {
    // SAFETY: a constant string of libpcap's.
    let text = unsafe { CStr::from_ptr((system().pcap_statustostr)(status)) };
    handle.fail(status, &text.to_string_lossy())
}

/// libpcap's status for an error.
fn status(error: &Error) -> c_int {
    match error {
        Error::Privsep(Privsep::MissingCapability { .. } | Privsep::UserNamespace { .. }) => {
            abi::ERROR_PERM_DENIED
        }
        Error::Netdev(
            Netdev::UnknownDevice { .. } | Netdev::UnknownQueue { .. } | Netdev::DeviceGone { .. },
        ) => abi::ERROR_NO_SUCH_DEVICE,
        other => match other.kernel_error() {
            Some(source) if source.raw_os_error() == Some(libc::ENETDOWN) => abi::ERROR_IFACE_NOT_UP,
            Some(source) if source.kind() == std::io::ErrorKind::PermissionDenied => abi::ERROR_PERM_DENIED,
            _ => abi::ERROR,
        },
    }
}

/// Environment variable for exclusive capture: packets received on the captured devices do not reach the host's stack.
const EXCLUSIVE: &str = "WIRELANE_EXCLUSIVE";

fn exclusive() -> Result<bool, Error> {
    match std::env::var_os(EXCLUSIVE) {
        None => Ok(false),
        Some(value) if value.is_empty() || value == "0" => Ok(false),
        Some(value) if value == "1" => Ok(true),
        Some(value) => {
            let reason = format!("'{}' is neither 0 nor 1", value.display());
            Err(Error::BadOption { option: EXCLUSIVE, reason })
        }
    }
}

/// Looks up the current device: it must be up, as with libpcap.
fn look_up(selector: &Selector) -> Result<wirelane::Device, Error> {
    let selected = selector.resolve()?;
    if !selected.device.up {
        let source = std::io::Error::from_raw_os_error(libc::ENETDOWN);
        return Err(Error::Kernel { action: selected.device.name, source });
    }
    Ok(selected.device)
}

/// Starts the capture; returns a warning if a requested setting is not fully met.
fn open(options: &Options, wanted: &Wanted) -> Result<(Live, Option<String>), Error> {
    static KEEP: Once = Once::new();
    KEEP.call_once(wirelane::keep_captures_over_fork);
    let device = look_up(&wanted.selector)?;
    let share = wanted.group.as_ref().map(|(name, of)| Share::take(&device, name, *of)).transpose()?;
    let snap_len = match options.snap_len {
        1..abi::LONGEST => options.snap_len,
        _ => abi::LONGEST,
    };
    let exclusive = exclusive()?;
    // 0: whole packets, of any length.
    let kept = if snap_len >= 131_008 { 0 } else { snap_len as usize };
    let mut builder = Builder::new([wanted.selector.clone()])
        .promiscuous(options.promiscuous)
        .filter_later(true)
        .immediate(options.immediate)
        .exclusive_all(exclusive)
        .snap_len(kept);
    if options.timeout > 0 && !options.immediate {
        builder = builder.patience(Duration::from_millis(options.timeout as u64).min(SLICE));
    }
    if options.buffer > 0 {
        builder = builder.ring_size((options.buffer as usize).clamp(*RING.start(), *RING.end()));
    }
    if let Some(share) = &share {
        builder = share.of(builder);
    }
    let capture: Capture = builder.open()?;
    // The rest of the message is about the wirelane command.
    let warning = capture.engine_reason().and_then(|reason| reason.split("; run it with sudo").next());
    let warning = warning.map(|reason| {
        format!("captured by packet sockets{}: {reason}", instead(&device).unwrap_or_default())
    });
    let sender = Sender::open(device.ifindex)?;
    let dlt = if device.link_type == LinkType::Raw { abi::DLT_RAW } else { abi::DLT_ETHERNET };
    let nano = options.precision == abi::PRECISION_NANO;
    let opened = Opened { dlt, snap_len, nano, is_loopback: device.loopback };
    let live = Live::new(capture, sender, share, opened)?;
    Ok((live, warning))
}

/// Advice for a program that cannot use BPF: dumpcap keeps only two capabilities of root, which do not suffice to load
/// a BPF program, and opens devices after that; but it starts external programs for extcap interfaces before it drops
/// the others.
fn instead(device: &wirelane::Device) -> Option<String> {
    let program = std::env::current_exe().ok()?;
    if program.file_name()? != "dumpcap" {
        return None;
    }
    let (name, last) = (&device.name, device.rx_queues.len().saturating_sub(1));
    let queues = if last == 0 { "0".to_owned() } else { format!("0-{last}") };
    Some(format!(" (dumpcap has no rights for more; {name}@{queues} has Wirelane capture, by its extcap)"))
}
