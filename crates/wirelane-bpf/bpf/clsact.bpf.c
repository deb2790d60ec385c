// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Filter on a clsact qdisc where tc has no links (before Linux 6.6): a tail call to the capture program.
 *
 * A tc filter has no owner: it stays when the process that added it is killed. This one has no logic of its
 * own. The capture program is in an array that only the file descriptors of running processes hold: the
 * kernel empties it when the last of them is closed, however its process ends (prog_array_map_clear() in
 * kernel/bpf/arraymap.c). From then on every packet passes unchanged, until the filter itself is removed.
 */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} wl_entry SEC(".maps");

SEC("tc")
int wirelane_clsact(struct __sk_buff *skb)
{
	bpf_tail_call(skb, &wl_entry, 0);
	return TC_ACT_UNSPEC; /* on to the next filter */
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
