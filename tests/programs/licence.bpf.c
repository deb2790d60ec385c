// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Names a licence, as complete BPF programs do. */
#include <wirelane/steer.h>

char licence[] __attribute__((section("license"), used)) = "GPL";

STEERING_PROGRAM(packet)
{
	return 0;
}
