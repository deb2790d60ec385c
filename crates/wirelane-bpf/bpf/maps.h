/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The maps of an instance (instance.h describes each). Sizes marked 1 are set before load. */
#ifndef WL_MAPS_H
#define WL_MAPS_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "instance.h"

/* Since Linux 5.10; the headers of older distributions lack it. */
#ifndef BPF_F_INNER_MAP
#define BPF_F_INNER_MAP (1U << 12)
#endif

const volatile struct wl_config wl_config = {.lanes = 1, .queues = 1};

/* Whether the program was loaded with one of these features (WL_HAS_*). */
static __always_inline bool wl_has(__u32 features)
{
	return wl_config.features & features;
}

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct wl_instance);
} wl_instance SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, WL_MAX_GROUPS);
	__type(key, __u32);
	__type(value, struct wl_group);
} wl_groups SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct wl_tally);
} wl_tallies SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct wl_ring);
} wl_rings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct wl_lane);
} wl_lanes SEC(".maps");

/* Devices of wirelane_in_n and wirelane_out_n: index of the device -> slot, below wl_config.queues. Absent
 * for the other programs. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, WL_MAX_QUEUES);
	__type(key, __u32);
	__type(value, __u32);
} wl_slots SEC(".maps");

/* The RX queue of a packet, for rules and programs of users; 0 where the hook does not know it. */
static __always_inline __u32 wl_rx_queue(__u32 queue)
{
	return wl_has(WL_HAS_SLOTS) ? 0 : queue;
}

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct wl_mark);
} wl_marks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, WL_MAX_GROUPS *WL_GROUP_FILTERS);
	__type(key, __u32);
	__type(value, struct wl_filter);
} wl_filters SEC(".maps");

struct wl_rule_head_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE | BPF_F_INNER_MAP);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct wl_rule_set));
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, WL_MAX_GROUPS *WL_RULE_SETS);
	__type(key, __u32);
	__array(values, struct wl_rule_head_map);
} wl_rule_heads SEC(".maps");

/* The sizes of the next three differ from group to group. */
struct wl_rule_node_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE | BPF_F_INNER_MAP);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct wl_rule_node));
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, WL_MAX_GROUPS *WL_RULE_SETS);
	__type(key, __u32);
	__array(values, struct wl_rule_node_map);
} wl_rule_nodes SEC(".maps");

struct wl_rule_class_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE | BPF_F_INNER_MAP);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct wl_rule_class));
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, WL_MAX_GROUPS *WL_RULE_SETS);
	__type(key, __u32);
	__array(values, struct wl_rule_class_map);
} wl_rule_classes SEC(".maps");

struct wl_rule_count_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE | BPF_F_INNER_MAP);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct wl_rule_counts));
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, WL_MAX_GROUPS);
	__type(key, __u32);
	__array(values, struct wl_rule_count_map);
} wl_rule_counts SEC(".maps");

/* BPF_F_NO_PREALLOC: it allocates memory for existing rules only, and not for the maximum. */
struct wl_exact_map {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(struct wl_exact_key));
	__uint(value_size, sizeof(struct wl_exact_value));
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, WL_MAX_GROUPS);
	__type(key, __u32);
	__array(values, struct wl_exact_map);
} wl_exact_rules SEC(".maps");

/*
 * Named sets, which differ in size and in their number of hash functions. The kernel compares neither when a
 * map is inserted into one of these (bpf_map_meta_equal() in kernel/bpf/map_in_map.c).
 */
struct wl_bloom_map {
	__uint(type, BPF_MAP_TYPE_BLOOM_FILTER);
	__uint(max_entries, 1);
	__uint(map_extra, 1);
	__uint(value_size, sizeof(struct wl_member));
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, WL_MAX_GROUPS *WL_RULE_SETS *WL_RULE_MEMBERS);
	__type(key, __u32);
	__array(values, struct wl_bloom_map);
} wl_blooms SEC(".maps");

struct wl_member_map {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(struct wl_member));
	__uint(value_size, sizeof(__u32));
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, WL_MAX_GROUPS *WL_RULE_SETS *WL_RULE_MEMBERS);
	__type(key, __u32);
	__array(values, struct wl_member_map);
} wl_exacts SEC(".maps");

/* The automata that search payloads, which differ in size too. They are filled before they are inserted. */
struct wl_search_page_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_INNER_MAP);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct wl_search_page));
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, WL_MAX_GROUPS *WL_RULE_SETS);
	__type(key, __u32);
	__array(values, struct wl_search_page_map);
} wl_search_pages SEC(".maps");

struct wl_search_output_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_INNER_MAP);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct wl_search_outputs));
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, WL_MAX_GROUPS *WL_RULE_SETS);
	__type(key, __u32);
	__array(values, struct wl_search_output_map);
} wl_search_ends SEC(".maps");

/* BPF_F_INNER_MAP: the groups' maps differ in their number of segments. */
struct wl_data_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE | BPF_F_INNER_MAP);
	__uint(max_entries, 2);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct wl_segment));
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, WL_MAX_GROUPS);
	__type(key, __u32);
	__array(values, struct wl_data_map);
} wl_data SEC(".maps");

/* The groups' maps differ in their number of sets, and of workers. */
struct wl_flow_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE | BPF_F_INNER_MAP);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct wl_flow_element));
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 2 * WL_MAX_GROUPS);
	__type(key, __u32);
	__array(values, struct wl_flow_map);
} wl_flows SEC(".maps");

/* The groups' maps differ in their number of rings. Not mapped by anybody. */
struct wl_shed_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_INNER_MAP);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct wl_shed_set));
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, WL_MAX_GROUPS);
	__type(key, __u32);
	__array(values, struct wl_shed_map);
} wl_sheds SEC(".maps");

/* Shared by lanes: packets of a direction may arrive on several CPUs, one after the other. */
struct wl_http_way_map {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(struct wl_flow_key));
	__uint(value_size, sizeof(struct wl_http_way));
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, WL_MAX_GROUPS);
	__type(key, __u32);
	__array(values, struct wl_http_way_map);
} wl_http_ways SEC(".maps");

/* The groups' tables of streams differ in size, too. */
struct wl_stream_map {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(struct wl_stream_key));
	__uint(value_size, sizeof(struct wl_stream_at));
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, WL_MAX_GROUPS);
	__type(key, __u32);
	__array(values, struct wl_stream_map);
} wl_streams SEC(".maps");

struct wl_measured_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE | BPF_F_INNER_MAP);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct wl_stream));
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, WL_MAX_GROUPS);
	__type(key, __u32);
	__array(values, struct wl_measured_map);
} wl_measured SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct wl_balance);
} wl_balances SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct wl_egress_devices);
} wl_egress SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct wl_plugins);
} wl_plugins SEC(".maps");

/* The smallest possible ring buffer: 64 KiB is a multiple of every page size. */
struct wl_bell_map {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 65536);
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, WL_MAX_GROUPS *WL_MAX_WORKERS);
	__type(key, __u32);
	__array(values, struct wl_bell_map);
} wl_bells SEC(".maps");

/* Read by wide.h, and bound to all programs by the loader (BPF_PROG_BIND_MAP), so that it can be found. */
struct {
	__uint(type, BPF_MAP_TYPE_SOCKMAP);
	__uint(max_entries, WL_MAX_GROUPS);
	__type(key, __u32);
	__type(value, __u64);
} wl_owners SEC(".maps");

/* Bound by the loader like wl_owners. The first number of an object's map is its length in bytes. */
struct wl_program_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_INNER_MAP);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, WL_PROGRAM_PART);
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, WL_MAX_PROGRAMS + WL_RULE_PLUGINS);
	__type(key, __u32);
	__array(values, struct wl_program_map);
} wl_programs SEC(".maps");

#endif
