// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Built with a future version of the header. */
#include <wirelane/steer.h>
#undef STEER_FUNCTION
#define STEER_FUNCTION wirelane_steer_v2_0

STEERING_PROGRAM(packet)
{
	return 0;
}
