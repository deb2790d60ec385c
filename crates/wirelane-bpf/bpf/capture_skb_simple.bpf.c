// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* The programs of capture_skb.bpf.c for one group without features (offer_first.h), over the same maps. */
#define WL_SIMPLE 1
#include "capture_skb.bpf.c"
