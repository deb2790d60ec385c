/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Calls the function of a plug-in for changes of rules (PLUGIN_RULE() of include/wirelane/plugin.h). It is
 * attached nowhere: a capture links it with the object of the plug-in, and whoever changes rules runs it
 * (crates/wirelane/src/engine/ring/program/rule_calls.rs).
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "../include/wirelane/plugin.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Replaced by the plug-in's. */
__weak int wirelane_rule_v1_0(const struct plugin_rule *rule)
{
	return 0;
}

SEC("syscall")
int wirelane_rule_change(struct plugin_rule *given)
{
	struct plugin_rule rule;

	/* A function of its own takes memory, which the context is not. */
	__builtin_memcpy(&rule, given, sizeof(rule));
	return wirelane_rule_v1_0(&rule);
}
