/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * A libpcap client: behave MODE DEVICE PACKETS. It prints "ready" once the device is captured, and its
 * results at the end, without times, so that two libraries can be compared line by line.
 *
 * Packets are those of `wirelane send --pattern ports`: UDP, 100 bytes, a number in the payload.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <pcap/pcap.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static pcap_t *handle;
static char said[PCAP_ERRBUF_SIZE];
static struct seen {
	unsigned long packets, captured, bytes, sum, inbound, stop_at;
} seen;

static void fail(const char *what)
{
	printf("%s: %s\n", what, handle ? pcap_geterr(handle) : said);
	exit(1);
}

/* Adds to an order-independent sum over bytes and lengths. */
static void on_packet(u_char *user, const struct pcap_pkthdr *header, const u_char *bytes)
{
	unsigned long hash = 1469598103934665603UL;
	bpf_u_int32 i;

	for (i = 0; i < header->caplen; i++)
		hash = (hash ^ bytes[i]) * 1099511628211UL;
	seen.packets++;
	seen.captured += header->caplen;
	seen.bytes += header->len;
	seen.sum += hash;
	if (user)
		pcap_dump(user, header, bytes);
	if (seen.stop_at && seen.packets == seen.stop_at)
		pcap_breakloop(handle);
}

static void tell(const char *what, int status)
{
	printf("%s: %d, %lu packets, %lu of %lu bytes, sum %lx\n", what, status, seen.packets, seen.captured,
	       seen.bytes, seen.sum);
	memset(&seen, 0, sizeof(seen));
}

static pcap_t *activated(const char *device, int snap_len, int timeout, int immediate)
{
	int status;

	handle = pcap_create(device, said);
	if (!handle)
		fail("create");
	if (pcap_set_snaplen(handle, snap_len) || pcap_set_timeout(handle, timeout) ||
	    pcap_set_promisc(handle, 1) || pcap_set_immediate_mode(handle, immediate) ||
	    pcap_set_buffer_size(handle, 4 << 20))
		fail("set");
	status = pcap_activate(handle);
	if (status)
		fail("activate");
	return handle;
}

static void filtered(const char *expression)
{
	struct bpf_program program;

	if (pcap_compile(handle, &program, expression, 1, PCAP_NETMASK_UNKNOWN) ||
	    pcap_setfilter(handle, &program))
		fail("filter");
	pcap_freecode(&program);
}

static void ready(void)
{
	printf("ready\n");
	fflush(stdout);
}

static void counts(void)
{
	struct pcap_stat stats;

	if (pcap_stats(handle, &stats))
		fail("stats");
	printf("stats: %u received, %u dropped, %u by the device\n", stats.ps_recv, stats.ps_drop,
	       stats.ps_ifdrop);
}

/* A loop to the last packet, with the filter of the argument. */
static void loop(const char *device, int packets, const char *expression, int snap_len)
{
	activated(device, snap_len, 50, 0);
	if (*expression)
		filtered(expression);
	ready();
	tell("loop", pcap_loop(handle, packets, on_packet, NULL));
	counts();
	pcap_close(handle);
}

/* One by one; the last packet stays valid until the next call. */
static void next(const char *device, int packets)
{
	struct pcap_pkthdr *header, copy;
	const u_char *bytes;
	int status = 0;

	activated(device, 65535, 50, 1);
	ready();
	while ((int)seen.packets < packets / 2) {
		status = pcap_next_ex(handle, &header, &bytes);
		if (status < 0)
			fail("next_ex");
		if (status == 1)
			on_packet(NULL, header, bytes);
	}
	tell("next_ex", status);
	while ((int)seen.packets < packets - packets / 2) {
		bytes = pcap_next(handle, &copy);
		if (bytes)
			on_packet(NULL, &copy, bytes);
	}
	tell("next", 0);
	pcap_close(handle);
}

/* A loop that waits for several descriptors at once; without a time-out of its own. */
static void polled(const char *device, int packets, int use_epoll, int count)
{
	struct epoll_event event = {.events = EPOLLIN};
	int set = epoll_create1(0), fd, status = 0, empty = 0;

	activated(device, 65535, 10, 0);
	if (pcap_setnonblock(handle, 1, said))
		fail("setnonblock");
	printf("nonblock %d\n", pcap_getnonblock(handle, said));
	fd = pcap_get_selectable_fd(handle);
	if (fd < 0 || epoll_ctl(set, EPOLL_CTL_ADD, fd, &event))
		fail("descriptor");
	printf("timeout %s\n", pcap_get_required_select_timeout(handle) ? "needed" : "none");
	ready();
	while ((int)seen.packets < packets && empty < 10000) {
		struct pollfd polled = {.fd = fd, .events = POLLIN};
		int came = use_epoll ? epoll_wait(set, &event, 1, 10000) : poll(&polled, 1, 10000);

		if (came != 1) {
			printf("nothing came\n");
			break;
		}
		status = pcap_dispatch(handle, count, on_packet, NULL);
		if (status < 0)
			fail("dispatch");
		empty = status ? 0 : empty + 1;
	}
	tell("polled", empty < 10000);
	printf("nothing is left: %d\n", pcap_dispatch(handle, -1, on_packet, NULL));
	pcap_close(handle);
}

static void on_signal(int number)
{
	(void)number;
	pcap_breakloop(handle);
}

static void *breaker(void *unused)
{
	struct timespec time = {.tv_nsec = 200000000};

	(void)unused;
	nanosleep(&time, NULL);
	pcap_breakloop(handle);
	return NULL;
}

static void *reader(void *packets)
{
	tell("another thread", pcap_loop(handle, *(int *)packets, on_packet, NULL));
	return NULL;
}

/* Every way to end a loop. */
static void broken(const char *device, int packets)
{
	struct sigaction action = {.sa_handler = on_signal};
	pthread_t thread;

	activated(device, 65535, 50, 1);
	ready();
	seen.stop_at = packets / 4;
	tell("broken by itself", pcap_loop(handle, -1, on_packet, NULL));
	seen.stop_at = packets / 4;
	tell("dispatch broken by itself", pcap_loop(handle, packets, on_packet, NULL));
	packets -= 2 * (packets / 4);
	pthread_create(&thread, NULL, reader, &packets);
	pthread_join(thread, NULL);
	sigaction(SIGALRM, &action, NULL);
	alarm(1);
	tell("broken by a signal", pcap_loop(handle, -1, on_packet, NULL));
	pthread_create(&thread, NULL, breaker, NULL);
	tell("broken by a thread", pcap_loop(handle, -1, on_packet, NULL));
	pthread_join(thread, NULL);
	pcap_breakloop(handle);
	tell("broken before", pcap_dispatch(handle, -1, on_packet, NULL));
	counts();
	pcap_close(handle);
}

/* Filters and statistics from other threads while one reads; the packets read at the end are those of the
 * last filter. */
static void *changer(void *unused)
{
	static const char *const rules[] = {"udp src port 5002", "ip protochain 17 and udp src port 5003",
					    "udp"};
	int i;

	(void)unused;
	for (i = 0; i < 30; i++) {
		struct pcap_stat stats;

		filtered(rules[i % 3]);
		if (pcap_stats(handle, &stats) || pcap_setdirection(handle, i % 2 ? PCAP_D_INOUT : PCAP_D_IN))
			fail("from another thread");
	}
	return NULL;
}

static void on_any(u_char *user, const struct pcap_pkthdr *header, const u_char *bytes)
{
	(void)user, (void)header, (void)bytes;
}

static void *endless(void *unused)
{
	(void)unused;
	if (pcap_loop(handle, -1, on_any, NULL) != PCAP_ERROR_BREAK)
		fail("endless");
	return NULL;
}

static void threads(const char *device, int packets)
{
	pthread_t threads[3];
	int i;

	activated(device, 65535, 50, 1);
	printf("changing\n");
	fflush(stdout);
	pthread_create(&threads[0], NULL, endless, NULL);
	pthread_create(&threads[1], NULL, changer, NULL);
	pthread_create(&threads[2], NULL, changer, NULL);
	for (i = 1; i < 3; i++)
		pthread_join(threads[i], NULL);
	filtered("udp src port 1002 or udp src port 1003");
	pcap_breakloop(handle);
	pthread_join(threads[0], NULL);
	pcap_setdirection(handle, PCAP_D_INOUT);
	ready();
	tell("in the end", pcap_loop(handle, packets, on_packet, NULL));
	pcap_close(handle);
}

/* A program that becomes a daemon with the user nobody, after it has opened the device. */
static void forked(const char *device, int packets)
{
	int status;
	pid_t child;

	activated(device, 65535, 50, 1);
	fflush(stdout);
	child = fork();
	if (child == 0) {
		if (setgid(65534) || setuid(65534))
			fail("setuid");
		filtered("udp and ip proto 17");
		ready();
		tell("in the child", pcap_loop(handle, packets, on_packet, NULL));
		counts();
		pcap_close(handle);
		exit(0);
	}
	waitpid(child, &status, 0);
	printf("child %d\n", status);
	pcap_close(handle);
}

/* Dumps packets to a file and reads them back. */
static void dumped(const char *device, int packets, const char *file)
{
	pcap_dumper_t *dumper;
	struct pcap_pkthdr *header;
	const u_char *bytes;

	activated(device, 65535, 50, 1);
	dumper = pcap_dump_open(handle, file);
	if (!dumper)
		fail("dump_open");
	ready();
	tell("written", pcap_loop(handle, packets, on_packet, (u_char *)dumper));
	printf("flush %d, at %ld\n", pcap_dump_flush(dumper), pcap_dump_ftell(dumper));
	pcap_dump_close(dumper);
	dumper = pcap_dump_open_append(handle, file);
	printf("appended %d\n", dumper && pcap_dump_ftell64(dumper) > 24);
	pcap_dump_close(dumper);
	printf("no folder: %d\n", !!pcap_dump_open(handle, "/nonexistent/file"));
	printf("%s\n", pcap_geterr(handle));
	pcap_close(handle);
	handle = pcap_open_offline(file, said);
	if (!handle)
		fail("open_offline");
	while (pcap_next_ex(handle, &header, &bytes) == 1)
		on_packet(NULL, header, bytes);
	tell("read", 0);
	pcap_close(handle);
}

/* Both directions, then one; packets sent by the program itself come first. */
static void directions(const char *device, int packets)
{
	u_char frame[100] = {2, 2, 2, 2, 2, 2, 4, 4, 4, 4, 4, 4, 0x88, 0xb5};
	int i;

	activated(device, 65535, 50, 1);
	printf("direction %d\n", pcap_setdirection(handle, PCAP_D_IN));
	for (i = 0; i < 5; i++)
		printf("sent %d\n",
		       i % 2 ? pcap_inject(handle, frame, 100) : pcap_sendpacket(handle, frame, 100));
	ready();
	tell("in", pcap_loop(handle, packets, on_packet, NULL));
	counts();
	pcap_close(handle);
}

static void on_conversation(u_char *user, const struct pcap_pkthdr *header, const u_char *bytes)
{
	int source = bytes[34] << 8 | bytes[35], destination = bytes[36] << 8 | bytes[37];

	(void)user, (void)header;
	printf("%d\n", source > destination ? source : destination);
	fflush(stdout);
}

/* The higher port of each packet of UDP's, until a signal comes. */
static void conversations(const char *device)
{
	struct sigaction action = {.sa_handler = on_signal};

	activated(device, 65535, 50, 1);
	filtered("udp port 9");
	sigaction(SIGTERM, &action, NULL);
	ready();
	printf("loop %d\n", pcap_loop(handle, -1, on_conversation, NULL));
	counts();
	pcap_close(handle);
}

static int entries(const char *folder)
{
	DIR *open = opendir(folder);
	int count = 0;

	while (open && readdir(open))
		count++;
	closedir(open);
	return count;
}

static long resident(void)
{
	long size = 0, pages = 0;
	FILE *file = fopen("/proc/self/statm", "r");

	if (!file || fscanf(file, "%ld %ld", &size, &pages) != 2)
		exit(1);
	fclose(file);
	return pages * (sysconf(_SC_PAGESIZE) >> 10);
}

/* Opens and closes the device repeatedly: no resource is left behind. */
static void cycles(const char *device, int count)
{
	int descriptors = 0, threads = 0, i;
	long kilobytes = 0;

	for (i = 0; i < count; i++) {
		activated(device, 65535, 10, 0);
		filtered("udp port 53");
		pcap_get_selectable_fd(handle);
		pcap_dispatch(handle, 1, on_packet, NULL);
		pcap_close(handle);
		if (i == count / 10) {
			descriptors = entries("/proc/self/fd");
			threads = entries("/proc/self/task");
			kilobytes = resident();
		}
	}
	printf("descriptors %d, threads %d, memory %s\n", entries("/proc/self/fd") - descriptors,
	       entries("/proc/self/task") - threads, resident() - kilobytes < 2048 ? "the same" : "grows");
}

int main(int count, char **words)
{
	const char *mode, *device;
	int packets;

	if (count < 4)
		return 2;
	mode = words[1];
	device = words[2];
	packets = atoi(words[3]);
	if (!strcmp(mode, "loop"))
		loop(device, packets, words[4], 65535);
	else if (!strcmp(mode, "snapped"))
		loop(device, packets, words[4], 50);
	else if (!strcmp(mode, "next"))
		next(device, packets);
	else if (!strcmp(mode, "epoll"))
		polled(device, packets, 1, -1);
	else if (!strcmp(mode, "poll"))
		polled(device, packets, 0, 3);
	else if (!strcmp(mode, "broken"))
		broken(device, packets);
	else if (!strcmp(mode, "forked"))
		forked(device, packets);
	else if (!strcmp(mode, "threads"))
		threads(device, packets);
	else if (!strcmp(mode, "dumped"))
		dumped(device, packets, words[4]);
	else if (!strcmp(mode, "directions"))
		directions(device, packets);
	else if (!strcmp(mode, "conversations"))
		conversations(device);
	else if (!strcmp(mode, "cycles"))
		cycles(device, packets);
	else
		return 2;
	return 0;
}
