/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The ring between one lane and one worker: the writer's half. The reader's half is
 * crates/wirelane/src/engine/ring/reader.rs. Changes here must be repeated in the model of the ring, in
 * model/mod.rs beside it, which verifies both halves under loom.
 *
 * Positions are counts of bytes ever written (64 bit, they never wrap in practice). Position p is in segment
 * (p >> WL_SEGMENT_SHIFT) mod segments at offset p mod WL_SEGMENT; a record that crosses the end of a segment
 * spills into its slack, so a record is always contiguous.
 *
 *       tail            public_head        head
 *        |  being read      |  written, not  |        free
 *   -----+------------------+---published----+------------------->  positions
 *   worker writes        lane writes, every    lane writes,
 *                        publish_every bytes   every record
 *                        or WL_PUBLISH_NS
 *
 * Trust: the reader's end is memory that user space can write. It is read into a local once, and a tail that
 * is not within one ring's length behind the head counts as "no space": a hostile or broken reader loses only
 * its own packets. Offsets are masked, so the verifier proves that no position leads outside.
 *
 * Memory order:
 *   record bytes  before  head         (publish() below; pairs with Reader::peek)
 *   record bytes  before  public_head  (publish() below; pairs with Reader::available, Acquire)
 *   worker's reads  before  tail       (Release in Reader::release; here the branch on the tail that was read
 *                                       orders our later stores behind it: a control dependency)
 * x86 keeps stores in order, so plain stores do; elsewhere the store is an atomic exchange, which the BPF
 * instruction set defines as fully ordered (Documentation/bpf/standardization/instruction-set.rst, and
 * Documentation/memory-barriers.txt on value-returning atomics).
 */
#ifndef WL_RING_H
#define WL_RING_H

#include "maps.h"

/* A record is published at once if none was published for this time: it limits the rate of wake-ups. */
#define WL_PUBLISH_NS 1000000

static __always_inline void wl_publish(__u64 *index, __u64 value)
{
#if defined(__TARGET_ARCH_x86)
	barrier();
	*(volatile __u64 *)index = value;
#else
	__sync_lock_test_and_set(index, value);
#endif
}

static __always_inline struct wl_reader *wl_reader_of(void *data, __u32 ring_index)
{
	__u32 first = 0;
	struct wl_segment *readers = bpf_map_lookup_elem(data, &first);

	if (!readers)
		return 0;
	return (struct wl_reader *)readers->bytes + (ring_index & (WL_READERS - 1));
}

/* Makes the records up to `head` visible to a busy worker, and wakes a sleeping one that waits for them. */
static __always_inline void wl_ring_publish(struct wl_ring *ring, void *data, __u32 ring_index,
					    __u32 bell_key, __u64 head)
{
	struct wl_reader *reader;
	__u64 wake_at;
	void *bell;

	ring->published = head;
	wl_publish(&ring->public_head, head);

	reader = wl_reader_of(data, ring_index);
	if (!reader)
		return;
	/* No fence between the store above and this load: a worker that falls asleep between the two is woken
	 * by its time-out, which limits the delay; a fence would add a cost to every publication.
	 */
	wake_at = *(volatile __u64 *)&reader->wake_at;
	if (wake_at == WL_AWAKE || (__s64)(head - wake_at) < 0 || wake_at == ring->rung_for)
		return;
	ring->rung_for = wake_at;
	ring->bells++;
	bell = bpf_map_lookup_elem(&wl_bells, &bell_key);
	if (bell) {
		__u64 clapper = head;

		bpf_ringbuf_output(bell, &clapper, sizeof(clapper), BPF_RB_FORCE_WAKEUP);
	}
}

/* Bytes that the worker has not returned, according to its tail; an invalid tail means "all". */
static __always_inline __u64 wl_ring_unread(struct wl_ring *ring, void *data, __u32 ring_index,
					    __u32 segments)
{
	__u64 capacity = (__u64)segments << WL_SEGMENT_SHIFT;
	struct wl_reader *reader = wl_reader_of(data, ring_index);
	__u64 tail;

	if (!reader)
		return capacity;
	tail = *(volatile __u64 *)&reader->tail;
	if (ring->head - tail > capacity)
		return capacity;
	ring->cached_tail = tail;
	return ring->head - tail;
}

/*
 * Reserves space for a record of `size` bytes at the ring's head: returns a pointer to WL_SLACK writable
 * bytes, or NULL if the ring is full.
 */
static __always_inline __u8 *wl_ring_reserve(struct wl_ring *ring, void *data, __u32 ring_index,
					     __u32 segments, __u32 size)
{
	__u64 capacity = (__u64)segments << WL_SEGMENT_SHIFT;
	__u64 head = ring->head;
	struct wl_segment *segment;
	__u32 key;

	if (head + size - ring->cached_tail > capacity &&
	    wl_ring_unread(ring, data, ring_index, segments) + size > capacity)
		return 0;
	key = 1 + ring_index * segments + ((head >> WL_SEGMENT_SHIFT) & (segments - 1));
	segment = bpf_map_lookup_elem(data, &key);
	if (!segment)
		return 0;
	return segment->bytes + (head & (WL_SEGMENT - 1));
}

/*
 * Commits the record of `size` bytes at the head, stamped ts_ns. It is published at once if the last
 * publication was long ago, so that a single packet wakes its worker; otherwise with later records.
 */
static __always_inline void wl_ring_commit(struct wl_ring *ring, void *data, __u32 ring_index, __u32 bell_key,
					   __u32 publish_every, __u32 size, __u64 ts_ns)
{
	__u64 head = ring->head + size;

	wl_publish(&ring->head, head);
	if (head - ring->published >= publish_every || ts_ns - ring->published_ns >= WL_PUBLISH_NS) {
		ring->published_ns = ts_ns;
		wl_ring_publish(ring, data, ring_index, bell_key, head);
	}
}

#endif
