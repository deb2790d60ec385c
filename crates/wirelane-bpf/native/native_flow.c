/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Flows compiled natively: what crates/wirelane-bpf/src/flow.rs calls, and the layouts for the test that
 * compares them. */
#include <stddef.h>
#include <string.h>

#include "lib/application.h"
#include "lib/flow_cache.h"

/* As in native_layout.h. */
struct wl_native_field {
	const char *name;
	__u32 offset;
	__u32 size;
};

struct wl_native_constant {
	const char *name;
	__u64 value;
};

void wl_native_flow_key(struct wl_flow_key *key, const struct wl_ip *ip, const struct wl_flow_packet *packet);
void wl_native_flow_update(struct wl_flow *flow, const struct wl_ip *ip, const struct wl_flow_packet *packet);
void wl_native_flow_merge(struct wl_flow *flow, const struct wl_flow *part);
__u32 wl_native_flow_expired(const struct wl_flow *flow, __u64 now_ns,
			     const struct wl_flow_timeouts *timeouts);
__u32 wl_native_flow_cut(const struct wl_flow *flow, const struct wl_ip *ip, __u64 ts_ns,
			 const struct wl_flow_timeouts *timeouts);
__u32 wl_native_application(const __u8 *payload, size_t captured, __u32 length, const struct wl_ip *ip);
__u32 wl_native_flow_cut_by_part(const struct wl_flow *flow, const struct wl_flow *part,
				 const struct wl_flow_timeouts *timeouts);
void wl_native_flow_splits(struct wl_flow_splits *splits, const struct wl_flow_timeouts *timeouts);
__u32 wl_native_flow_keep(struct wl_flow_set *sets, __u32 count, __u32 epoch, __u32 seed,
			  const struct wl_flow_splits *splits, const struct wl_ip *ip,
			  const struct wl_flow_packet *packet, struct wl_flow_part *out);
const struct wl_native_field *wl_native_flow_layout(void);
const struct wl_native_constant *wl_native_flow_constants(void);

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

/* What flows.h does with a packet, over `count` sets, a power of two. 1: *out has to be handed on.
 */
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
	/* As there: a name comes after. */
	if (packet->application && wl_flow_is_nameless(set, chosen))
		wl_flow_name(set, chosen, packet->application);
	return !!(chosen & WL_FLOW_OUT);
}

#define WHOLE(type)	   {#type, 0, sizeof(struct type)}
#define FIELD(type, field) {#type "." #field, offsetof(struct type, field), sizeof(((struct type *)0)->field)}
#define CONSTANT(name)	   {#name, name}

const struct wl_native_field *wl_native_flow_layout(void)
{
	static const struct wl_native_field fields[] = {
	    WHOLE(wl_flow_key),
	    FIELD(wl_flow_key, src),
	    FIELD(wl_flow_key, dst),
	    FIELD(wl_flow_key, src_port),
	    FIELD(wl_flow_key, dst_port),
	    FIELD(wl_flow_key, l3),
	    FIELD(wl_flow_key, proto),
	    FIELD(wl_flow_key, eth_type),
	    FIELD(wl_flow_key, vlan),
	    FIELD(wl_flow_key, device),
	    FIELD(wl_flow_key, tunnel_id),
	    FIELD(wl_flow_key, tunnel),
	    FIELD(wl_flow_key, flags),
	    FIELD(wl_flow_key, pad),
	    WHOLE(wl_flow),
	    FIELD(wl_flow, packets),
	    FIELD(wl_flow, bytes),
	    FIELD(wl_flow, wire_bytes),
	    FIELD(wl_flow, first_ns),
	    FIELD(wl_flow, last_ns),
	    FIELD(wl_flow, syn_ns),
	    FIELD(wl_flow, ack_ns),
	    FIELD(wl_flow, first_data_ns),
	    FIELD(wl_flow, last_data_ns),
	    FIELD(wl_flow, first_seq),
	    FIELD(wl_flow, last_seq),
	    FIELD(wl_flow, first_data_seq),
	    FIELD(wl_flow, next_seq),
	    FIELD(wl_flow, retransmitted),
	    FIELD(wl_flow, reordered),
	    FIELD(wl_flow, fragments),
	    FIELD(wl_flow, min_length),
	    FIELD(wl_flow, max_length),
	    FIELD(wl_flow, mpls_label),
	    FIELD(wl_flow, queue),
	    FIELD(wl_flow, flags),
	    FIELD(wl_flow, tos),
	    FIELD(wl_flow, min_ttl),
	    FIELD(wl_flow, max_ttl),
	    FIELD(wl_flow, tcp_flags),
	    FIELD(wl_flow, first_tcp_flags),
	    FIELD(wl_flow, application),
	    FIELD(wl_flow, pad),
	    WHOLE(wl_flow_packet),
	    FIELD(wl_flow_packet, ts_ns),
	    FIELD(wl_flow_packet, wire_len),
	    FIELD(wl_flow_packet, tunnel_id),
	    FIELD(wl_flow_packet, mpls_label),
	    FIELD(wl_flow_packet, eth_type),
	    FIELD(wl_flow_packet, vlan_tci),
	    FIELD(wl_flow_packet, flags),
	    FIELD(wl_flow_packet, device),
	    FIELD(wl_flow_packet, queue),
	    FIELD(wl_flow_packet, tunnel),
	    FIELD(wl_flow_packet, application),
	    FIELD(wl_flow_packet, segment_size),
	    FIELD(wl_flow_packet, headers),
	    FIELD(wl_flow_packet, pad),
	    WHOLE(wl_flow_timeouts),
	    FIELD(wl_flow_timeouts, active_ns),
	    FIELD(wl_flow_timeouts, idle_ns),
	    FIELD(wl_flow_timeouts, ended_ns),
	    WHOLE(wl_flow_splits),
	    FIELD(wl_flow_splits, gap_ns),
	    FIELD(wl_flow_splits, grid_shift),
	    FIELD(wl_flow_splits, pad),
	    FIELD(wl_flow_splits, period_ns),
	    FIELD(wl_flow_splits, origin_ns),
	    WHOLE(wl_flow_part),
	    FIELD(wl_flow_part, key),
	    FIELD(wl_flow_part, flow),
	    WHOLE(wl_flow_tag),
	    FIELD(wl_flow_tag, epoch),
	    FIELD(wl_flow_tag, hash),
	    WHOLE(wl_flow_set),
	    FIELD(wl_flow_set, tags),
	    FIELD(wl_flow_set, parts),
	    {NULL, 0, 0},
	};

	return fields;
}

const struct wl_native_constant *wl_native_flow_constants(void)
{
	static const struct wl_native_constant constants[] = {
	    CONSTANT(WL_FLOW_NO_VLAN),
	    CONSTANT(WL_FLOW_KEY_EGRESS),
	    CONSTANT(WL_FLOW_KEY_PORTS),
	    CONSTANT(WL_FLOW_SYN),
	    CONSTANT(WL_FLOW_SYNACK),
	    CONSTANT(WL_FLOW_ACK),
	    CONSTANT(WL_FLOW_TCP),
	    CONSTANT(WL_FLOW_DATA),
	    CONSTANT(WL_FLOW_MPLS),
	    CONSTANT(WL_FLOW_TTL),
	    CONSTANT(WL_FLOW_REORDER_NS),
	    CONSTANT(WL_FLOW_WAYS),
	    CONSTANT(WL_FLOW_GOES_ON),
	    CONSTANT(WL_FLOW_IDLE),
	    CONSTANT(WL_FLOW_ACTIVE),
	    CONSTANT(WL_FLOW_ENDED),
	    CONSTANT(WL_FLOW_FORCED),
	    CONSTANT(WL_FLOW_RESOURCES),
	    CONSTANT(WL_APP_UNKNOWN),
	    CONSTANT(WL_APP_TLS),
	    CONSTANT(WL_APP_DTLS),
	    CONSTANT(WL_APP_HTTP),
	    CONSTANT(WL_APP_HTTP2),
	    CONSTANT(WL_APP_SSH),
	    CONSTANT(WL_APP_DNS),
	    CONSTANT(WL_APP_MDNS),
	    CONSTANT(WL_APP_LLMNR),
	    CONSTANT(WL_APP_QUIC),
	    CONSTANT(WL_APP_SIP),
	    CONSTANT(WL_APP_RTSP),
	    CONSTANT(WL_APP_STUN),
	    CONSTANT(WL_APP_BITTORRENT),
	    CONSTANT(WL_APP_SMB1),
	    CONSTANT(WL_APP_SMB2),
	    CONSTANT(WL_APP_RDP),
	    CONSTANT(WL_APP_NTP),
	    CONSTANT(WL_APP_DHCP),
	    CONSTANT(WL_APP_MQTT),
	    CONSTANT(WL_APP_SMTP),
	    CONSTANT(WL_APP_POSTGRESQL),
	    CONSTANT(WL_APP_SSDP),
	    CONSTANT(WL_APP_BGP),
	    {NULL, 0},
	};

	return constants;
}
