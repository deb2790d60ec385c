/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * State and parameters of functions of users: of plug-ins (plugin.h) and steering programs (steer.h),
 * which include this file.
 *
 * Maps
 *	struct host {
 *		packet_u8 address[16];
 *	};
 *	struct count {
 *		packet_u64 packets, bytes;
 *	};
 *	STATE_HASH(hosts, 65536, struct host, struct count);
 *
 *	struct count new = {0}, *count;
 *	struct host key;
 *
 *	__builtin_memcpy(key.address, packet->outer.src, sizeof(key.address));
 *	if (!state_find(packet, hosts, &key))
 *		state_insert(packet, hosts, &key, &new);
 *	count = state_find(packet, hosts, &key);
 *	if (!count)
 *		return PLUGIN_NO;               // the map is full
 *	state_add(&count->packets, 1);
 *
 *   Each capture has maps of its own, also where several use the same object: they are created empty with
 *   the capture, are the same on all its devices, and are removed with it. `wirelane rules state` and the
 *   library (Capture::state()) read them while the capture runs.
 *
 *   STATE_HASH, STATE_LRU_HASH, STATE_ARRAY             one value for all CPUs: change it with state_add()
 *   STATE_CPU_HASH, STATE_CPU_LRU_HASH, STATE_CPU_ARRAY one value for each CPU, which no other CPU changes
 *
 *   A hash map that is full refuses further keys; an LRU map forgets keys that were not used for long
 *   instead. The keys of an array are packet_u32, from 0. Up to STATE_MAPS maps with names of up to
 *   STATE_NAME letters, of STATE_MIB MiB together. They are allocated when the capture starts.
 *
 *   Keys have to be on the stack, without uninitialised bytes between fields: { 0 } also fills padding.
 *
 * Parameters
 *	STATE_PARAMETER(packet_u32, threshold, 10);
 *
 *   A constant which rule files may set, as long as the capture has not started:
 *
 *	[plugins.NAME.parameters]
 *	threshold = 20
 *
 *   The verifier knows the value: code that it excludes is not even loaded. Types: integers, and packet_bool.
 */
#ifndef WIRELANE_STATE_H
#define WIRELANE_STATE_H

#include "packet.h"

#define STATE_MAPS 4
#define STATE_NAME 12
#define STATE_MIB  64

typedef _Bool packet_bool;

/* BPF helpers by their numbers, and kinds of maps (linux/bpf.h). */
static void *(*const state_helper_lookup)(void *, const void *)__attribute__((unused)) = (void *)1;
static long (*const state_helper_update)(void *, const void *, const void *, packet_u64)
    __attribute__((unused)) = (void *)2;
static long (*const state_helper_delete)(void *, const void *) __attribute__((unused)) = (void *)3;

/* The kernel's map is an array of maps with one for each capture on the device. */
#define STATE_CAPTURES 64
#define STATE_MAP(name, kind, entries, key_type, value_type)                                                 \
	struct state_of_##name {                                                                             \
		int (*type)[kind];                                                                           \
		int (*max_entries)[entries];                                                                 \
		int (*key_size)[sizeof(key_type)];                                                           \
		int (*value_size)[sizeof(value_type)];                                                       \
	};                                                                                                   \
	struct state_types_of_##name {                                                                       \
		key_type key;                                                                                \
		value_type value;                                                                            \
	};                                                                                                   \
	static const struct state_types_of_##name state_types_##name                                         \
	    __attribute__((section("wirelane.state"), used)) = {0};                                          \
	_Static_assert(sizeof(#name) <= STATE_NAME + 1, "a map's name has 12 letters at most: " #name);      \
	struct {                                                                                             \
		int (*type)[12];                                                                             \
		int (*max_entries)[STATE_CAPTURES];                                                          \
		packet_u32 *key;                                                                             \
		struct state_of_##name *values[];                                                            \
	} u0_##name __attribute__((section(".maps"), used))

#define STATE_HASH(name, entries, key, value)	      STATE_MAP(name, 1, entries, key, value)
#define STATE_ARRAY(name, entries, value)	      STATE_MAP(name, 2, entries, packet_u32, value)
#define STATE_CPU_HASH(name, entries, key, value)     STATE_MAP(name, 5, entries, key, value)
#define STATE_CPU_ARRAY(name, entries, value)	      STATE_MAP(name, 6, entries, packet_u32, value)
#define STATE_LRU_HASH(name, entries, key, value)     STATE_MAP(name, 9, entries, key, value)
#define STATE_CPU_LRU_HASH(name, entries, key, value) STATE_MAP(name, 10, entries, key, value)

#define STATE_PARAMETER(type, name, value)	      static const volatile type name __attribute__((used)) = (value)

PACKET_INLINE void *state_find_in(packet_u32 capture, void *maps, const void *key)
{
	void *map = state_helper_lookup(maps, &capture);

	return map ? state_helper_lookup(map, key) : 0;
}

PACKET_INLINE long state_put_in(packet_u32 capture, void *maps, const void *key, const void *value,
				packet_u64 flags)
{
	void *map = state_helper_lookup(maps, &capture);

	return map ? state_helper_update(map, key, value, flags) : -1;
}

PACKET_INLINE long state_remove_from(packet_u32 capture, void *maps, const void *key)
{
	void *map = state_helper_lookup(maps, &capture);

	return map ? state_helper_delete(map, key) : -1;
}

#define STATE_KEY_OF(name, at)                                                                               \
	({                                                                                                   \
		const __typeof__(((struct state_types_of_##name *)0)->key) *state_key_at = (at);             \
		state_key_at;                                                                                \
	})
#define STATE_VALUE_OF(name, at)                                                                             \
	({                                                                                                   \
		const __typeof__(((struct state_types_of_##name *)0)->value) *state_value_at = (at);         \
		state_value_at;                                                                              \
	})

/*
 * In the following, `of` is the packet (plugin.h, steer.h), or the rule of PLUGIN_RULE() (plugin.h).
 *
 * The value of a key, which may be changed in place; NULL if there is none.
 */
#define state_find(of, name, key_at)                                                                         \
	((__typeof__(&((struct state_types_of_##name *)0)->value))state_find_in((of)->capture, &u0_##name,   \
										STATE_KEY_OF(name, key_at)))

/* Sets the value of a key: below 0 if the map is full. */
#define state_set(of, name, key_at, value_at)                                                                \
	state_put_in((of)->capture, &u0_##name, STATE_KEY_OF(name, key_at), STATE_VALUE_OF(name, value_at), 0)

/* Adds a key with its value, if it has none yet: below 0 if it has one (another CPU may be faster), or if the
 * map is full.
 */
#define state_insert(of, name, key_at, value_at)                                                             \
	state_put_in((of)->capture, &u0_##name, STATE_KEY_OF(name, key_at), STATE_VALUE_OF(name, value_at), 1)

/* Removes a key: below 0 if it was not there. */
#define state_remove(of, name, key_at)                                                                       \
	state_remove_from((of)->capture, &u0_##name, STATE_KEY_OF(name, key_at))

/* Adds to a number of 32 or 64 bits that other CPUs may change, too. Of 64 bits, the result is the number
 * before. */
#define state_add(number_at, value) __sync_fetch_and_add((number_at), (value))

#endif
