/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * An instance: all state that one capture program shares with the processes that use it.
 *
 *   wl_config    read-only, set before load: how many lanes and queues there are
 *   wl_instance  one entry: the active groups, and properties of the instance
 *   wl_groups    per group: its queues, limits and steering          (written by its owner)
 *   wl_tallies   per group and lane (and queue): the ledger          (written by the lane)
 *   wl_rings     per group, lane and worker: the writer's end        (written by the lane)
 *   wl_data      per group: readers' ends and the records themselves (inner map; see ring.h)
 *   wl_balances  per group and lane: the worker of each bucket, and its load (written by the lane)
 *   wl_flows     two per group: the flow cache of each lane and worker  (inner map, written by the lane)
 *   wl_sheds     per group: state of congestion control, and its flows (inner map, written by lanes)
 *   wl_http_ways per group: directions of connections of HTTP      (inner map, an LRU hash; written by lanes)
 *   wl_streams, wl_measured
 *                per group: the measured RTP streams, and their statistics (inner maps, the same for all
 *                instances of a capture: streams.h)
 *   wl_bells     per group and worker: wakes a sleeping worker       (inner ring buffer)
 *   wl_marks     per lane: whether a packet is between its stamp and its ring (written by the lane; order.h)
 *   wl_owners    per group: a socket of the owner; removed from the map when the owner ends, however it ends.
 *                A program checks those of device-wide groups
 *   wl_programs  per steering program, and then per plug-in: the user's object, for groups that join later
 *                (inner map)
 *   u0_NAME to uf_NAME
 *                per slot of a steering program, and then of a plug-in, and per map of its own: the map of
 *                each group (inner maps, written by the lanes; include/wirelane/state.h)
 *   wl_plugins   per group and lane: the counters of its plug-ins (written by the lane)
 *   wl_filters   per group: two compiled expressions, one of them in use (written by its owner)
 *   wl_rule_heads, wl_rule_nodes, wl_rule_classes
 *                per group: two compiled rule sets, one of them in use (inner maps, written by its owner)
 *   wl_blooms, wl_exacts
 *                per group, set and test: the named set that it looks up (inner maps)
 *   wl_search_pages, wl_search_ends
 *                per group and set: the automata that search payloads (inner maps)
 *   wl_rule_counts
 *                per group: the counters of each wildcard rule in each lane (inner map, written by the lane)
 *   wl_exact_rules  per group: exact-match rules                            (inner map, a hash table)
 *   wl_egress    per group and lane: the devices that its rules send packets to (written by its owner before
 *                it is active), and how many were sent (written by the lane)
 *   wl_batches   per CPU: the start of the current batch       (clock.h)
 *   wl_lanes     per lane: the parsed current packet (used by the lane only)
 *
 * The Rust declarations are generated (build.rs) and re-exported by src/instance.rs.
 */
#ifndef WL_INSTANCE_H
#define WL_INSTANCE_H

#include "lib/filter.h"
#include "lib/flow_cache.h"
#include "lib/http_way.h"
#include "lib/rules.h"
#include "lib/shed.h"
#include "lib/steer.h"
#include "lib/stream.h"
#include "lib/types.h"
#include "../include/wirelane/plugin.h"
#include "../include/wirelane/steer.h"

/* Incremented with every change of a layout or a meaning in this file, or of the name of a shared map:
 * instances of two versions do not mix. */
#define WL_INTERFACE_VERSION 24

#define WL_MAX_GROUPS	     64 /* bits of a word; an instance may have fewer */
#define WL_FEW_GROUPS	     16 /* slots of an instance whose first group is not one of many that share flows */
#define WL_MAX_WORKERS	     64	 /* of one group */
#define WL_MAX_QUEUES	     256 /* of one device */
#define WL_MAX_CPUS	     1024
#define WL_MAX_PROGRAMS	     8 /* steering programs of one instance; and plug-ins: WL_RULE_PLUGINS */

/* Bytes of one element of a map in wl_programs. */
#define WL_PROGRAM_PART 4096

/* A ring is a power of two of segments; a record that crosses the end of one spills into its slack. */
#define WL_SEGMENT_SHIFT 20
#define WL_SEGMENT	 (1u << WL_SEGMENT_SHIFT)
#define WL_SLACK	 (128u * 1024)
#define WL_MAX_SNAP	 (WL_SLACK - 64)

struct wl_instance {
	__u64 active;  /* bit per group; a lane looks only at groups whose bit is set */
	__u64 stray;   /* packets of an RX queue or CPU that did not exist at load time */
	__u32 version; /* WL_INTERFACE_VERSION */
	__u32 lanes;
	__u32 queues;
	__u32 ifindex;
	__u32 per_cpu;	   /* lanes are CPUs, not RX queues */
	__u32 seed;	   /* of the flow hash */
	__u64 batch_clock; /* bit per group: one clock read per batch is sufficient */
	__u64 card_clock;  /* bit per group: it wants the card's clock */
	__u64 wide;	   /* bit per group: WL_GROUP_WIDE, evaluated before the others */
	__u64 ordered;	   /* bit per group: its workers merge lanes by time (order.h) */
	__u32 groups;	   /* slots for groups: elements of the maps below, where these are per group */
	__u32 pad1;
	__u64 pad[6];
};

/* wl_group.flags */
#define WL_GROUP_EXCLUSIVE     0x1   /* packets of the group do not go on to the host stack */
#define WL_GROUP_INNER	       0x2   /* steer by, and report, the headers inside tunnels */
#define WL_GROUP_CARD_CLOCK    0x4   /* the card's timestamp where there is one */
#define WL_GROUP_ADAPTIVE      0x8   /* buckets are counted, and may move (balance.h) */
#define WL_GROUP_WIDE	       0x10  /* packets that its rules drop reach no other group (wide.h) */
#define WL_GROUP_FLOWS	       0x20  /* packets become flows in the lane (flows.h) */
#define WL_GROUP_EXCLUSIVE_ALL 0x40  /* refused packets do not go on to the host stack either */
#define WL_GROUP_HTTP	       0x80  /* HTTP bodies and all other payload are offloaded (http.h) */
#define WL_GROUP_RECORDS       0x100 /* plug-ins write records (plugin.h) */
#define WL_GROUP_FLOWS_BESIDE                                                                                \
	0x200 /* WL_GROUP_FLOWS: packets that became part of a flow are delivered, too */
#define WL_GROUP_STREAMS_BESIDE                                                                              \
	0x400 /* packets that were added to their RTP stream (streams.h) are delivered, too */

/* wl_group.rules, a bit of it: all its rules are exact-match rules for UDP to an address and port, and those
 * for which streams (streams.h) exist are WL_VERDICT_MEASURE */
#define WL_RULES_OF_PLACES 0x100

struct wl_group {
	__u64 queues[WL_MAX_QUEUES / 64]; /* the RX queues it wants */
	__u32 snap_len;
	__u32 workers;
	__u32 segments;	     /* of each ring; a power of two */
	__u32 steering;	     /* enum wl_steering */
	__u32 flags;	     /* WL_GROUP_* */
	__u32 publish_every; /* bytes written to a ring between two publications of its head */
	__u32 owner_pid;     /* informational only */
	__u32 filter;	     /* WL_FILTER_ENTRY and number; 0: all packets are wanted */
	__u32 program;	     /* WL_STEER_PROGRAM: the place of its program (program.h) */
	__u32 rules;	     /* 1 or 2, its set of rules, and WL_RULES_OF_PLACES; 0: no rules are evaluated */
	char owner[16];	     /* the same: the owner's command */
	__u64 joined_ns;     /* CLOCK_MONOTONIC */
	__u32 shed_low;	     /* congestion control (shed.h): unread bytes of a ring; 0 and 0: off */
	__u32 shed_high;
	__u32 plugins;	     /* bit per place of a plug-in that is its own (plugin.h) */
	__u32 plugin_budget; /* average limit per run, in nanoseconds */
	__u32 flow_sets;  /* WL_GROUP_FLOWS: sets of a cache; a power of two, WL_FLOW_LEAST_SETS or more; and
			     WL_FLOW_SECOND */
	__u32 flow_epoch; /* of the caches, from 1; its lowest bit is the half that is filled */
	__u32 flow_sampling; /* one packet out of this many is inspected; 0 and 1: all */
	__u32 shares;	     /* number of equal parts of all flows, of which it wants one; 0: it wants all */
	__u32 share;	     /* this one, below `shares` */
	__u32 share_seed;    /* of the hash that divides flows: the same at all groups that share flows */
	__u32 whole;	     /* WL_GROUP_FLOWS: packets of rules with ids from 1 to this are not aggregated */
	__u32 shed_refused;  /* tick of the latest flow that was refused (lib/shed.h); written by lanes */
	__u32 shed_sets;     /* sets of the table of flows; a power of two */
	__u32 pad;
	__u8 plugin_numbers[WL_RULE_PLUGINS]; /* by place: the plug-in's number in its capture */
	struct wl_flow_splits flow_splits;    /* where parts end */
	__u16 buckets[WL_BUCKETS];	      /* worker of each bucket of the flow hash */
};

/*
 * A group has two filters, so that one is written while the other is in use: its owner writes the idle one,
 * puts its number into wl_group.filter, and writes the other again only after the kernel has waited for all
 * programs that ran at that moment (crates/wirelane/src/engine/ring/group.rs). So no run sees a half-written
 * filter, and every packet is evaluated by one of the two.
 *
 * The lower bits of wl_group.filter are 1 or 2, for the first or second entry in wl_filters. The others are
 * the number of the filter among those that the program has as instructions (filter_code.h), or 0: the entry
 * is interpreted. A number is used for one filter only, and its group names it while the program has it.
 */
#define WL_GROUP_FILTERS 2
#define WL_FILTER_ENTRY	 0x3		     /* mask */
#define WL_FILTER_NUMBER 2		     /* shift */
#define WL_FILTER_CODES	 (2 * WL_MAX_GROUPS) /* a group that changes its filter has two for a moment */

/*
 * The same holds for its WL_RULE_SETS rule sets and wl_group.rules. A set is three inner maps, at index g *
 * WL_RULE_SETS + set in wl_rule_heads, wl_rule_nodes and wl_rule_classes; test t of a named set looks up the
 * maps at (g * WL_RULE_SETS + set) * WL_RULE_MEMBERS + t in wl_blooms and, for exact results, wl_exacts; a
 * set with payload patterns has its automata in wl_search_pages and wl_search_ends, at its own index.
 * Counters and exact-match rules belong to the group and outlive a change of sets: inner maps at g in
 * wl_rule_counts, whose elements are lane * wl_rule_set.slots + wl_rule.slot, and in wl_exact_rules. All maps
 * of a group with rules exist before wl_group.rules is set.
 *
 * Packets that a rule absorbs count as packets of the group: with WL_GROUP_EXCLUSIVE they do not go on to the
 * host stack. Packets that a rule drops go on, as packets that a filter refuses do, except with
 * WL_GROUP_WIDE. Redirected packets do not, also without WL_GROUP_EXCLUSIVE. With WL_GROUP_EXCLUSIVE_ALL no
 * packet goes on, whatever the verdict.
 */

/* One line of the ledger. Written by one lane, readable by all; in two cache lines of its own. */
struct wl_tally {
	__u64 seen;
	__u64 filtered;
	__u64 absorbed;
	__u64 shed;
	__u64 lost;
	__u64 delivered;
	__u64 seen_bytes; /* wire bytes */
	__u64 turn;	  /* of round-robin steering */
	__u64 blocked;	  /* of `filtered`: packets that another group's rules have dropped (wide.h) */
	/* Of `absorbed`: packets that became flows in the lane (flows.h), were left out by sampling, were
	 * skipped as HTTP (http.h), or were added to RTP streams (streams.h). */
	__u64 offloaded;
	__u64 offloaded_bytes; /* their wire bytes */
	__u64 aggregates; /* GRO and GSO packets among `seen`, each of which counts as its packets on the wire
			   */
	/* With WL_GROUP_FLOWS_BESIDE: packets that became flows in the lane, or were left out by sampling. */
	__u64 in_flows;
	__u64 in_flows_bytes; /* their wire bytes */
	/* With WL_GROUP_FLOWS_BESIDE or WL_GROUP_STREAMS_BESIDE: packets that were added to RTP streams. */
	__u64 measured;
	__u64 pad;
};

/* The writer's end of a ring. The lane writes all three lines; workers map it read-only. */
struct wl_ring {
	/* First line: private to the lane. An idle worker peeks at `head`. */
	__u64 head;	    /* position (bytes ever written) behind the last whole record */
	__u64 cached_tail;  /* the reader's tail as last read */
	__u64 published;    /* the last value of public_head */
	__u64 rung_for;	    /* the wake_at for which the bell was last rung */
	__u64 delivered;    /* records written */
	__u64 lost;	    /* records for which there was no space */
	__u64 bells;	    /* times that the bell was rung */
	__u64 published_ns; /* timestamp of the record that public_head was last set for */
	/* Second line: written once per publish_every bytes, read by the worker at every turn. */
	__u64 public_head;
	__u64 pad2[7];
	/* Third line, private to the lane: congestion control (shed.h). */
	__u64 shed; /* records that were refused */
	/* Flow cache (flows.h), or HTTP (http.h). */
	__u64 offloaded;       /* packets that went into it, were left out by sampling, or were offloaded */
	__u64 parts;	       /* parts of flows that were written to the ring */
	__u64 unsampled;       /* packets that sampling skipped */
	__u64 unsampled_bytes; /* their wire bytes */
	__u64 skip;	       /* packets until the next one that is inspected */
	__u64 pad3[2];
};

#define WL_MARK_UNSTAMPED 1 /* wl_mark.in_flight: the current packet has no stamp yet */

/* Tells workers that merge lanes by time which stamps they may still expect of a lane. One cache line. */
struct wl_mark {
	__u64 in_flight; /* 0: no packet; WL_MARK_UNSTAMPED; or the stamp of the packet at hand */
	__u64 latest;	 /* stamp of the latest packet: stamps of a lane never decrease */
	__u64 pad[6];
};

/* A lane's state of an adaptive group's buckets (balance.h). Written by the lane. */
struct wl_balance {
	__u16 worker[WL_BUCKETS];  /* that the lane sends the bucket to */
	__u32 packets[WL_BUCKETS]; /* counted since the group joined; wraps around */
};

/* Devices to which the rules of a group send packets, for one lane. Three cache lines. */
struct wl_egress_devices {
	__u32 ifindex[WL_EGRESS_DEVICES]; /* 0 behind the last egress device */
	__u64 pad[4];
	__u64 sent[WL_EGRESS_DEVICES];	 /* packets and copies that the kernel took for the device */
	__u64 unsent[WL_EGRESS_DEVICES]; /* not taken: device gone or down, or queue full */
};

/* Counters of a plug-in for a group, in one lane. Three cache lines. */
struct wl_plugin {
	__u64 asked;   /* packets that it was run on */
	__u64 matched; /* of these */
	__u64 refused; /* packets that it would have been run on if it were not switched off */
	__u64 timed;   /* number of timed runs */
	__u64 ns;      /* nanoseconds that the timed runs took */
	__u64 off;     /* 1: it has been switched off */
	__u64 part_ns; /* of the current average (plugin.h) */
	__u64 parts;
	__u64 counters[PLUGIN_MOST_COUNTERS]; /* counters of the plug-in */
	__u64 records;			      /* that it has written */
	__u64 unwritten;		      /* for which there was no space, or that nobody reads */
	__u64 pad[6];
};

struct wl_plugins {
	struct wl_plugin of[WL_RULE_PLUGINS];
};

/*
 * The flow caches of a group (flows.h): for each lane and worker two halves, each a sequence of elements of
 * one size:
 *
 *	1  struct wl_flow_half
 *	sets / WL_FLOW_LEAST_SETS  struct wl_flow_used: the places that were filled in this epoch, in order
 *	sets  struct wl_flow_set
 */
#define WL_FLOW_LISTED	   128 /* places in one struct wl_flow_used */
#define WL_FLOW_LEAST_SETS (WL_FLOW_LISTED / WL_FLOW_WAYS)

/*
 * In wl_group.flow_sets: the second of the group's two caches in wl_flows is filled. A cache of another size
 * takes the place of the one before with an epoch, as both are in one word of 64 bits.
 */
#define WL_FLOW_SECOND 0x80000000U

struct wl_flow_half {
	__u32 epoch; /* that `used` is of */
	__u32 used;  /* places */
};

struct wl_flow_used {
	__u32 place[WL_FLOW_LISTED]; /* WL_FLOW_WAYS * set + way */
};

/* An element: a set, or one of the other structs at its beginning. */
struct wl_flow_element {
	struct wl_flow_set set;
};

_Static_assert(sizeof(struct wl_flow_used) <= sizeof(struct wl_flow_element), "elements are of one size");

#define WL_AWAKE (~0ULL)

/* The reader's end of a ring: the only memory that a worker writes. The kernel side trusts none of it. */
struct wl_reader {
	__u64 tail; /* the writer may overwrite everything before this position */
	__u64 pad[7];
	__u64 wake_at; /* ring the bell once head has reached this position; WL_AWAKE: not asleep */
	__u64 pad2[7];
};

#define WL_READERS (WL_SEGMENT / 128) /* number that fits into the first element of a group's data map */

/* One element of a group's data map: element 0 holds the readers' ends, all others are segments. */
struct wl_segment {
	__u8 bytes[WL_SEGMENT + WL_SLACK];
};

/* The first bytes of a packet whose tag is put back: enough for a load that begins before the tag's end. */
#define WL_FILTER_HEAD 24

/* A byte per group, with a bit per egress device. */
#define WL_EGRESS_WORDS (WL_MAX_GROUPS * WL_EGRESS_DEVICES / 64)

#define WL_HTTP_BLOCK	128 /* bytes of a segment that are read in one go */

/* State of reading a segment. */
struct wl_http_work {
	struct wl_http_way fresh; /* of a direction that is new */
	__u32 from;		  /* where its payload begins in the packet */
	__u32 end;		  /* the length of that */
	__u32 at;		  /* bytes of it that have been read */
	__u32 pad;
	__u8 block[WL_HTTP_BLOCK];
};

/* Private state of a lane. */
struct wl_lane {
	struct wl_parsed parsed;
	__u64 seen; /* packets, whether or not a group wanted them */
	__u64 seen_bytes;
	struct wl_filter_run filter; /* of the group at hand (verdict.h) */
	__u8 head[WL_FILTER_HEAD];
	__u64 senders;			       /* bit per group that sends the packet at hand (send.h) */
	__u64 egress_devices[WL_EGRESS_WORDS]; /* of these groups */
	struct wirelane_packet shown;	       /* the packet as users' functions see it (show.h) */
	struct plugin_answer answer;	       /* of a plug-in */
	struct wl_note note;		       /* the first note of a plug-in */
	__u64 sending;			       /* 1: packets are being sent (send.h) */
	struct wl_rule_work rules;	       /* of the group at hand (rules.h) */
	struct wl_flow_key flow_key;	       /* of the packet at hand (flows.h) */
	struct wl_flow_packet flow_packet;
	struct wl_http_work http; /* of the packet at hand (http.h) */
	__u32 nameless;		  /* the slot of its flow, over all sets (application.h) */
	__u32 nameless_in;	  /* the key of its cache in wl_flows */
	__u64 payload[4];	  /* its first bytes */
	struct wl_rtp_packet rtp; /* of the packet at hand (streams.h) */
	struct wl_stream_key stream_key;
	__u32 pad4[1];
	__u64 pad5[2];
};

_Static_assert(sizeof(struct wl_lane) % 64 == 0, "lanes share no cache line");

/*
 * Features that a capture program is loaded with: bits of wl_config.features. The verifier removes the code
 * of all others. A group that needs another feature replaces the program before it joins.
 */
#define WL_HAS_FILTERS 0x1  /* the interpreter of expressions (lib/filter.h) */
#define WL_HAS_RULES   0x2  /* rules, sets, patterns and egress devices (evaluate.h, send.h) */
#define WL_HAS_STREAMS 0x4  /* rules that measure RTP (streams.h) */
#define WL_HAS_FLOWS   0x8  /* WL_GROUP_FLOWS */
#define WL_HAS_HTTP    0x10 /* WL_GROUP_HTTP */
#define WL_HAS_BALANCE 0x20 /* WL_GROUP_ADAPTIVE */
#define WL_HAS_SHED    0x40 /* congestion control (shed.h) */
#define WL_HAS_SLOTS   0x80 /* slots of devices take the place of RX queues (wl_slots) */
#define WL_HAS_GROUPS                                                                                        \
	0x100 /* groups in other slots than the first; a share of flows, WL_GROUP_WIDE, steering other than  \
		 WL_STEER_FLOW */

struct wl_config {
	__u32 lanes;
	__u32 queues;
	__u32 per_cpu;
	__u32 seed;
	__u32 link;		      /* enum wl_link of the device's packets */
	__u32 batches;		      /* 1: the kernel lets programs tell batches apart (clock.h) */
	__u32 batch_mark;	      /* a number of this instance, for that purpose */
	__u32 never;		      /* 0, which the verifier knows (prog_padding.h) */
	__u32 programs;		      /* 1: steering programs are linked in (program.h) */
	__u32 plugins;		      /* 1: plug-ins are (plugin.h) */
	__u32 features;		      /* WL_HAS_*, which the verifier knows */
	__u32 codes[WL_FILTER_CODES]; /* numbers of the filters that are instructions; 0: no more */
};

#endif
