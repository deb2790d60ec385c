"""What monitoring costs a host with virtio-net: a Debian kernel in QEMU, whose device the host's traffic goes through.

The guest's machine is emulated (TCG), some ten times slower than a real one, and the host that emulates it sends the traffic
and shares its CPUs. The table therefore says whether a command takes away what the driver and the stack do to be fast (large
receive packets, checksums left out), since that shows at any speed; it does not say what a monitor costs on real hardware.
"""

import json
import re
import subprocess
import tempfile
import time

import guest
from guest import GuestFailure

HOST, GUEST = "10.79.0.1", "10.79.0.2"
DEVICE = "eth0"
# What the guest runs beside its kernel.
TOOLS = ["tcpdump", "iperf3", "ip", "ethtool"]
CARD = guest.Card("harm0", 1, queues=2, address=HOST, offloads=True)
INIT = f"""
for path in /sys/class/net/*; do
	case $(cat $path/address) in {CARD.mac}) ip link set ${{path##*/}} name {DEVICE} ;; esac
done
ip addr add {GUEST}/24 dev {DEVICE}; ip link set {DEVICE} up
while true; do iperf3 -s -1; done >/tmp/iperf3 2>&1 &
echo x >/tmp/page; httpd -p {GUEST}:80 -h /tmp
echo "ready $(uname -r)"
while read -r order words; do
	case $order in
	start) $words >/tmp/out 2>&1 & monitor=$!; sleep 4
		kill -0 $monitor 2>/dev/null && echo started || {{ echo "failed: $(tail -n 1 /tmp/out)"; }} ;;
	stop) kill -INT $monitor; wait $monitor; echo stopped ;;
	features) ethtool -k {DEVICE} | tr '\\n' ';'; echo ;;
	end) poweroff -f ;;
	esac
done
"""


class Guest(guest.Guest):
    """A guest that answers iperf3, ping and HTTP."""

    def __init__(self, folder, wirelane, kernel):
        super().__init__(folder, kernel, guest.pack(folder, kernel, INIT, TOOLS, [wirelane]), [CARD])

    def features(self):
        """The device's offloads that are on."""
        self.ask("features")
        return {name for name, state in re.findall(r"([\w-]+): (on|off)", self.answer("Features")) if state == "on"}

    def iperf3(self, words):
        """The result of a test; its server begins anew after each."""
        for _ in range(40):
            command = [*self.prefix, "iperf3", "-c", GUEST, "-J", *words]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            result = json.loads(done.stdout or "{}")
            if "sum_received" in result.get("end", {}):
                return result
            time.sleep(0.5)
        raise GuestFailure(f"iperf3 {' '.join(words)}: {result.get('error', 'no result')}")

    def measure(self, seconds):
        """One round of traffic: measure -> value."""
        values = {}
        for streams in (1, 8):
            for name, words in (("to the guest", ()), ("from it", ("-R",))):
                end = self.iperf3(["-t", str(seconds), "-P", str(streams), *words])
                rate = end["end"]["sum_received"]["bits_per_second"]
                values[f"TCP, {streams} stream{'s' if streams > 1 else ''} {name}, Gbit/s"] = rate / 1e9
        text = self.inside("ping", "-i", "0.002", "-c", str(300 * seconds), GUEST)
        times = sorted(float(time) for time in re.findall(r"time=([\d.]+)", text))
        values["ping p50, us"], values["ping p99, us"] = (
            times[len(times) * part // 100] * 1000 for part in (50, 99))
        text = self.inside("wrk", "-t", "1", "-c", "4", "-d", f"{seconds}s", f"http://{GUEST}/page")
        values["httpd, requests/s"] = float(re.search(r"Requests/sec:\s+([\d.]+)", text)[1])
        return values


def compare(wirelane, kernel, commands, rounds, seconds):
    """Rounds of measures by command, and by command what offloads went off."""
    values, off = [], {}
    with tempfile.TemporaryDirectory(prefix="harm-") as folder, Guest(folder, wirelane, kernel) as machine:
        before = machine.features()
        for _ in range(rounds):
            one = {}
            for name, words in commands.items():
                if words:
                    machine.ask(f"start {words}")
                    machine.answer("started")
                one[name] = machine.measure(seconds)
                off[name] = sorted(before - machine.features())
                if words:
                    machine.ask("stop")
                    machine.answer("stopped")
            values.append(one)
        return machine.release, values, off
