/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Flows compiled natively, for crates/wirelane-bpf/src/flow.rs. */
#include <stddef.h>
#include <string.h>

#include "native.h"
#include "lib/application.h"
#include "lib/flow_cache.h"

void wl_native_flow_key(struct wl_flow_key *key, const struct wl_ip *ip, const struct wl_flow_packet *packet)
{
	wl_flow_key_of(key, ip, packet);
}

void wl_native_flow_update(struct wl_flow *flow, const struct wl_ip *ip, const struct wl_flow_packet *packet)
{
	wl_flow_update(flow, ip, packet);
}

void wl_native_flow_merge(struct wl_flow *flow, const struct wl_flow *part)
{
	wl_flow_merge(flow, part);
}

__u32 wl_native_flow_expired(const struct wl_flow *flow, __u64 now_ns,
			     const struct wl_flow_timeouts *timeouts)
{
	return wl_flow_expired(flow, now_ns, timeouts);
}

__u32 wl_native_flow_cut(const struct wl_flow *flow, const struct wl_ip *ip, __u64 ts_ns,
			 const struct wl_flow_timeouts *timeouts)
{
	return wl_flow_cut(flow, ip, ts_ns, timeouts);
}

__u32 wl_native_application(const __u8 *payload, size_t captured, __u32 length, const struct wl_ip *ip)
{
	__u8 window[WL_APPLICATION_WINDOW] = {0};

	memcpy(window, payload, captured < sizeof(window) ? captured : sizeof(window));
	return wl_application(window, length, ip);
}

__u32 wl_native_flow_cut_by_part(const struct wl_flow *flow, const struct wl_flow *part,
				 const struct wl_flow_timeouts *timeouts)
{
	return wl_flow_cut_by_part(flow, part, timeouts);
}

void wl_native_flow_splits(struct wl_flow_splits *splits, const struct wl_flow_timeouts *timeouts)
{
	splits->gap_ns = timeouts->idle_ns < timeouts->ended_ns ? timeouts->idle_ns : timeouts->ended_ns;
	splits->grid_shift = wl_flow_grid_shift(timeouts->active_ns);
	splits->pad = 0;
	splits->period_ns = splits->origin_ns = 0;
}

/* Adds a packet as flows.h does, over `count` sets, a power of two. 1: *out has to be exported. */
__u32 wl_native_flow_keep(struct wl_flow_set *sets, __u32 count, __u32 epoch, __u32 seed,
			  const struct wl_flow_splits *splits, const struct wl_ip *ip,
			  const struct wl_flow_packet *packet, struct wl_flow_part *out)
{
	struct wl_flow_packet nameless = *packet;
	struct wl_flow_key key;
	struct wl_flow_set *set;
	__u32 hash, chosen;

	wl_flow_key_of(&key, ip, packet);
	if (splits->period_ns)
		wl_flow_key_more(&key, ip);
	hash = wl_flow_key_hash(&key, seed);
	set = &sets[hash & (count - 1)];
	chosen = wl_flow_choose(set, epoch, hash, &key, ip, packet->ts_ns, splits);
	if (chosen & WL_FLOW_OUT)
		*out = set->parts[chosen & WL_FLOW_WAY];
	nameless.application = 0;
	wl_flow_put(set, chosen, epoch, hash, &key, ip, &nameless);
	/* As in the kernel: the application is set afterwards. */
	if (packet->application && wl_flow_is_nameless(set, chosen))
		wl_flow_name(set, chosen, packet->application);
	return !!(chosen & WL_FLOW_OUT);
}
