/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* All C declarations that Rust uses: bindgen reads this file (build.rs). */
#include "lib/application.h"
#include "lib/filter.h"
#include "lib/hash.h"
#include "lib/http_read.h"
#include "lib/parse.h"
#include "lib/record.h"
#include "lib/rtp.h"
#include "lib/shed.h"
#include "lib/sketch.h"
#include "lib/steer.h"
#include "instance.h"
#include "native.h"
