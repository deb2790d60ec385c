/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Sketches compiled natively: what crates/wirelane-bpf/src/sketch.rs calls, and the layout for the test that
 * compares it. */
#include <stddef.h>

#include "lib/sketch.h"

__u64 wl_native_key_hash(const __u64 *key, __u64 seed);
void wl_native_hll_add(__u8 *registers, __u32 bits, __u64 hash);
void wl_native_top_add(struct wl_top_entry *set, const __u64 *key, __u64 weight);
__u32 wl_native_class(__u64 value);
void wl_native_sketch_layout(__u32 *numbers);

__u64 wl_native_key_hash(const __u64 *key, __u64 seed)
{
	return wl_key_hash(key, seed);
}

void wl_native_hll_add(__u8 *registers, __u32 bits, __u64 hash)
{
	wl_hll_add(registers, bits, hash);
}

void wl_native_top_add(struct wl_top_entry *set, const __u64 *key, __u64 weight)
{
	wl_top_add(set, key, weight);
}

__u32 wl_native_class(__u64 value)
{
	return wl_class(value);
}

/* Size and offsets of an entry, and the constants: nine numbers. */
void wl_native_sketch_layout(__u32 *numbers)
{
	const __u32 all[] = {
	    sizeof(struct wl_top_entry),
	    offsetof(struct wl_top_entry, count),
	    offsetof(struct wl_top_entry, error),
	    offsetof(struct wl_top_entry, key),
	    WL_KEY_WORDS,
	    WL_TOP_WAYS,
	    WL_HLL_MIN_BITS,
	    WL_HLL_MAX_BITS,
	    WL_CLASSES,
	};
	__u32 i;

	for (i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		numbers[i] = all[i];
}
