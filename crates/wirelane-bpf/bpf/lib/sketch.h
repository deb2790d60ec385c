/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Sketches: summaries of many different keys in little memory, with a known error.
 *
 * wl_hll_add() is HyperLogLog (Flajolet et al., 2007), which estimates the number of different keys. 2^bits
 * registers of a byte; the standard error is 1.04 / sqrt(2^bits). The reader of the registers computes the
 * estimate: there are no fractions here. Registers of several writers are merged by their maxima.
 *
 * wl_top_add() is Space-Saving (Metwally et al., 2005), which finds the keys with the largest counts, in sets
 * of WL_TOP_WAYS entries. The hash of the key selects the set, as in a CPU's cache. In a full set a new key
 * replaces the one with the least count, and inherits that count. So, always, within one set:
 *
 *	count - error <= true count of the key <= count
 *	the true count of a key without an entry <= the least count in its set (0 if an entry is free)
 *
 * wl_class() is the class of a number in a histogram by powers of two.
 *
 * Integers only, no helpers, no pointers in structs; loops are bounded by WL_TOP_WAYS and WL_KEY_WORDS, so
 * that all of it can run in the kernel.
 */
#ifndef WL_PACKET_SKETCH_H
#define WL_PACKET_SKETCH_H

#include "lib/hash.h"

#define WL_KEY_WORDS	6 /* of a key */
#define WL_TOP_WAYS	8 /* entries of a set */
#define WL_HLL_MIN_BITS 4
#define WL_HLL_MAX_BITS 16
#define WL_CLASSES	40 /* of a histogram: 0, 1, 2-3, 4-7, ..., 2^38 and more */

/* A key and its count. 64 bytes; free if count is 0. */
struct wl_top_entry {
	__u64 count; /* upper bound of the key's count */
	__u64 error; /* part of it that may belong to other keys */
	__u64 key[WL_KEY_WORDS];
};

/* The hash of a key. Every bit of it depends on every bit of the key; the seed makes it unpredictable. */
static __always_inline __u64 wl_key_hash(const __u64 *key, __u64 seed)
{
	__u64 hash = seed;
	__u32 i;

	for (i = 0; i < WL_KEY_WORDS; i++) {
		hash = (hash ^ key[i]) * WL_HASH_K1;
		hash ^= hash >> 32;
	}
	hash = (hash ^ (hash >> 29)) * WL_HASH_K2;
	hash = (hash ^ (hash >> 32)) * WL_HASH_K3;
	return hash ^ (hash >> 29);
}

/* Number of leading zeros; 64 for 0. */
static __always_inline __u32 wl_zeros(__u64 value)
{
	__u32 zeros = 0;

	if (!value)
		return 64;
	if (!(value >> 32)) {
		zeros += 32;
		value <<= 32;
	}
	if (!(value >> 48)) {
		zeros += 16;
		value <<= 16;
	}
	if (!(value >> 56)) {
		zeros += 8;
		value <<= 8;
	}
	if (!(value >> 60)) {
		zeros += 4;
		value <<= 4;
	}
	if (!(value >> 62)) {
		zeros += 2;
		value <<= 2;
	}
	return zeros + !(value >> 63);
}

/* Counts a key, by its hash, in 2^bits registers; `bits` is in the range WL_HLL_MIN_BITS to
 * WL_HLL_MAX_BITS. */
static __always_inline void wl_hll_add(__u8 *registers, __u32 bits, __u64 hash)
{
	__u64 place = hash >> (64 - bits);
	/* A bit behind the rest of the hash limits the rank to 65 - bits. */
	__u64 rest = hash << bits | 1ULL << (bits - 1);
	__u8 rank = wl_zeros(rest) + 1;

	if (registers[place] < rank)
		registers[place] = rank;
}

/* Adds `weight` to a key in its set. */
static __always_inline void wl_top_add(struct wl_top_entry *set, const __u64 *key, __u64 weight)
{
	__u64 least = ~0ULL;
	__u32 place = 0;
	__u32 i, word;

	for (i = 0; i < WL_TOP_WAYS; i++) {
		__u64 differ = 0;

		for (word = 0; word < WL_KEY_WORDS; word++)
			differ |= set[i].key[word] ^ key[word];
		if (set[i].count && !differ) {
			set[i].count += weight;
			return;
		}
		if (set[i].count < least) {
			least = set[i].count;
			place = i;
		}
	}
	set[place].count = least + weight;
	set[place].error = least;
	for (word = 0; word < WL_KEY_WORDS; word++)
		set[place].key[word] = key[word];
}

/* The class of a number: 0 for 0, 1 for 1, 2 for 2 and 3, and so on; the last one has all larger numbers. */
static __always_inline __u32 wl_class(__u64 value)
{
	__u32 class = 64 - wl_zeros(value);

	return class < WL_CLASSES ? class : WL_CLASSES - 1;
}

#endif
