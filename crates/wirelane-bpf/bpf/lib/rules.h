/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Rules: decide what a group does with a packet, before it is copied.
 *
 * There are two kinds. An exact-match rule is an entry of a hash table, with the values of packet fields as
 * its key (struct wl_exact_key). Wildcard rules have arbitrary conditions; a rule set has up to WL_RULES_MAX
 * of them, compiled in user space to the tables below.
 *
 * Each field that a set uses (a dimension) has a tree of nodes, in which each byte of the field is one step,
 * and whose leaves are classes: sets of values that the same clauses accept. The class is the set of those
 * clauses, as bits. A clause is the conjunction of all conditions of one rule; a rule with alternatives (a
 * host on either side) is several consecutive clauses. So the clauses that accept a packet are the AND of one
 * class per dimension, and its lowest bit is the first matching rule, however many there are:
 *
 *	source     10.1.2.3  -> node -> node -> node -> class 7   0 1 1 0 1 ...
 *	protocol   6         -> node                 -> class 2   1 1 0 0 1 ...
 *	dst port   443       -> node -> node         -> class 4   1 1 1 0 1 ...
 *	                                                    AND   0 1 0 0 1 ...   -> clause 1 -> its rule
 *
 * (Lakshman and Stiliadis, SIGCOMM 1998; the summary over the words is Baboescu and Varghese, SIGCOMM 2001.)
 *
 * If some rules fail on one field and others on another one, nearly every word has a bit in each class, but
 * none that is in all of them. So each clause has a pivot: the dimension among its conditions that the fewest
 * packets satisfy, as far as the compiler can tell. Only words in which a class has clauses with their pivot
 * in its dimension are evaluated, whichever class has them: all other clauses cannot be the reason for a
 * match.
 *
 * Evaluation of a packet:
 *  - exact-match rules first: each shape in order, the first entry that exists and has not expired;
 *  - unless that one stops, wildcard rules in the order of their clauses, until one stops;
 *  - a rule may ask for earlier hits (wl_rule.after): after its clause has accepted the packet, and its
 *    payload was searched if a clause tests that, the rule is hit only if the packet has hit one of these
 * rules, or none of them (WL_RULE_AFTER_NONE). Otherwise the next rule is evaluated;
 *  - every hit is counted, whether or not sampling then discards its packet;
 *  - sampling: a packet that is not chosen is dropped by that rule, and nothing more is looked at, also where
 *    the rule says continue; none of the rule's other modifiers apply then;
 *  - truncation: the smallest of all hits; a tag: the last hit's; copies: to the egress devices of all hits,
 * one each;
 *  - an action other than `none` sets the verdict, and replaces that of an earlier hit;
 *  - without a verdict by then: the set's default.
 *  The reported rule is the one whose verdict holds, otherwise the first that was hit, otherwise 0.
 *
 * One dimension is evaluated last, and rarely: the payload (WL_DIM_PAYLOAD), which has to be searched for
 * patterns first (search.h). Its classes do not select words, and it cannot be a pivot. Only if the first
 * remaining clause tests it (the class wl_rule_field.absent has all clauses that do) is the packet searched,
 * once, and plug-ins are run; then its class is ANDed to the others. So a packet is not searched if an
 * earlier rule has decided, or if no such rule would match anyway.
 *
 * The Rust declarations are generated (build.rs) and re-exported by src/rules.rs.
 */
#ifndef WL_PACKET_RULES_H
#define WL_PACKET_RULES_H

#include "lib/hash.h"

#define WL_RULES_MAX	  4096 /* wildcard rules of a set, and clauses */
#define WL_RULE_WORDS	  (WL_RULES_MAX / 64)
#define WL_RULE_SHAPES	  8	      /* of exact-match rules, in one set */
#define WL_RULE_HITS	  16	      /* wildcard rules that one packet can hit; beyond: WL_EVALUATED_MORE */
#define WL_RULE_AFTER	  5	      /* ids in wl_rule.after */
#define WL_RULE_AFTERS	  64	      /* wildcard rules of a set that have such ids */
#define WL_RULE_LEAF	  0x80000000u /* of wl_rule_node.next and roots: a class's number, else a node's */
#define WL_RULE_SETS	  2	      /* sets of a group, one of them in use */
#define WL_RULE_MEMBERS	  8	      /* tests of named sets, in one set of rules: bits of WL_DIM_SETS */
#define WL_RULE_PREFIXES  8	      /* prefix lengths of a named set of networks, for each IP version */
#define WL_RULE_PATTERNS  8	      /* names of patterns, and plug-ins, likewise: bits of WL_DIM_PAYLOAD */
#define WL_RULE_PLUGINS	  8	      /* slots for users' functions in an instance (plugin.h) */
#define WL_RULE_NO_VLAN	  0x1000      /* the VLAN of a packet without a tag */
#define WL_RULE_NO_LIMIT  0	      /* wl_rule.truncate, wl_exact.truncate: the packet is not truncated */
#define WL_EGRESS_DEVICES 8	      /* devices that a group's rules may send packets to: bits of a mask */

/*
 * The dimensions. A field is walked from its most significant byte on, and is absent if the packet lacks it.
 * All except the last two lines refer to the chosen headers (wl_choose()).
 */
enum wl_rule_dim {
	WL_DIM_SRC = 0,	      /* 4 bytes from wl_rule_field.root, 16 from root6; absent unless IPv4 or IPv6 */
	WL_DIM_DST = 1,	      /* the same */
	WL_DIM_SRC_PORT = 2,  /* 2 bytes; absent without WL_IP_PORTS */
	WL_DIM_DST_PORT = 3,  /* the same */
	WL_DIM_PROTO = 4,     /* 1 byte; absent unless IPv4 or IPv6 */
	WL_DIM_KIND = 5,      /* 1 byte: WL_KIND_*; never absent */
	WL_DIM_TCP_FLAGS = 6, /* 1 byte; absent without WL_IP_TCP */
	WL_DIM_VLAN = 7,      /* 2 bytes: the outermost VLAN id, or WL_RULE_NO_VLAN; never absent */
	WL_DIM_TOS = 8,	      /* 1 byte, DSCP and ECN; absent unless IPv4 or IPv6 */
	WL_DIM_LENGTH = 9,    /* 2 bytes: length on the wire, 65535 if it is longer; never absent */
	WL_DIM_QUEUE = 10,    /* 2 bytes: the RX queue; never absent */
	WL_DIM_ETHERTYPE = 11,	/* 2 bytes: wl_parsed.eth_type; absent where that is 0 */
	WL_DIM_ICMP_TYPE = 12,	/* 1 byte; absent without WL_IP_ICMP */
	WL_DIM_SETS = 13,	/* 1 byte: bit per test of wl_rule_set.member that holds; never absent */
	WL_DIM_PAYLOAD = 14,	/* 1 byte: bit per name of which a pattern was found, and per plug-in that
				   matches; never absent */
	WL_RULE_DIMS_USED = 15, /* the following ones are reserved */
	WL_RULE_DIMS = 16,
};

/* WL_DIM_KIND. The two lowest bits are the network layer. */
#define WL_KIND_L3_NONE	 0x00
#define WL_KIND_L3_IPV4	 0x01
#define WL_KIND_L3_IPV6	 0x02
#define WL_KIND_L3_ARP	 0x03
#define WL_KIND_L3	 0x03 /* the mask */
#define WL_KIND_FRAGMENT 0x04 /* one fragment of a datagram, the first one included */
#define WL_KIND_LATER	 0x08 /* not the first fragment */
#define WL_KIND_EGRESS	 0x10 /* the packet is leaving the device */
#define WL_KIND_TUNNEL	 0x20 /* a tunnel was entered: WL_PKT_TUNNEL, whichever headers are chosen */

/*
 * wl_rule_set.member: the key of a lookup in a named set (members.h). The first two together: either side.
 */
#define WL_MEMBER_SRC	  0x01
#define WL_MEMBER_DST	  0x02
#define WL_MEMBER_FLOW	  0x04 /* both addresses and ports, and the protocol, in either direction */
#define WL_MEMBER_PORT	  0x08 /* the side's port, too */
#define WL_MEMBER_PROTO	  0x10 /* the protocol, too */
#define WL_MEMBER_NETWORK 0x20 /* the networks of the side's address, by wl_rule_set.prefix */
#define WL_MEMBER_EXACT	  0x80 /* matches of the bloom filter are looked up in a table of all entries */

/*
 * An entry of a named set. 40 bytes, the same for all sets. What a set does not have is 0. Of one side:
 * `first`, `first_port`, `proto` and `l3`. Of a network: `first`, `l3` and `prefix`. Of a flow: the lower end
 * comes first, compared by its address and then by its port, in the order of their bytes.
 */
struct wl_member {
	__u8 first[16];
	__u8 second[16];
	__u16 first_port; /* network byte order */
	__u16 second_port;
	__u8 proto;
	__u8 l3;      /* WL_L3_IPV4 or WL_L3_IPV6 */
	__u16 prefix; /* its length plus 1 */
};

/* One step of a walk. */
struct wl_rule_node {
	__u32 next[256];
};

#define WL_SEARCH_BYTES	  16384	      /* maximum number of payload bytes that are searched */
#define WL_SEARCH_BLOCK	  256	      /* bytes that are searched in one step */
#define WL_SEARCH_OUTPUTS 1024	      /* maximum number of pattern ends that are evaluated in one packet */
#define WL_SEARCH_AT_ONCE 128	      /* maximum number of patterns that end at one position */
#define WL_SEARCH_FOUND	  4	      /* ids of patterns in a record */
#define WL_SEARCH_PAGE	  256	      /* states, and outputs, in one element of a map */
#define WL_SEARCH_STATE	  1024	      /* a state is its number times the bytes of its row in a page */
#define WL_SEARCH_HIT	  1	      /* of wl_search_page.next: patterns end in that state */
#define WL_SEARCH_NONE	  0xffffffffu /* wl_rule_set.search_root: the set has no such patterns */

/* The patterns that end in a state of the automaton that searches a payload. */
struct wl_search_ends {
	__u32 first; /* of its outputs */
	__u32 count;
};

/*
 * States of an automaton: most steps stay within a page. The time of a step is that from loading a state to
 * loading the next one, so a state is stored as the offset of its row.
 */
struct wl_search_page {
	__u32 next[WL_SEARCH_PAGE][256]; /* the next state, by byte, and WL_SEARCH_HIT */
	struct wl_search_ends ends[WL_SEARCH_PAGE];
};

/*
 * A pattern that ends in a state. It matches only if it ends within this range of the payload, and if the
 * gates that it needs are open (search.h); a pattern that needs gates begins at any byte.
 */
struct wl_search_output {
	__u32 id;    /* from 1 on; 0: not reported in records */
	__u32 from;  /* minimum number of payload bytes before its end */
	__u32 last;  /* maximum number */
	__u8 bits;   /* of WL_DIM_PAYLOAD */
	__u8 needs;  /* gates */
	__u8 opens;  /* gates, or WL_GATE_KEPT: those that were saved */
	__u8 closes; /* gates, and WL_GATE_KEPT: those of them that were open are saved */
};

#define WL_GATE_KEPT 0x80

struct wl_search_outputs {
	struct wl_search_output output[WL_SEARCH_PAGE];
};

/* The clauses that a value of one dimension satisfies. Class 0 has all clauses of its set. */
struct wl_rule_class {
	__u64 summary; /* bit w: words[w] is not 0. Next to the first words, enough for small sets */
	__u64 pivot;   /* bit w: words[w] has a clause whose pivot is the class's dimension; class 0: that has
			 none */
	__u64 words[WL_RULE_WORDS];
	__u64 pad[6]; /* whole cache lines */
};

/* Verdict of a rule on a packet. */
enum wl_rule_verdict {
	WL_VERDICT_NONE = 0,	 /* none: later rules, or the default, decide */
	WL_VERDICT_PASS = 1,	 /* delivered */
	WL_VERDICT_DROP = 2,	 /* `filtered` in the ledger */
	WL_VERDICT_ABSORB = 3,	 /* counted by the rule only: `absorbed` in the ledger */
	WL_VERDICT_DIGEST = 4,	 /* delivered as a record of kind WL_RECORD_DIGEST */
	WL_VERDICT_REDIRECT = 5, /* sent to the device `to`, not to the host: `absorbed` in the ledger */
	WL_VERDICT_PLUGIN = 6,	 /* the verdict of the first matching plug-in of wl_rule.plugin */
	WL_VERDICT_MEASURE = 7,	 /* added to its RTP stream where that is measured in the kernel
				    (streams.h): `absorbed` in the ledger; else delivered */
	WL_VERDICT_SEARCH = 256, /* nothing yet: the payload has to be searched first, and plug-ins asked
				    (never the last word) */
};

/* wl_rule.flags and wl_exact.flags */
#define WL_RULE_CONTINUE      0x01 /* the rules after it are evaluated too */
#define WL_RULE_SAMPLE_PACKET 0x02 /* sampled by packet, not by flow */
#define WL_RULE_TAG	      0x04 /* `tag` goes into the record */
#define WL_RULE_INSERT	      0x08 /* a hit inserts an exact-match rule (wildcard rules only) */
#define WL_RULE_AFTER_NONE    0x20 /* hit if none of `after` was hit (wildcard rules only) */
#define WL_RULE_MADE	      0x10 /* inserted by the wildcard rule of its id (exact-match rules only) */

/* A wildcard rule, without its conditions. */
struct wl_rule {
	__u32 id;	   /* from 1 on */
	__u32 slot;	   /* of its counters, below wl_rule_set.slots */
	__u8 verdict;	   /* enum wl_rule_verdict */
	__u8 flags;	   /* WL_RULE_* */
	__u16 last_clause; /* of its clauses, which are consecutive */
	__u32 truncate;	   /* bytes of the packet in the record; WL_RULE_NO_LIMIT */
	__u32 sample;	   /* one packet out of this many is selected for the action; 0 and 1: all */
	__u32 tag;
	__u32 insert_shape; /* WL_SHAPE_*: one of the set's */
	__u32 insert_idle_s;
	__u32 insert_hard_s;
	__u8 insert_verdict;	      /* of the inserted exact-match rule */
	__u8 insert_flags;	      /* WL_RULE_* of it: CONTINUE and TAG (with this rule's tag) */
	__u8 mirror;		      /* bit per egress device: a copy is sent there */
	__u8 to;		      /* WL_VERDICT_REDIRECT: the bit of the egress device; else 0 */
	__u8 plugin[WL_RULE_PLUGINS]; /* WL_VERDICT_PLUGIN: slots, from 1 on, in order; 0 after the last */
	/* Ids of rules, one of which must have been hit before; 0 first: the rule does not ask. Fewer than
	 * WL_RULE_AFTER: the first id again. */
	__u32 after[WL_RULE_AFTER];
};

/* Start of the walk of a dimension. */
struct wl_rule_field {
	__u32 root;   /* a node, or WL_RULE_LEAF and a class */
	__u32 root6;  /* WL_DIM_SRC and WL_DIM_DST: of IPv6 addresses */
	__u32 absent; /* the class (without WL_RULE_LEAF) of packets that lack the field; WL_DIM_PAYLOAD: of
			 the clauses that ask about it */
	__u32 pad;
};

/* Fields of a packet in the key of an exact-match rule. The others are 0 in its key. */
#define WL_SHAPE_SRC	  0x001
#define WL_SHAPE_DST	  0x002
#define WL_SHAPE_SRC_PORT 0x004
#define WL_SHAPE_DST_PORT 0x008
#define WL_SHAPE_PROTO	  0x010
#define WL_SHAPE_VLAN	  0x020
#define WL_SHAPE_MPLS	  0x040
#define WL_SHAPE_TUNNEL	  0x080
#define WL_SHAPE_BOTH	  0x100 /* both directions: also matched with source and destination exchanged */

/* A compiled set. A group has WL_RULE_SETS, each with its own nodes and classes. */
struct wl_rule_set {
	__u32 version;	       /* increases with each set of the group, for display and for tests */
	__u32 clauses;	       /* of the set; bits beyond are 0 in all classes */
	__u32 rules;	       /* of the set */
	__u32 default_verdict; /* WL_VERDICT_PASS or WL_VERDICT_DROP */
	__u32 used;	       /* bit per dimension that some clause tests; the others are skipped */
	__u32 shapes;	       /* of exact-match rules, in `shape` */
	__u32 slots;	       /* counters of each lane, of which a rule's slot is one */
	__u32 search_slot;     /* one of them: search statistics (wl_search_count()) */
	struct wl_rule_field dims[WL_RULE_DIMS];
	__u32 shape[WL_RULE_SHAPES]; /* WL_SHAPE_*, in the order of the lookups */
	__u16 rule_of[WL_RULES_MAX]; /* clause -> index into rule[] */
	struct wl_rule rule[WL_RULES_MAX];
	__u8 member[WL_RULE_MEMBERS]; /* WL_MEMBER_*; 0 after the last test */
	__u32 search_root[2]; /* the state in which a search begins: for bytes as they are, and for letters of
				 either case */
	__u32 search_reach;   /* no pattern counts that ends behind so many bytes; 0: there are none */
	__u8 plugin[WL_RULE_PLUGINS]; /* by place: the bit of WL_DIM_PAYLOAD that the plug-in there sets; 0:
					 it is not asked */
	/* By test, and IP version (0: 4, 1: 6): the prefix lengths of a set of networks, each plus 1; 0 after
	 * the last.
	 */
	__u8 prefix[WL_RULE_MEMBERS][2][WL_RULE_PREFIXES];
};

/*
 * Counters of a wildcard rule, in one lane and in a cache line of its own. Written by the lane, readable by
 * all. Times are those of packets (CLOCK_MONOTONIC, UTC for packets from a file); 0: never.
 */
struct wl_rule_counts {
	__u64 packets;
	__u64 bytes; /* on the wire */
	__u64 first_ns;
	__u64 last_ns;
	__u64 inserted; /* exact-match rules that it has inserted */
	__u64 refused;	/* insertions that failed: the table was full */
	__u64 pad[2];
};

/*
 * Key of an exact-match rule. 52 bytes. A shape is looked up only if the packet has its fields: addresses and
 * the protocol in IPv4 and IPv6, ports there too except in later fragments, a label or a tunnel in packets
 * that have one. A packet of a protocol without ports has ports of 0.
 */
struct wl_exact_key {
	__u8 src[16];
	__u8 dst[16];
	__u16 src_port; /* network byte order */
	__u16 dst_port;
	__u16 vlan; /* WL_RULE_NO_VLAN for packets without a tag */
	__u8 proto;
	__u8 l3; /* WL_L3_IPV4 or WL_L3_IPV6 with an address in the shape, else 0 */
	__u32 mpls;
	__u32 tunnel; /* wl_parsed.tunnel_id */
	__u32 shape;
};

/*
 * An exact-match rule, with its counters. 72 bytes. Several lanes hit one entry, so they add atomically. It
 * has expired after idle_s without a hit, or hard_s after its insertion (0: never): an expired entry is
 * ignored, whether or not it has been removed from the table.
 */
struct wl_exact_value {
	__u64 packets;
	__u64 bytes;
	__u64 first_ns;
	__u64 last_ns;
	__u64 made_ns;
	__u32 id;
	__u8 verdict;
	__u8 flags;
	__u8 mirror; /* as of wl_rule */
	__u8 to;
	__u32 truncate;
	__u32 sample;
	__u32 tag;
	__u32 idle_s;
	__u32 hard_s;
	__u32 pad2;
};

/* wl_evaluated.flags */
#define WL_EVALUATED_TAGGED 0x1	 /* `tag` is valid */
#define WL_EVALUATED_MORE   0x2	 /* more hits than WL_RULE_HITS: later rules were not evaluated */
#define WL_EVALUATED_HALF   0x4	 /* the payload was not searched completely */
#define WL_EVALUATED_FOUND  0x8	 /* more patterns were found than fit in `pattern` */
#define WL_EVALUATED_HITS   0x10 /* more rules were hit than fit in `hit` */

/* Result of an evaluation. */
struct wl_evaluated {
	__u32 verdict;	/* enum wl_rule_verdict; not WL_VERDICT_NONE */
	__u32 rule_id;	/* 0: no rule was hit */
	__u32 truncate; /* WL_RULE_NO_LIMIT: not truncated */
	__u32 tag;
	__u32 flags;			/* WL_EVALUATED_* */
	__u32 hits;			/* wildcard rules */
	__u32 pattern[WL_SEARCH_FOUND]; /* ids of patterns, in the order found; 0 after the last */
	__u32 egress_devices;		/* bit per egress device: the packet is sent there */
	__u32 to;			/* of these, the one that it is redirected to; 0: not redirected */
	__u32 hit_count;		/* ids in `hit` */
	__u32 pad;
	__u32 hit[WL_RULE_HITS]; /* ids of the rules that were hit, in order; 0 after the last */
};

/* Inputs of an evaluation beside the parsed headers. */
struct wl_rule_facts {
	__u64 now_ns; /* the packet's time */
	__u32 wire_len;
	__u32 queue;
	__u32 egress;	    /* not 0: the packet is leaving the device */
	__u32 seed;	    /* of the flow hash */
	__u32 more_packets; /* of an aggregate (GRO, GSO): number of packets on the wire beside the first */
	__u32 more_bytes;   /* and the bytes that their headers add to wire_len */
};

/* wl_search.phase */
#define WL_SEARCH_UNASKED 0
#define WL_SEARCH_ASKED	  1 /* the evaluation continues once the payload has been searched */
#define WL_SEARCH_DONE	  2

/* State of a payload search. */
struct wl_search {
	__u32 phase;
	__u32 captured; /* captured bytes of the packet; set by the caller */
	__u32 from;	/* the packet's byte at which the next block begins */
	__u32 left;	/* bytes from there on that remain to be searched */
	__u32 at;	/* bytes of the payload that have been searched */
	__u32 length;	/* of the block */
	__u32 held;	/* the byte of WL_DIM_PAYLOAD, bits of patterns */
	__u32 outputs;	/* number of outputs that were evaluated */
	__u32 asks;	/* bit per slot of a plug-in that has to be run */
	__u32 matched;	/* the byte of WL_DIM_PAYLOAD, bits of plug-ins */
	__u32 said;	/* by slot, 4 bits each: the plug-in's verdict; 0: no match */
	__u32 unasked;	/* 1: a plug-in was not run, as it has been switched off */
	__u32 noted;	/* 1: a plug-in has left a note */
	__u32 state[2]; /* by wl_rule_set.search_root */
	__u32 gates;	/* open gates */
	__u32 kept;	/* gates, see wl_search_output */
	__u32 since;	/* bytes of the payload before the last opened gate */
	__u8 block[WL_SEARCH_BLOCK];
};

/*
 * Working memory of an evaluation: in BPF, memory of the lane, whose contents the verifier does not track.
 * The caller fills `facts`.
 */
struct wl_rule_work {
	struct wl_evaluated evaluated;
	struct wl_rule_facts facts;
	struct wl_exact_value made;
	struct wl_exact_key key;
	__u32 acts;  /* sampling selects the packet for the current rule */
	__u64 live;  /* words in which a wildcard rule may still be hit */
	__u64 pivot; /* words in which some clause's pivot is satisfied */
	__u32 from;  /* the first clause that remains to be evaluated */
	__u32 rule;  /* the current wildcard rule: its index in wl_rule_set.rule */
	/* For the file that includes this one. */
	__u32 at;	   /* offset of the chosen headers */
	__u32 first_count; /* of the lane's counters */
	__u32 target;	   /* the group and its set */
	__u32 makes;
	__u16 make[WL_RULE_HITS]; /* rules that request exact-match rules */
	__u32 of[15];		  /* by dimension: the class that was found, if the dimension is used */
	__u32 lane;
	__u64 bits; /* clauses of the current word that accept the packet */
	__u32 held; /* the byte of WL_DIM_SETS */
	struct wl_member member;
	struct wl_search search;
};

#endif
