//! Devices that come up during a capture and match one of its patterns.

use std::sync::Arc;

use wirelane_privsep::broker::Broker;

use super::part::Part;
use crate::engine::ring::many::Attacher;
use crate::error::Result;
use crate::hook::HookPoint;
use crate::interfaces::Slots;
use crate::settings::{Direction, Settings};

/// Registers the parts for later devices with the broker; `None` without such parts. `first`: number of the first of them.
///
/// # Errors
/// As [`Broker::register`].
pub(super) fn register(
    parts: &[Part],
    first: usize,
    settings: &Settings,
    broker: &Arc<Broker>,
) -> Result<Option<(Arc<Slots>, Attacher)>> {
    let parts: Vec<&Part> = parts.iter().filter(|part| part.is_many()).collect();
    let Some(any) = parts.first() else { return Ok(None) };
    let instances: Vec<_> = parts.iter().map(|part| Arc::clone(part.membership.instance())).collect();
    let hooks = instances.iter().map(|instance| HookPoint::of(instance.hook)).collect();
    let slots = Slots::new(first, hooks, any.selected.device.name.clone());
    let one_way_loopback = settings.direction == Direction::Auto;
    let patterns = settings.patterns.iter().filter(|pattern| pattern.queues.is_none());
    let patterns: Vec<_> = patterns.cloned().collect();
    let attacher = Attacher::register(instances, &patterns, one_way_loopback, broker)?;
    Ok(Some((Arc::new(slots), attacher)))
}
