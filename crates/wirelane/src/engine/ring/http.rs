//! The directions of connections that lanes follow for a group (`bpf/http.h`).

use std::os::fd::{AsFd as _, AsRawFd as _};
use std::sync::Arc;

use libbpf_rs::libbpf_sys as sys;
use libbpf_rs::{MapCore as _, MapFlags, MapHandle, MapType};
use wirelane_bpf::flow::FlowKey;
use wirelane_bpf::http::HttpWay;

use super::instance::Instance;
use crate::error::{Error, Result};
use crate::http_heads::KernelHttp;

/// Creates the map of a group that is joining, if it requests one, and puts it into the instance's map for the lanes.
///
/// # Errors
/// The error that the kernel returned.
pub(super) fn create(
    instance: &Instance,
    group: usize,
    wish: Option<KernelHttp>,
) -> Result<Option<Arc<MapHandle>>> {
    let Some(wish) = wish else { return Ok(None) };
    let opts =
        sys::bpf_map_create_opts { sz: size_of::<sys::bpf_map_create_opts>() as _, ..Default::default() };
    let (key, value) = (size_of::<FlowKey>() as u32, size_of::<HttpWay>() as u32);
    let what = || {
        format!(
            "allocating memory for {} directions of HTTP connections (a control group's memory limit counts)",
            wish.directions
        )
    };
    let map =
        MapHandle::create(MapType::LruHash, Some("wl_http_way"), key, value, wish.directions as u32, &opts)
            .map_err(|e| Error::bpf(what(), e))?;
    instance
        .http
        .update(&(group as u32).to_ne_bytes(), &map.as_fd().as_raw_fd().to_ne_bytes(), MapFlags::ANY)
        .map_err(|e| Error::bpf("handing a map of HTTP connections to the capture program", e))?;
    Ok(Some(Arc::new(map)))
}
