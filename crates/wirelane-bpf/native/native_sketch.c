/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Sketches compiled natively, for crates/wirelane-bpf/src/sketch.rs. */
#include <stddef.h>

#include "native.h"
#include "lib/sketch.h"

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
