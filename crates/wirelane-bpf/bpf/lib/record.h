/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Conversion of the parser's result to the header of a record. */
#ifndef WL_PACKET_RECORD_H
#define WL_PACKET_RECORD_H

#include "lib/hash.h"

/*
 * Fills the fields of a record that the parser knows: hash, offsets, l3, proto, vlan_tci, link and the low
 * byte of flags (its high byte becomes 0). The caller sets the others: ts_ns, cap_len, wire_len, rule_id,
 * queue, kind. `chosen` is the result of wl_choose(), `hash` that of wl_packet_hash().
 */
static __always_inline void wl_fill_record(struct wl_record *record, const struct wl_parsed *parsed,
					   const struct wl_ip *chosen, __u32 hash)
{
	__u32 flags = parsed->flags;

	if (chosen->flags & WL_IP_FRAGMENT)
		flags |= WL_PKT_FRAGMENT;
	if (chosen == &parsed->inner)
		flags |= WL_PKT_INNER;
	record->hash = hash;
	record->flags = flags;
	record->l3_off = chosen->l3_off;
	record->l4_off = chosen->l4_off;
	record->payload_off = chosen->payload_off;
	record->vlan_tci = parsed->vlan_tci[0];
	record->l3 = chosen->l3;
	record->proto = chosen->proto;
	record->link = parsed->link;
}

/* Moves the offsets of all headers by `bytes`. */
static __always_inline void wl_shift(struct wl_ip *layer, __u16 bytes)
{
	if (layer->l3_off != WL_NO_OFFSET)
		layer->l3_off += bytes;
	if (layer->l4_off != WL_NO_OFFSET)
		layer->l4_off += bytes;
	if (layer->payload_off != WL_NO_OFFSET)
		layer->payload_off += bytes;
}

/*
 * Inserts a VLAN tag that was stripped before parsing into the result: the tag comes first, and all headers
 * behind it move by 4 bytes.
 */
static __always_inline void wl_put_vlan_back(struct wl_parsed *parsed, __u16 tci)
{
	parsed->vlan_tci[1] = parsed->vlan_tci[0];
	parsed->vlan_tci[0] = tci;
	parsed->vlan_count++;
	parsed->flags |= WL_PKT_VLAN;
	wl_shift(&parsed->outer, 4);
	if (parsed->flags & WL_PKT_TUNNEL)
		wl_shift(&parsed->inner, 4);
}

#endif
