/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Has a card stamp all received packets, or none: stamp DEVICE on|off. Says "on", "off", or the kernel's error. */
#include <errno.h>
#include <linux/net_tstamp.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

int main(int argc, char **argv)
{
	struct hwtstamp_config config = {.tx_type = HWTSTAMP_TX_OFF, .rx_filter = HWTSTAMP_FILTER_NONE};
	struct ifreq request = {.ifr_data = (char *)&config};
	int fd = socket(AF_INET, SOCK_DGRAM, 0);

	if (argc != 3 || fd < 0)
		return 2;
	if (!strcmp(argv[2], "on"))
		config.rx_filter = HWTSTAMP_FILTER_ALL;
	strncpy(request.ifr_name, argv[1], sizeof(request.ifr_name) - 1);
	if (ioctl(fd, SIOCSHWTSTAMP, &request)) {
		printf("%s\n", strerror(errno));
		return 1;
	}
	puts(config.rx_filter == HWTSTAMP_FILTER_ALL ? "on" : "off");
	return 0;
}
