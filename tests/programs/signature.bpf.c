// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Has the function's name, without the header, and other arguments. */
int wirelane_steer_v1_0(int worker, int more);

int wirelane_steer_v1_0(int worker, int more)
{
	return worker + more;
}
