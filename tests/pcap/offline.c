/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * All functions of libpcap that process files and strings: offline FILE... reads each file with a filter,
 * copies it, and passes odd strings to the functions that take some. It prints the numbers of files and
 * packets.
 */
#include <pcap/pcap.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static unsigned long files, packets, refused;

static void on_packet(u_char *dumper, const struct pcap_pkthdr *header, const u_char *bytes)
{
	bpf_u_int32 i;
	unsigned char sum = 0;

	/* Reads every byte. */
	for (i = 0; i < header->caplen; i++)
		sum ^= bytes[i];
	packets += 1 + 0 * sum;
	if (dumper)
		pcap_dump(dumper, header, bytes);
}

static void read_file(const char *path)
{
	char said[PCAP_ERRBUF_SIZE];
	struct bpf_program filter;
	struct pcap_stat stat;
	pcap_dumper_t *dumper;
	pcap_t *handle = pcap_open_offline_with_tstamp_precision(path, PCAP_TSTAMP_PRECISION_NANO, said);

	if (!handle) {
		refused++;
		return;
	}
	files++;
	dumper = pcap_dump_open(handle, "/dev/null");
	if (pcap_compile(handle, &filter, "tcp or udp or arp or len > 0", 1, PCAP_NETMASK_UNKNOWN) == 0) {
		if (pcap_setfilter(handle, &filter))
			pcap_perror(handle, "pcap_setfilter");
		pcap_freecode(&filter);
	}
	(void)pcap_dispatch(handle, 1, on_packet, (u_char *)dumper);
	(void)pcap_loop(handle, -1, on_packet, (u_char *)dumper);
	(void)pcap_stats(handle, &stat);
	(void)pcap_geterr(handle);
	(void)pcap_datalink_val_to_name(pcap_datalink(handle));
	if (dumper)
		pcap_dump_close(dumper);
	pcap_close(handle);
}

static void odd_strings(void)
{
	static const char *odd[] = {"",
				    "a",
				    "\xff\xfe",
				    "1:2:3:4:5:6:7:8:9",
				    "::::::::::::",
				    "999999999999999999999",
				    "host %n%s%n",
				    "((((((((((((((((((",
				    "tcp[99999999999:4] = 1",
				    "ether host g:h:i"};
	char *huge = malloc(1 << 20), said[PCAP_ERRBUF_SIZE];
	pcap_t *handle = pcap_open_dead(DLT_EN10MB, 65535);
	struct bpf_program filter;
	size_t i;

	memset(huge, '(', (1 << 20) - 1);
	huge[(1 << 20) - 1] = 0;
	for (i = 0; i <= sizeof(odd) / sizeof(*odd); i++) {
		const char *text = i < sizeof(odd) / sizeof(*odd) ? odd[i] : huge;
		bpf_u_int32 net, mask;

		if (pcap_compile(handle, &filter, text, 1, 0) == 0)
			pcap_freecode(&filter);
		(void)pcap_datalink_name_to_val(text);
		(void)pcap_tstamp_type_name_to_val(text);
		(void)pcap_lookupnet(text, &net, &mask, said);
		handle = handle ? handle : pcap_open_dead(DLT_EN10MB, 65535);
		{
			pcap_t *live = pcap_create(text, said);

			if (live) {
				(void)pcap_set_snaplen(live, -1);
				(void)pcap_activate(live);
				pcap_close(live);
			}
		}
		(void)pcap_open_offline(text, said);
	}
	(void)pcap_strerror(-1);
	(void)pcap_statustostr(9999);
	pcap_close(handle);
	free(huge);
}

int main(int argc, char **argv)
{
	int i;

	for (i = 1; i < argc; i++)
		read_file(argv[i]);
	odd_strings();
	printf("%lu files, %lu packets, %lu refused\n", files, packets, refused);
	return 0;
}
