/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The natively compiled packet functions, as called from Rust. */
#ifndef WL_NATIVE_H
#define WL_NATIVE_H

#include <stddef.h>

#include "lib/types.h"

struct wl_flow;
struct wl_flow_key;
struct wl_flow_packet;
struct wl_flow_part;
struct wl_flow_set;
struct wl_flow_splits;
struct wl_flow_timeouts;
struct wl_http_half;
struct wl_skipped_bytes;
struct wl_http_way;
struct wl_ip;
struct wl_evaluated;
struct wl_member;
struct wl_parsed;
struct wl_exact_value;
struct wl_exact_key;
struct wl_record;
struct wl_rtp_packet;
struct wl_rtp_stream;
struct wl_rule_class;
struct wl_rule_counts;
struct wl_rule_facts;
struct wl_rule_node;
struct wl_rule_set;
struct wl_search_outputs;
struct wl_search_page;
struct wl_shed;
struct wl_shed_packet;
struct wl_shed_set;
struct wl_step;
struct wl_top_entry;

/* A segment of one direction. */
struct wl_native_segment {
	__u64 now_ns;
	__u32 seq;
	__u32 ack;
	__u32 flags; /* WL_TCP_* */
	__u32 length;
};

/* Environment of an evaluation of rules. Tables are slices of the caller. */
struct wl_rule_env {
	const struct wl_rule_node *nodes;
	const struct wl_rule_class *classes;
	struct wl_rule_counts *counts;
	__u32 node_count;
	__u32 class_count;
	__u32 count_count;
	__u32 pad;
	/* The table of exact-match rules, and its functions. An entry that was found stays valid until the
	 * next call. */
	void *exact_rules;
	struct wl_exact_value *(*find)(void *exact_rules, const struct wl_exact_key *key);
	int (*insert)(void *exact_rules, const struct wl_exact_key *key, const struct wl_exact_value *value,
		      int there);
	/* The named sets of the tests. */
	const void *members;
	int (*has)(const void *members, __u32 test, const struct wl_member *key);
	/* The automata that search payloads. */
	const struct wl_search_page *pages;
	const struct wl_search_outputs *outputs;
	__u32 page_count;
	__u32 outputs_count;
	/* The captured bytes of the packet. */
	const __u8 *data;
	__u32 length;
	__u32 pad2;
};

void wl_native_parse(const __u8 *data, size_t length, __u8 link, __u32 options, struct wl_parsed *out);
void wl_native_parse_walk(const __u8 *data, size_t length, __u8 link, __u32 options, struct wl_parsed *out);
__u32 wl_native_flow_hash(const struct wl_ip *ip, __u32 seed);
__u32 wl_native_packet_hash(const struct wl_parsed *parsed, int inner, __u32 seed);
void wl_native_fill_record(struct wl_record *record, const struct wl_parsed *parsed, int inner, __u32 seed);
__u32 wl_native_steering_hash(__u32 steering, const struct wl_parsed *parsed, int inner, __u32 seed);
__u32 wl_native_steer(__u32 steering, const __u16 *buckets, __u32 hash, __u32 queue, __u32 workers);
int wl_native_is_in_share(__u32 hash, __u32 share, __u32 shares);
__u32 wl_native_filter(const struct wl_step *steps, __u32 count, const __u8 *data, size_t length,
		       __u32 wire_len, __u32 direction);
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
__u32 wl_native_http_first(const __u8 *bytes, size_t length);
size_t wl_native_http_line(__u8 *line, const __u8 *bytes, size_t length);
__u32 wl_native_http_packet(struct wl_http_half *half, __u32 seq, __u32 stated, const __u8 *bytes,
			    size_t length);
__u32 wl_native_http_way(struct wl_http_way *way, const struct wl_native_segment *segment, const __u8 *bytes,
			 struct wl_skipped_bytes *told);
void wl_native_http_way_begin(struct wl_http_way *way, __u32 seq, __u64 now);
__u32 wl_native_rtp_read(const __u8 *data, __u32 captured, __u32 off, __u32 len, struct wl_rtp_packet *out);
void wl_native_rtp_update(struct wl_rtp_stream *stream, const struct wl_rtp_packet *packet, __u64 ts_ns);
void wl_native_rtp_finish(struct wl_rtp_stream *stream);
void wl_native_evaluate(const struct wl_rule_env *env, const struct wl_rule_set *set,
			const struct wl_parsed *parsed, int inner, const struct wl_rule_facts *facts,
			struct wl_evaluated *evaluated);
__u64 wl_native_key_hash(const __u64 *key, __u64 seed);
void wl_native_hll_add(__u8 *registers, __u32 bits, __u64 hash);
void wl_native_top_add(struct wl_top_entry *set, const __u64 *key, __u64 weight);
__u32 wl_native_class(__u64 value);
__u32 wl_native_shed_refuses(struct wl_shed *shed, struct wl_shed_set *set, __u32 *congested,
			     const struct wl_shed_packet *packet);

#endif
