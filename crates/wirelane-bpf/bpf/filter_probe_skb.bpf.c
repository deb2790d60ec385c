// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
#include "ctx_skb.h"
#include "filter_probe.h"
