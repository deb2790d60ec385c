/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The packet functions compiled natively: what crates/datapath/src/native.rs calls. */
#include "packet/types.h"

__u32 wl_native_record_size(void);

__u32 wl_native_record_size(void)
{
	return sizeof(struct wl_record);
}
