/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Rules: what a group does with a packet, decided before anything is copied.
 *
 * There are two kinds. An exact-match rule is an entry of a hash table, found by fields of the packet as they are
 * (struct wl_exact_key). Wildcard rules are conditions of any shape; a rule set has up to WL_RULES_MAX of
 * them, compiled in user space to the tables below.
 *
 * Each field that a set asks for (a dimension) has a tree of nodes, which a byte of the field walks by one
 * step, and which ends in a class: all values that the same clauses accept. The class is the set of those
 * clauses, as bits. A clause is what one rule asks for, all of it at once; a rule that has alternatives (a
 * host on either side) is several clauses, one behind the other. So the clauses that accept a packet are the
 * AND of one class per dimension, and the lowest bit of that is the first rule, however many there are:
 *
 *	source     10.1.2.3  -> node -> node -> node -> class 7   0 1 1 0 1 ...
 *	protocol   6         -> node                 -> class 2   1 1 0 0 1 ...
 *	dst port   443       -> node -> node         -> class 4   1 1 1 0 1 ...
 *	                                                    AND   0 1 0 0 1 ...   -> clause 1 -> its rule
 *
 * (Lakshman and Stiliadis, SIGCOMM 1998; the summary over the words is Baboescu and Varghese, SIGCOMM 2001.)
 *
 * Where some rules miss by one field and others by another, nearly every word has a bit in each class, and
 * none that is in all. So each clause has a pivot: of the dimensions that it asks about, that which the fewest
 * packets satisfy, as far as the compiler can tell. Only words in which a class has clauses that are at pivot
 * in its dimension are looked at, be they in one of the classes or in another: those of all other clauses are
 * never the reason.
 *
 * What happens to a packet:
 *  - exact-match rules first: each shape in order, the first entry that is there and has not expired;
 *  - unless that says stop, wildcard rules in the order of their clauses, until one says stop;
 *  - every hit is counted, whether its packet is then sampled away or not;
 *  - sampling: a packet that is not chosen is dropped by that rule, and nothing more is looked at, also where
 *    the rule says continue; none of the rule's other modifiers apply then;
 *  - truncation: the smallest of all hits; a tag: the last hit's; copies: to the egress devices of all hits, one each;
 *  - an action other than `none` sets the verdict, in the place of what an earlier hit has set;
 *  - no verdict by then: the set's default.
 *  The rule that is named is the one whose verdict holds, else the first that was hit, else 0.
 *
 * One dimension is met last, and seldom: the payload (WL_DIM_PAYLOAD), which has to be searched for patterns
 * first (search.h). Its classes do not choose the words that are looked at, and it is no clause's pivot. Only
 * where the first clause that is left asks about it (the class wl_rule_field.absent has all that do) is the
 * packet searched, once, and plug-ins are asked; then its class is ANDed to the others. So a packet is not
 * searched that a rule before has decided about, or that no such rule would fit anyway.
 *
 * Rust's view of it is generated (build.rs) and re-exported by src/rules.rs.
 */
#ifndef WL_PACKET_RULES_H
#define WL_PACKET_RULES_H

#include "lib/hash.h"

#define WL_RULES_MAX	 4096 /* wildcard rules of a set, and clauses */
#define WL_RULE_WORDS	 (WL_RULES_MAX / 64)
#define WL_RULE_SHAPES	 8	     /* of exact-match rules, in one set */
#define WL_RULE_HITS	 16	     /* wildcard rules that one packet can hit; beyond: WL_EVALUATED_MORE */
#define WL_RULE_LEAF	 0x80000000u /* of wl_rule_node.next and roots: a class's number, else a node's */
#define WL_RULE_SETS	 2	     /* of a group, of which one is in use */
#define WL_RULE_MEMBERS	 8	     /* tests of named sets, in one set of rules: bits of WL_DIM_SETS */
#define WL_RULE_PATTERNS 8	/* names of patterns, and plug-ins, the same way: bits of WL_DIM_PAYLOAD */
#define WL_RULE_PLUGINS	 4	/* users' functions that an instance has places for (plugin.h) */
#define WL_RULE_NO_VLAN	 0x1000 /* the VLAN of a packet without a tag */
#define WL_RULE_NO_LIMIT 0	/* wl_rule.truncate, wl_exact.truncate: the packet is not truncated */
#define WL_EGRESS_DEVICES	 8	/* devices that a group's rules may send packets to: bits of a mask */

/*
 * The dimensions. What is taken of the packet is walked from its most significant byte on, and is absent
 * where the packet lacks it. All but the last two lines are of the chosen headers (wl_choose()).
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
	WL_DIM_LENGTH = 9,    /* 2 bytes: on the wire, 65535 for all that is longer; never absent */
	WL_DIM_QUEUE = 10,    /* 2 bytes: the RX queue; never absent */
	WL_DIM_ETHERTYPE = 11,	/* 2 bytes: wl_parsed.eth_type; absent where that is 0 */
	WL_DIM_ICMP_TYPE = 12,	/* 1 byte; absent without WL_IP_ICMP */
	WL_DIM_SETS = 13,	/* 1 byte: bit per test of wl_rule_set.member that holds; never absent */
	WL_DIM_PAYLOAD = 14,	/* 1 byte: bit per name of which a pattern was found, and per plug-in that
				   matches; never absent */
	WL_RULE_DIMS_USED = 15, /* those behind are room for more */
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
#define WL_KIND_TUNNEL	 0x20 /* it has a tunnel that was entered: WL_PKT_TUNNEL, whichever headers count */

/*
 * wl_rule_set.member: what is looked for in a named set (members.h). The first two together: either address.
 */
#define WL_MEMBER_SRC	0x01
#define WL_MEMBER_DST	0x02
#define WL_MEMBER_FLOW	0x04 /* both addresses and ports, and the protocol, either way round */
#define WL_MEMBER_EXACT 0x80 /* what the bloom filter says yes to is looked up in a table of all entries */

/*
 * An entry of a named set. 40 bytes, the same for all sets. Of an address: `first` and `l3`, the rest is 0.
 * Of a flow: the end that is lower comes first, by its address and then by its port, in the order of their
 * bytes.
 */
struct wl_member {
	__u8 first[16];
	__u8 second[16];
	__u16 first_port; /* network byte order */
	__u16 second_port;
	__u8 proto;
	__u8 l3; /* WL_L3_IPV4 or WL_L3_IPV6 */
	__u16 pad;
};

/* One step of a walk. */
struct wl_rule_node {
	__u32 next[256];
};

#define WL_SEARCH_BYTES	  16384	      /* of a payload that are searched, at most */
#define WL_SEARCH_BLOCK	  128	      /* bytes that are searched in one go */
#define WL_SEARCH_OUTPUTS 1024	      /* ends of patterns that are looked at in one packet, at most */
#define WL_SEARCH_AT_ONCE 128	      /* patterns that end at one place, at most */
#define WL_SEARCH_FOUND	  4	      /* ids of patterns in a record */
#define WL_SEARCH_PAGE	  64	      /* states, and outputs, in one element of a map */
#define WL_SEARCH_HIT	  0x80000000u /* of wl_search_node.next: patterns end in that state */
#define WL_SEARCH_NONE	  0xffffffffu /* wl_rule_set.search_root: there are no such patterns */

/* A state of the automaton that searches a payload for patterns. */
struct wl_search_node {
	__u32 next[256]; /* the next state, by byte, and WL_SEARCH_HIT */
	__u32 first;	 /* of its outputs */
	__u32 count;
};

/* States that lie near each other are asked for together: most steps stay within a page. */
struct wl_search_page {
	struct wl_search_node node[WL_SEARCH_PAGE];
};

/*
 * A pattern that ends in a state. It counts only where it ends within these bytes of the payload, and where
 * the gates that it needs are open (search.h); one that needs any begins at any byte.
 */
struct wl_search_output {
	__u32 id;    /* from 1 on; 0: records do not have it */
	__u32 from;  /* it ends behind so many bytes, or more */
	__u32 last;  /* or less */
	__u8 bits;   /* of WL_DIM_PAYLOAD */
	__u8 needs;  /* gates */
	__u8 opens;  /* gates, or WL_GATE_KEPT: those that were kept */
	__u8 closes; /* gates, and WL_GATE_KEPT: of these, the ones that were open are kept */
};

#define WL_GATE_KEPT 0x80

struct wl_search_outputs {
	struct wl_search_output output[WL_SEARCH_PAGE];
};

/* The clauses that a value of one dimension satisfies. Class 0 has all clauses of its set. */
struct wl_rule_class {
	__u64 summary; /* bit w: words[w] is not 0. Beside the first words, which small sets make do with */
	__u64 pivot;    /* bit w: words[w] has a clause whose pivot is the class's dimension; class 0: that has
			  none */
	__u64 words[WL_RULE_WORDS];
	__u64 pad[6]; /* whole cache lines */
};

/* What a rule says of a packet. */
enum wl_rule_verdict {
	WL_VERDICT_NONE = 0,	 /* nothing: later rules, or the default, do */
	WL_VERDICT_PASS = 1,	 /* delivered */
	WL_VERDICT_DROP = 2,	 /* `filtered` in the ledger */
	WL_VERDICT_ABSORB = 3,	 /* counted by the rule, and no more: `absorbed` in the ledger */
	WL_VERDICT_DIGEST = 4,	 /* delivered as a record of kind WL_RECORD_DIGEST */
	WL_VERDICT_REDIRECT = 5, /* sent to the egress device `to`, not to the host: `absorbed` in the ledger */
	WL_VERDICT_PLUGIN = 6,	 /* what the first of wl_rule.plugin says that matches: one of the above */
	WL_VERDICT_MEASURE = 7,	 /* added to its RTP stream where that is measured in the kernel
				    (streams.h): `absorbed` in the ledger; else delivered */
	WL_VERDICT_SEARCH = 256, /* nothing yet: the payload has to be searched first, and plug-ins asked
				    (never the last word) */
};

/* wl_rule.flags and wl_exact.flags */
#define WL_RULE_CONTINUE      0x01 /* the rules behind it are looked at too */
#define WL_RULE_SAMPLE_PACKET 0x02 /* sampled by packet, not by flow */
#define WL_RULE_TAG	      0x04 /* `tag` goes into the record */
#define WL_RULE_INSERT	      0x08 /* a hit makes an exact-match rule (wildcard rules only) */
#define WL_RULE_MADE	      0x10 /* made by the wildcard rule whose id it has (exact-match rules only) */

/* A wildcard rule, less its conditions. 64 bytes. */
struct wl_rule {
	__u32 id;	   /* from 1 on */
	__u32 slot;	   /* of its counters, below wl_rule_set.slots */
	__u8 verdict;	   /* enum wl_rule_verdict */
	__u8 flags;	   /* WL_RULE_* */
	__u16 last_clause; /* of its clauses, which lie one behind the other */
	__u32 truncate;	   /* bytes of the packet in the record; WL_RULE_NO_LIMIT */
	__u32 sample;	   /* one in so many goes on to the action; 0 and 1: all */
	__u32 tag;
	__u32 insert_shape; /* WL_SHAPE_*: one of the set's */
	__u32 insert_idle_s;
	__u32 insert_hard_s;
	__u8 insert_verdict;	      /* of the exact-match rule that is made */
	__u8 insert_flags;	      /* WL_RULE_* of it: CONTINUE and TAG (with this rule's tag) */
	__u8 mirror;		      /* bit per egress device: a copy is sent there */
	__u8 to;		      /* WL_VERDICT_REDIRECT: the bit of the egress device; else 0 */
	__u8 plugin[WL_RULE_PLUGINS]; /* WL_VERDICT_PLUGIN: places, from 1 on, in order; 0 behind the last */
	__u8 pad[20];
};

/* Where the walk of a dimension begins. */
struct wl_rule_field {
	__u32 root;   /* a node, or WL_RULE_LEAF and a class */
	__u32 root6;  /* WL_DIM_SRC and WL_DIM_DST: of IPv6 addresses */
	__u32 absent; /* the class (without WL_RULE_LEAF) of packets that lack the field; WL_DIM_PAYLOAD: of
			 the clauses that ask about it */
	__u32 pad;
};

/* Which fields of a packet an exact-match rule has. The others are 0 in its key. */
#define WL_SHAPE_SRC	  0x001
#define WL_SHAPE_DST	  0x002
#define WL_SHAPE_SRC_PORT 0x004
#define WL_SHAPE_DST_PORT 0x008
#define WL_SHAPE_PROTO	  0x010
#define WL_SHAPE_VLAN	  0x020
#define WL_SHAPE_MPLS	  0x040
#define WL_SHAPE_TUNNEL	  0x080
#define WL_SHAPE_BOTH	  0x100 /* both directions: found with source and destination exchanged, too */

/* A compiled set. A group has WL_RULE_SETS, each with nodes and classes of its own. */
struct wl_rule_set {
	__u32 version;	       /* counts the group's sets, for people and for tests */
	__u32 clauses;	       /* of the set; bits beyond are 0 in all classes */
	__u32 rules;	       /* of the set */
	__u32 default_verdict; /* WL_VERDICT_PASS or WL_VERDICT_DROP */
	__u32 used;	   /* bit per dimension that some clause asks about; the others are not looked at */
	__u32 shapes;	   /* of exact-match rules, in `shape` */
	__u32 slots;	   /* counters of each lane, of which a rule's slot is one */
	__u32 search_slot; /* of them: what searching has done (wl_search_count()) */
	struct wl_rule_field dims[WL_RULE_DIMS];
	__u32 shape[WL_RULE_SHAPES]; /* WL_SHAPE_*, in the order in which they are looked for */
	__u16 rule_of[WL_RULES_MAX]; /* clause -> index into rule[] */
	struct wl_rule rule[WL_RULES_MAX];
	__u8 member[WL_RULE_MEMBERS]; /* WL_MEMBER_*; 0 behind the last test */
	__u32 search_root[2]; /* the state in which a search begins: for bytes as they are, and for letters of
				 either case */
	__u32 search_reach;   /* no pattern counts that ends behind so many bytes; 0: there are none */
	__u8 plugin[WL_RULE_PLUGINS]; /* by place: the bit of WL_DIM_PAYLOAD that the plug-in there sets; 0:
					 it is not asked */
};

/*
 * What a wildcard rule has done, in one lane and in its own cache line. Written by the lane, read by anybody.
 * Times are those of packets (CLOCK_MONOTONIC, UTC where packets come from a file); 0: never.
 */
struct wl_rule_counts {
	__u64 packets;
	__u64 bytes; /* on the wire */
	__u64 first_ns;
	__u64 last_ns;
	__u64 inserted; /* exact-match rules that it has made */
	__u64 refused;	/* that it could not make: the table was full */
	__u64 pad[2];
};

/*
 * What an exact-match rule is found by. 52 bytes. A shape is looked for only where the packet has its fields:
 * addresses and the protocol in IPv4 and IPv6, ports there too but in later fragments, a label or a tunnel
 * in packets that have one. A packet of a protocol without ports has 0 in their place.
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
 * An exact-match rule, with what it has done. 72 bytes. Several lanes hit one entry, so they add atomically.
 * It has expired where nothing has hit it for idle_s, or hard_s after it was made (0: never): an entry that
 * has is not there, whether or not somebody has taken it out of the table.
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
#define WL_EVALUATED_TAGGED 0x1 /* `tag` is valid */
#define WL_EVALUATED_MORE	 0x2 /* there were more hits than WL_RULE_HITS: the rules behind were not looked at */
#define WL_EVALUATED_HALF	 0x4 /* not all of the payload was searched that should have been */
#define WL_EVALUATED_FOUND	 0x8 /* more patterns were found than there are in `pattern` */

/* What was decided. */
struct wl_evaluated {
	__u32 verdict;	/* enum wl_rule_verdict; not WL_VERDICT_NONE */
	__u32 rule_id;	/* 0: no rule was hit */
	__u32 truncate; /* WL_RULE_NO_LIMIT: not */
	__u32 tag;
	__u32 flags;			/* WL_EVALUATED_* */
	__u32 hits;			/* wildcard rules */
	__u32 pattern[WL_SEARCH_FOUND]; /* ids of patterns, as they were found; 0 behind the last */
	__u32 egress_devices;			/* bit per egress device: the packet is sent there */
	__u32 to;			/* of these, the one that it is redirected to; 0: none */
};

/* What a packet is evaluated by beside what was parsed. */
struct wl_rule_facts {
	__u64 now_ns; /* the packet's time */
	__u32 wire_len;
	__u32 queue;
	__u32 egress;	    /* not 0: the packet is leaving the device */
	__u32 seed;	    /* of the flow hash */
	__u32 more_packets; /* of an aggregate (GRO, GSO): packets on the wire beside the first */
	__u32 more_bytes;   /* and what their headers add to wire_len */
};

/* wl_search.phase */
#define WL_SEARCH_UNASKED 0
#define WL_SEARCH_ASKED	  1 /* evaluating goes on once the payload has been searched */
#define WL_SEARCH_DONE	  2

/* Where a payload is searched. */
struct wl_search {
	__u32 phase;
	__u32 captured; /* bytes of the packet that there are; the caller's */
	__u32 from;	/* the packet's byte at which the next block begins */
	__u32 left;	/* bytes from there on that are still to be searched */
	__u32 at;	/* bytes of the payload that have been */
	__u32 length;	/* of the block */
	__u32 held;	/* the byte of WL_DIM_PAYLOAD, as far as patterns go */
	__u32 outputs;	/* that were looked at */
	__u32 asks;	/* bit per place of a plug-in that is to be asked */
	__u32 matched;	/* the byte of WL_DIM_PAYLOAD, as far as plug-ins go */
	__u32 said;	/* by place, 8 bits each: the plug-in's verdict; 0: it does not match */
	__u32 unasked;	/* 1: one was not asked, as it has been switched off */
	__u32 noted;	/* 1: one has left a note */
	__u32 state[2]; /* by wl_rule_set.search_root */
	__u32 gates;	/* that are open */
	__u32 kept;	/* gates, see wl_search_output */
	__u32 since;	/* bytes of the payload before the last one that was opened */
	__u8 block[WL_SEARCH_BLOCK];
};

/*
 * Where a packet is evaluated: in BPF, memory of the lane's own, whose contents the verifier does not track.
 * The caller fills `facts`.
 */
struct wl_rule_work {
	struct wl_evaluated evaluated;
	struct wl_rule_facts facts;
	struct wl_exact_value made;
	struct wl_exact_key key;
	__u32 acts; /* sampling lets the rule at hand act */
	__u64 live; /* words in which a wildcard rule may still be hit */
	__u64 pivot; /* words in which some clause's pivot is satisfied */
	__u32 from; /* the first clause that is still looked at */
	__u32 rule; /* the wildcard rule at hand: its place in wl_rule_set.rule */
	/* For the includer's use. */
	__u32 at;	   /* where the chosen headers are */
	__u32 first_count; /* of the lane's counters */
	__u32 target;	   /* the group and its set */
	__u32 makes;
	__u16 make[WL_RULE_HITS]; /* rules that are to make exact ones */
	__u32 of[15];		  /* by dimension: the class that was found, where the dimension is used */
	__u32 lane;
	__u64 bits; /* clauses of the word at hand that accept the packet */
	__u32 held; /* the byte of WL_DIM_SETS */
	struct wl_member member;
	struct wl_search search;
};

#endif
