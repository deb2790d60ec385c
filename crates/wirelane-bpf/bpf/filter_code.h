/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Filters as instructions. The functions below are room only: before an object is loaded, their instructions
 * are replaced by those of all filters in use (crates/wirelane-filter/src/instructions/). The result is 1,
 * accepted, 0, or WL_FILTER_UNKNOWN.
 *
 * The instructions are replaced in the object and not linked into it: that takes milliseconds, in which a
 * running capture can change its filter, and a function that keeps its length keeps relocations and line
 * numbers valid.
 */
#ifndef WL_FILTER_CODE_H
#define WL_FILTER_CODE_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define WL_FILTER_UNKNOWN 2 /* the function has no filter of this number */

/* Instructions of the room, besides the first two and the last. */
#define WL_FILTER_PAD	   8189
#define WL_TEXT_OF(number) #number
#define WL_TEXT(number)	   WL_TEXT_OF(number)
#define WL_FILTER_ROOM(result)                                                                               \
	asm volatile("%0 = 2\n"                                                                              \
		     "if %0 == 2 goto +" WL_TEXT(WL_FILTER_PAD) "\n"                                         \
								".rept " WL_TEXT(WL_FILTER_PAD) "\n"         \
												"%0 = 2\n"   \
												".endr\n"    \
		     : "=r"(result))

/* Weak, so that the compiler passes all parameters, which the room does not use. `number` is the filter's,
 * `length` the packet's with its tag, `direction` WL_FILTER_GONE_OUT or 0, and `tag` the tag that is put
 * back, as on the wire, or 0. */
__weak __noinline int wl_filter_code(wl_ctx *ctx, __u32 number, __u32 length, __u32 direction, __u32 tag)
{
	int result;

	WL_FILTER_ROOM(result);
	return result;
}

#endif
