// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Has maps that are refused; tests/build.rs says which. */
#include <wirelane/plugin.h>

struct value {
	packet_u64 numbers[16];
};

#define CAPTURES                                                                                             \
	int(*type)[12];                                                                                      \
	int(*max_entries)[STATE_CAPTURES];                                                                   \
	packet_u32 *key

struct programs {
	int (*type)[3]; /* BPF_MAP_TYPE_PROG_ARRAY */
	int (*max_entries)[4];
	packet_u32 *key;
	packet_u32 *value;
};

struct numbers {
	int (*type)[2]; /* BPF_MAP_TYPE_ARRAY */
	int (*max_entries)[4];
	packet_u32 *key;
	packet_u32 *value;
};

#if defined(MANY)
STATE_ARRAY(a, 1, packet_u32);
STATE_ARRAY(b, 1, packet_u32);
STATE_ARRAY(c, 1, packet_u32);
STATE_ARRAY(d, 1, packet_u32);
STATE_ARRAY(e, 1, packet_u32);
#elif defined(RING)
struct {
	int (*type)[27]; /* BPF_MAP_TYPE_RINGBUF */
	int (*max_entries)[65536];
} u0_ring __attribute__((section(".maps"), used));
#elif defined(PROGRAMS)
struct {
	CAPTURES;
	struct programs *values[];
} u0_programs __attribute__((section(".maps"), used));
#elif defined(PINNED)
struct {
	CAPTURES;
	int (*pinning)[1]; /* LIBBPF_PIN_BY_NAME */
	struct numbers *values[];
} u0_pinned __attribute__((section(".maps"), used));
#else
STATE_HASH(large, 1 << 19, packet_u64, struct value);
STATE_CPU_ARRAY(small, 16, packet_u64);
#endif

PLUGIN(packet, answer)
{
	return PLUGIN_MATCH;
}
