/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The packet that the capture program works on. */
#ifndef WL_PACKET_H
#define WL_PACKET_H

#include "lib/types.h"

/* Length, lane and queue, which the hook knows before parsing, and what is found about it afterwards. */
struct wl_packet {
	__u64 ts_ns;
	__u64 card_ns;	  /* the card's clock; 0: not reported by the driver */
	__u32 wire_len;	  /* with the VLAN tag that is put back, if any */
	__u32 segments;	  /* packets on the wire: of an aggregate (GRO, GSO) more than one */
	__u32 wire_bytes; /* their bytes */
	__u32 lane;
	__u32 queue;
	__u32 flags;	/* WL_REC_* */
	__u32 hash;	/* of the headers that the current group chooses */
	__u32 vlan_tag; /* TPID and TCI as on the wire */
	/* Results of the rules of the current group; all 0 without rules. */
	__u32 rule_id;
	__u32 truncate; /* bytes of the packet in the record; 0: all */
	__u32 tag;
	__u16 segment_size;   /* of an aggregate: payload of each of its packets; else 0 */
	__u16 headers;	      /* of an aggregate: bytes before the payload, which each of its packets has */
	__u16 found;	      /* bytes of struct wl_found, wl_note and wl_hits in the record */
	__u16 half;	      /* WL_REC_HALF_SEARCHED, or 0 */
	__u16 egress_devices; /* bit per egress device: where the current group sends the packet */
	__u8 sent;	      /* 1: a group sends it (send.h) */
	__u8 vlan;	      /* 1: vlan_tag was taken out of the packet, by the card or the stack */
	__u8 tagged;	      /* 1: `tag` goes into the record */
	__u8 digest;	      /* 1: the record is a digest */
	__u8 noted;	      /* 1: struct wl_note is in the record */
	__u8 hits;	      /* 1: struct wl_hits is in the record */
	__u8 asks;	      /* bit per slot of a plug-in that has to be run */
	__u8 marked;	      /* 1: the lane has marked it (order.h) */
	__u8 measured;	      /* 1: it was added to its RTP stream, and is also for the rest of its group */
};

/* The verifier of Linux 6.1 allows 512 bytes of stack over all calls, and the packet is in the first
 * frame. */
_Static_assert(sizeof(struct wl_packet) <= 88, "a larger packet leaves too little stack");

#define WL_MACS	    12 /* bytes before a VLAN tag */
#define WL_VLAN_TAG 4
#define WL_PUT_BACK (WL_MACS + WL_VLAN_TAG)

#endif
