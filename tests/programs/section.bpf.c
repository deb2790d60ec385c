// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* A complete XDP program, in a section of its own, whose name the test changes. */
#include <wirelane/steer.h>

__attribute__((section("_[31mxdp"), used)) static int pass(void *context)
{
	return 2;
}

STEERING_PROGRAM(packet)
{
	return 0;
}
