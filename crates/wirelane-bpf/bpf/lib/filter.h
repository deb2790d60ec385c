/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Filter expressions: an interpreter of steps.
 *
 * libpcap compiles an expression to classic BPF, and crates/wirelane-filter/src/translate.rs translates that
 * one to one into the steps below: an accumulator `a`, an index `x`, 16 words of memory, and jumps that only
 * go forward. The same code interprets them in the kernel and natively.
 *
 * A file that includes this one first defines struct wl_filter_packet and the access to its bytes (a packet
 * in the kernel may have more bytes than its linear part, which take a helper call, and this file calls no
 * helpers):
 *
 *	static int wl_filter_load(const struct wl_filter_packet *packet, __u32 at, __u32 size, __u32 *value);
 *
 * sets *value to the `size` (1, 2 or 4) bytes at offset `at`, in network byte order, and returns 0, or
 * another number if the packet does not have all of them.
 *
 * How the verifier accepts it: the index of a step is masked, `a` and `x` are never used for an address, and
 * the packet's bytes are read through wl_filter_load(). All paths through a step must end in one state, which
 * the verifier walks on from once. So the next position is always computed from a number in the map (also
 * after a step that does not jump), and `a` and `x` are mixed with `zero`, which is 0 and is read from memory
 * whose contents the verifier does not track.
 */
#ifndef WL_PACKET_FILTER_H
#define WL_PACKET_FILTER_H

#include "lib/cursor.h"

#define WL_FILTER_STEPS	   4096 /* a power of two; the most that Linux takes of a socket's filter too */
#define WL_FILTER_TEXT	   1016
#define WL_FILTER_MEMORY   16

#define WL_FILTER_GONE_OUT 4 /* PACKET_OUTGOING, as classic BPF has it; 0 for what came in */

/* Operation of a step. "value" is wl_step.value, or x if wl_step.with_x is 1. */
enum wl_step_op {
	WL_STEP_REFUSE = 0,  /* the end: also of unused steps */
	WL_STEP_ACCEPT,	     /* the end */
	WL_STEP_IF_A,	     /* the end: accepted where a is not 0 */
	WL_STEP_LOAD,	     /* a = `size` bytes at offset wl_step.value (plus x with with_x) */
	WL_STEP_HEADER,	     /* x = 4 * the lower half of the byte there: an IPv4 header's length */
	WL_STEP_EQUAL,	     /* jumps: on by `yes` steps where a == value, else by `no` */
	WL_STEP_GREATER,     /* a > value */
	WL_STEP_AT_LEAST,    /* a >= value */
	WL_STEP_SOME_BIT,    /* a & value */
	WL_STEP_A_IS,	     /* a = value */
	WL_STEP_A_LENGTH,    /* a = length of the packet on the wire */
	WL_STEP_A_DIRECTION, /* a = WL_FILTER_GONE_OUT or 0 */
	WL_STEP_A_RECALL,    /* a = memory[value] */
	WL_STEP_X_IS,	     /* x = wl_step.value */
	WL_STEP_X_IS_A,
	WL_STEP_X_LENGTH,
	WL_STEP_X_RECALL,
	WL_STEP_KEEP_A, /* memory[value] = a */
	WL_STEP_KEEP_X,
	WL_STEP_ADD, /* a = a + value, and so on */
	WL_STEP_SUBTRACT,
	WL_STEP_MULTIPLY,
	WL_STEP_DIVIDE, /* by 0: the packet is refused */
	WL_STEP_MODULO,
	WL_STEP_AND,
	WL_STEP_OR,
	WL_STEP_XOR,
	WL_STEP_LEFT, /* by 32 or more: 0 */
	WL_STEP_RIGHT,
	WL_STEP_NEGATE,
	WL_STEP_GO, /* on by `yes` steps */
};

struct wl_step {
	__u8 op;     /* enum wl_step_op */
	__u8 with_x; /* 1: the value is x */
	__u8 size;   /* of a load */
	__u8 pad;
	__u16 yes; /* how many steps further it goes on: 1 where nothing is asked */
	__u16 no;
	__u32 value;
	__u32 pad2;
};

/* A compiled expression. An instance has two for each group, one of them in use. */
struct wl_filter {
	__u32 count;		   /* steps */
	__u32 text_length;	   /* of the whole expression, of which `text` has what fits */
	__u8 text[WL_FILTER_TEXT]; /* for people */
	struct wl_step steps[WL_FILTER_STEPS];
};

/* State of the interpreter between two steps. In BPF it is in memory of the lane. */
struct wl_filter_run {
	__u32 a;
	__u32 x;
	__u32 at;     /* the step that is next */
	__u32 result; /* 1: accepted */
	__u32 zero;   /* see the head of this file */
	/* Fields of the evaluated packet. */
	__u32 wire_len;
	__u32 direction;
	__u32 tagged; /* not 0: a tag is put back into it */
	__u32 memory[WL_FILTER_MEMORY];
};

struct wl_filter_packet;

static __always_inline int wl_filter_load(const struct wl_filter_packet *packet, __u32 at, __u32 size,
					  __u32 *value);
static __always_inline __u32 wl_filter_wire_len(const struct wl_filter_packet *packet);
static __always_inline __u32 wl_filter_direction(const struct wl_filter_packet *packet);

/* The registers of a run: on the stack, so that the compiler keeps them in machine registers. */
struct wl_filter_registers {
	__u32 a;
	__u32 x;
	__u32 at;
};

#define WL_FILTER_ON (-1) /* go on with the next step; otherwise the end: 1, accepted, or 0 */

/* Runs one step. `step` is the one at r->at. */
static __always_inline int wl_filter_step(const struct wl_step *step, struct wl_filter_registers *r,
					  const struct wl_filter_packet *packet, __u32 *memory)
{
	__u32 value = step->value, op = step->op, loaded;
	int taken = 1;

	if (op == WL_STEP_LOAD || op == WL_STEP_HEADER) {
		__u32 at = value;

		if (step->with_x) {
			at += r->x;
			/* An offset beyond 32 bits is outside of any packet. */
			if (at < value)
				return 0;
		}
		if (wl_filter_load(packet, at, op == WL_STEP_HEADER ? 1 : step->size, &loaded))
			return 0;
		if (op == WL_STEP_HEADER)
			r->x = (loaded & 0xf) << 2;
		else
			r->a = loaded;
		r->at += step->yes;
		return WL_FILTER_ON;
	}
	if (step->with_x)
		value = r->x;
	switch (op) {
	case WL_STEP_EQUAL:
		taken = r->a == value;
		break;
	case WL_STEP_SOME_BIT:
		taken = (r->a & value) != 0;
		break;
	case WL_STEP_GREATER:
		taken = r->a > value;
		break;
	case WL_STEP_AT_LEAST:
		taken = r->a >= value;
		break;
	case WL_STEP_ACCEPT:
		return 1;
	case WL_STEP_IF_A:
		return r->a != 0;
	case WL_STEP_A_IS:
		r->a = value;
		break;
	case WL_STEP_A_LENGTH:
		r->a = wl_filter_wire_len(packet);
		break;
	case WL_STEP_A_DIRECTION:
		r->a = wl_filter_direction(packet);
		break;
	case WL_STEP_A_RECALL:
		r->a = memory[value & (WL_FILTER_MEMORY - 1)];
		break;
	case WL_STEP_X_IS:
		r->x = value;
		break;
	case WL_STEP_X_IS_A:
		r->x = r->a;
		break;
	case WL_STEP_X_LENGTH:
		r->x = wl_filter_wire_len(packet);
		break;
	case WL_STEP_X_RECALL:
		r->x = memory[value & (WL_FILTER_MEMORY - 1)];
		break;
	case WL_STEP_KEEP_A:
		memory[value & (WL_FILTER_MEMORY - 1)] = r->a;
		break;
	case WL_STEP_KEEP_X:
		/* With `with_x`, value would be x, which is not the index here. */
		memory[step->value & (WL_FILTER_MEMORY - 1)] = r->x;
		break;
	case WL_STEP_ADD:
		r->a += value;
		break;
	case WL_STEP_SUBTRACT:
		r->a -= value;
		break;
	case WL_STEP_MULTIPLY:
		r->a *= value;
		break;
	case WL_STEP_DIVIDE:
		if (!value)
			return 0;
		r->a /= value;
		break;
	case WL_STEP_MODULO:
		if (!value)
			return 0;
		r->a %= value;
		break;
	case WL_STEP_AND:
		r->a &= value;
		break;
	case WL_STEP_OR:
		r->a |= value;
		break;
	case WL_STEP_XOR:
		r->a ^= value;
		break;
	case WL_STEP_LEFT:
		r->a = value < 32 ? r->a << value : 0;
		break;
	case WL_STEP_RIGHT:
		r->a = value < 32 ? r->a >> value : 0;
		break;
	case WL_STEP_NEGATE:
		r->a = -r->a;
		break;
	case WL_STEP_GO:
		break;
	default:
		/* WL_STEP_REFUSE, and invalid operations. */
		return 0;
	}
	r->at += taken ? step->yes : step->no;
	return WL_FILTER_ON;
}

#endif
