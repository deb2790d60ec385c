/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Calls functions in every state of a handle, and functions without a handle: states DEVICE DOWN FILE, where
 * DOWN is a device that is not set up and FILE can be written. The output is the same with every libpcap.
 *
 * states closed DEVICE: every call on a handle after it was closed. libpcap's manual does not define that,
 * and its own handles are freed memory then.
 */
#include <netdb.h>
#include <pcap/pcap.h>
#include <pcap-namedb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern char pcap_version[];
extern struct eproto {
	const char *s;
	u_short p;
} eproto_db[];

static char said[PCAP_ERRBUF_SIZE];
static int packets;

static void on_packet(u_char *user, const struct pcap_pkthdr *header, const u_char *bytes)
{
	(void)user, (void)header, (void)bytes;
	packets++;
}

#define SHOW(call)	 printf("%s: %d\n", #call, (int)(call))
#define SHOW_ERROR(call) printf("%s: %d [%s]\n", #call, (int)(call), pcap_geterr(handle))
#define SHOW_TEXT(call)	 printf("%s: %s\n", #call, (call))

static void not_activated(pcap_t *handle)
{
	struct bpf_program program = {0};
	struct pcap_pkthdr *header;
	struct pcap_stat stats;
	const u_char *bytes;
	int *list;

	SHOW_ERROR(pcap_stats(handle, &stats));
	SHOW(pcap_snapshot(handle));
	SHOW(pcap_datalink(handle));
	SHOW(pcap_datalink_ext(handle));
	SHOW(pcap_bufsize(handle));
	SHOW(pcap_is_swapped(handle));
	SHOW(pcap_major_version(handle));
	SHOW(pcap_minor_version(handle));
	SHOW(pcap_fileno(handle));
	SHOW(pcap_get_selectable_fd(handle));
	SHOW(pcap_file(handle) != NULL);
	SHOW_ERROR(pcap_list_datalinks(handle, &list));
	SHOW_ERROR(pcap_next_ex(handle, &header, &bytes));
	SHOW_ERROR(pcap_dispatch(handle, 1, on_packet, NULL));
	SHOW_ERROR(pcap_loop(handle, 1, on_packet, NULL));
	SHOW_ERROR(pcap_setdirection(handle, PCAP_D_IN));
	SHOW_ERROR(pcap_setfilter(handle, &program));
	SHOW_ERROR(pcap_inject(handle, "abc", 3));
	SHOW_ERROR(pcap_sendpacket(handle, (const u_char *)"abc", 3));
	SHOW_ERROR(pcap_compile(handle, &program, "ip", 1, 0));
	SHOW_ERROR(pcap_set_datalink(handle, DLT_EN10MB));
	SHOW_ERROR(pcap_dump_open(handle, "/dev/null") != NULL);
	SHOW(pcap_getnonblock(handle, said));
	SHOW(pcap_setnonblock(handle, 0, said));
	SHOW(pcap_can_set_rfmon(handle));
	SHOW(pcap_set_tstamp_type(handle, 99));
	SHOW(pcap_set_tstamp_type(handle, PCAP_TSTAMP_ADAPTER));
	SHOW(pcap_set_tstamp_type(handle, PCAP_TSTAMP_HOST));
	SHOW(pcap_set_tstamp_precision(handle, 2));
	SHOW(pcap_set_tstamp_precision(handle, PCAP_TSTAMP_PRECISION_NANO));
	SHOW(pcap_get_tstamp_precision(handle));
	SHOW(pcap_set_tstamp_precision(handle, PCAP_TSTAMP_PRECISION_MICRO));
	SHOW(pcap_set_buffer_size(handle, -1));
	SHOW(pcap_set_buffer_size(handle, 2 << 20));
	SHOW(pcap_set_protocol_linux(handle, 0));
	SHOW(pcap_list_tstamp_types(handle, &list));
	pcap_free_tstamp_types(list);
}

static void activated(pcap_t *handle)
{
	struct bpf_program program = {0};
	struct pcap_pkthdr *header;
	struct pcap_stat stats;
	const u_char *bytes;
	int *list, count, i;

	SHOW_ERROR(pcap_activate(handle));
	SHOW_ERROR(pcap_set_snaplen(handle, 3));
	SHOW_ERROR(pcap_set_promisc(handle, 1));
	SHOW_ERROR(pcap_set_rfmon(handle, 1));
	SHOW_ERROR(pcap_set_timeout(handle, 1));
	SHOW_ERROR(pcap_set_immediate_mode(handle, 1));
	SHOW_ERROR(pcap_set_buffer_size(handle, 1));
	SHOW_ERROR(pcap_set_tstamp_type(handle, 0));
	SHOW_ERROR(pcap_set_tstamp_precision(handle, 0));
	SHOW(pcap_snapshot(handle));
	SHOW(pcap_datalink(handle));
	SHOW(pcap_datalink_ext(handle));
	SHOW(pcap_is_swapped(handle));
	SHOW(pcap_major_version(handle));
	SHOW(pcap_minor_version(handle));
	SHOW(pcap_bufsize(handle));
	SHOW(pcap_file(handle) != NULL);
	SHOW(pcap_get_tstamp_precision(handle));
	count = pcap_list_datalinks(handle, &list);
	for (i = 0; i < count; i++)
		printf("link type %d\n", list[i]);
	pcap_free_datalinks(list);
	SHOW_ERROR(pcap_set_datalink(handle, DLT_RAW));
	SHOW(pcap_set_datalink(handle, DLT_DOCSIS));
	SHOW(pcap_datalink(handle));
	SHOW(pcap_set_datalink(handle, DLT_EN10MB));
	SHOW_ERROR(pcap_compile(handle, &program, "foo bar", 1, 0));
	SHOW_ERROR(pcap_compile(handle, &program, "ip and arp", 1, 0));
	SHOW_ERROR(pcap_setfilter(handle, NULL));
	SHOW_ERROR(pcap_setfilter(handle, &program));
	SHOW_ERROR(pcap_setdirection(handle, 7));
	SHOW(pcap_fileno(handle) >= 0);
	SHOW(pcap_get_selectable_fd(handle) >= 0);
	SHOW(pcap_get_required_select_timeout(handle) != NULL);
	SHOW_ERROR(pcap_inject(handle, "abc", 3));
	pcap_breakloop(handle);
	SHOW(pcap_dispatch(handle, -1, on_packet, NULL));
	pcap_breakloop(handle);
	SHOW(pcap_next_ex(handle, &header, &bytes));
	SHOW(pcap_setnonblock(handle, 1, said));
	SHOW(pcap_getnonblock(handle, said));
	SHOW(pcap_dispatch(handle, -1, on_packet, NULL));
	SHOW(pcap_next_ex(handle, &header, &bytes));
	SHOW(pcap_stats(handle, &stats));
	SHOW(stats.ps_recv + stats.ps_drop + stats.ps_ifdrop);
	pcap_perror(handle, "perror");
}

/* Without a device name, pcap_create() and pcap_open_live() capture on all devices. */
static void unnamed(void)
{
	pcap_t *handle = pcap_create(NULL, said);

	SHOW(pcap_activate(handle));
	SHOW(pcap_datalink(handle));
	pcap_close(handle);
	handle = pcap_open_live(NULL, 100, 0, 10, said);
	SHOW(pcap_datalink(handle));
	pcap_close(handle);
}

static void closed(const char *device)
{
	pcap_t *handle = pcap_open_live(device, 100, 0, 10, said), *other;

	pcap_close(handle);
	not_activated(handle);
	SHOW_ERROR(pcap_activate(handle));
	pcap_breakloop(handle);
	pcap_perror(handle, "perror");
	/* A second close of a handle has no effect. */
	pcap_close(handle);
	other = pcap_open_live(device, 100, 0, 10, said);
	pcap_close(handle);
	SHOW(pcap_snapshot(other));
	pcap_close(other);
}

static void refused(const char *down)
{
	const char *names[] = {"nosuch0", "", down, NULL};
	int i, status;

	for (i = 0; names[i]; i++) {
		pcap_t *handle = pcap_create(names[i], said);

		status = pcap_activate(handle);
		printf("%d: %d [%s] %s\n", i, status, pcap_geterr(handle), pcap_statustostr(status));
		pcap_close(handle);
		printf("%d [%s]\n", pcap_open_live(names[i], 100, 1, 10, said) != NULL, said);
	}
}

/* Functions that do not take the handle of a device: their output is the same for all handles. */
static void others(const char *file)
{
	struct pcap_pkthdr header = {.caplen = 60, .len = 60};
	u_char packet[60] = {[12] = 8, [14] = 0x45, [23] = 17};
	pcap_t *handle = pcap_open_dead(DLT_EN10MB, 100);
	struct bpf_program program;
	pcap_if_t *all, *one;
	pcap_dumper_t *dumper;
	bpf_u_int32 network, mask;
	struct addrinfo *address;
	int first, last, protocol, count = 0;
	FILE *stream;

	SHOW(pcap_compile(handle, &program, "udp", 1, 0));
	SHOW(bpf_validate(program.bf_insns, program.bf_len));
	SHOW(bpf_filter(program.bf_insns, packet, 60, 60) != 0);
	SHOW(pcap_offline_filter(&program, &header, packet) != 0);
	SHOW_TEXT(bpf_image(program.bf_insns, 0));
	fflush(stdout);
	bpf_dump(&program, 1);
	pcap_freecode(&program);
	SHOW(pcap_compile_nopcap(100, DLT_EN10MB, &program, "ip", 1, 0));
	pcap_freecode(&program);
	dumper = pcap_dump_open(handle, file);
	pcap_dump((u_char *)dumper, &header, packet);
	SHOW(pcap_dump_file(dumper) != NULL);
	SHOW(pcap_dump_flush(dumper));
	SHOW(pcap_dump_ftell(dumper));
	SHOW(pcap_dump_ftell64(dumper));
	pcap_dump_close(dumper);
	dumper = pcap_dump_open_append(handle, file);
	pcap_dump((u_char *)dumper, &header, packet);
	pcap_dump_close(dumper);
	pcap_close(handle);
	handle = pcap_open_offline_with_tstamp_precision(file, PCAP_TSTAMP_PRECISION_NANO, said);
	SHOW(pcap_get_tstamp_precision(handle));
	SHOW(pcap_major_version(handle));
	SHOW(pcap_snapshot(handle));
	SHOW(pcap_loop(handle, -1, on_packet, NULL));
	pcap_close(handle);
	handle = pcap_fopen_offline(fopen(file, "r"), said);
	SHOW(pcap_next(handle, &header) != NULL);
	SHOW(pcap_file(handle) != NULL);
	pcap_close(handle);
	handle = pcap_fopen_offline_with_tstamp_precision(fopen(file, "r"), 0, said);
	SHOW(pcap_dispatch(handle, -1, on_packet, NULL));
	dumper = pcap_dump_fopen(handle, fopen("/dev/null", "w"));
	SHOW(dumper != NULL);
	pcap_dump_close(dumper);
	pcap_close(handle);
	handle = pcap_open_offline(file, said);
	SHOW(pcap_datalink(handle));
	pcap_close(handle);
	handle = pcap_open_dead_with_tstamp_precision(DLT_RAW, 64, PCAP_TSTAMP_PRECISION_NANO);
	SHOW(pcap_get_tstamp_precision(handle));
	pcap_close(handle);
	SHOW(pcap_open_offline("/nonexistent", said) != NULL);
	SHOW_TEXT(said);
	SHOW(pcap_datalink_name_to_val("EN10MB"));
	SHOW_TEXT(pcap_datalink_val_to_name(1));
	SHOW_TEXT(pcap_datalink_val_to_description(1));
	SHOW_TEXT(pcap_datalink_val_to_description_or_dlt(9999));
	SHOW(pcap_tstamp_type_name_to_val("host"));
	SHOW_TEXT(pcap_tstamp_type_val_to_name(0));
	SHOW_TEXT(pcap_tstamp_type_val_to_description(0));
	SHOW_TEXT(pcap_statustostr(PCAP_ERROR_PERM_DENIED));
	SHOW_TEXT(pcap_strerror(2));
	SHOW_TEXT(pcap_version);
	SHOW(strncmp(pcap_lib_version(), "libpcap version 1.", 18));
	for (count = 0; eproto_db[count].s; count++)
		printf("%s %x\n", eproto_db[count].s, eproto_db[count].p);
	SHOW(pcap_nametoport("domain", &first, &protocol));
	SHOW(first);
	SHOW(pcap_nametoportrange("80-90", &first, &last, &protocol));
	SHOW(last);
	SHOW(pcap_nametoproto("udp"));
	SHOW(pcap_nametoeproto("ip6"));
	SHOW(pcap_nametollc("stp"));
	SHOW(pcap_nametonetaddr("nosuchnet"));
	SHOW(pcap_nametoaddr("127.0.0.1") != NULL);
	address = pcap_nametoaddrinfo("127.0.0.1");
	SHOW(address != NULL);
	freeaddrinfo(address);
	free(pcap_ether_aton("02:00:00:00:00:01"));
	SHOW(pcap_ether_hostton("nosuchhost") != NULL);
	stream = fopen("/dev/null", "r");
	SHOW(pcap_next_etherent(stream) != NULL);
	fclose(stream);
	SHOW(pcap_lookupnet("lo", &network, &mask, said));
	SHOW(pcap_lookupdev(said) != NULL);
	SHOW(pcap_findalldevs(&all, said));
	for (one = all, count = 0; one; one = one->next)
		count += !strcmp(one->name, "any") || !strcmp(one->name, "lo");
	SHOW(count);
	pcap_freealldevs(all);
	SHOW(pcap_init(PCAP_CHAR_ENC_LOCAL, said));
}

int main(int count, char **words)
{
	pcap_t *handle;
	int status;

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (count == 3 && !strcmp(words[1], "closed")) {
		closed(words[2]);
		return 0;
	}
	if (count != 4)
		return 2;
	handle = pcap_create(words[1], said);
	not_activated(handle);
	status = pcap_activate(handle);
	printf("activate: %d\n", status);
	activated(handle);
	pcap_close(handle);
	handle = pcap_open_live(words[1], 0, 0, 10, said);
	SHOW(pcap_snapshot(handle));
	pcap_close(handle);
	handle = pcap_create(words[1], said);
	pcap_set_rfmon(handle, 1);
	SHOW_ERROR(pcap_activate(handle));
	pcap_close(handle);
	refused(words[2]);
	others(words[3]);
	handle = pcap_create("any", said);
	SHOW(pcap_activate(handle));
	SHOW(pcap_datalink(handle));
	pcap_close(handle);
	unnamed();
	return 0;
}
