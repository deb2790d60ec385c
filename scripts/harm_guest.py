"""What monitoring costs a host with virtio-net: a Debian kernel in QEMU, whose device the host's traffic goes through.

The guest's machine is emulated (TCG), some ten times slower than a real one, and the host that emulates it sends the traffic
and shares its CPUs. The table therefore says whether a command takes away what the driver and the stack do to be fast (large
receive packets, checksums left out), since that shows at any speed; it does not say what a monitor costs on real hardware.
"""

import contextlib
import glob
import json
import os
import re
import select
import shutil
import socket
import subprocess
import tempfile
import time

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HOST, GUEST = "10.79.0.1", "10.79.0.2"
DEVICE = "eth0"
# What the guest runs beside its kernel.
TOOLS = ["tcpdump", "iperf3", "ip", "ethtool"]
LIMIT_S = 240
INIT = f"""#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin HOME=/ TMPDIR=/tmp
mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t devtmpfs devtmpfs /dev
mkdir -p /tmp /run /var/run; mount -t tmpfs tmpfs /tmp; mount -t tmpfs tmpfs /run
for module in /modules/*.ko; do insmod $module; done 2>/dev/null
stty -F /dev/ttyS1 raw -echo; exec </dev/ttyS1 >/dev/ttyS1 2>&1
for path in /sys/class/net/*; do
	case $(readlink $path/device/driver) in *virtio_net) ip link set ${{path##*/}} name {DEVICE} ;; esac
done
ip link set lo up; ip addr add {GUEST}/24 dev {DEVICE}; ip link set {DEVICE} up
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


class GuestFailure(Exception):
    """The guest did not do what it was asked to."""


def file_system(folder, wirelane, kernel):
    """Packs the guest's file system; its path."""
    root = os.path.join(folder, "root")
    for name in ("bin", "modules", "proc", "sys", "dev", "run", "tmp", "etc"):
        os.makedirs(os.path.join(root, name))
    programs = [shutil.which("busybox"), *(shutil.which(tool) for tool in TOOLS)]
    for program in programs:
        shutil.copy(os.path.realpath(program), os.path.join(root, "bin", os.path.basename(program)))
    subprocess.run(["strip", "--strip-debug", "-o", os.path.join(root, "bin/wirelane"), wirelane], check=True)
    for program in glob.glob(os.path.join(root, "bin/*")):
        listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
        for library in re.findall(r"(/\S+) \(0x", listed):
            os.makedirs(root + os.path.dirname(library), exist_ok=True)
            shutil.copy(os.path.realpath(library), root + library)
    for module in glob.glob(os.path.join(kernel, "modules/*.ko")):
        shutil.copy(module, os.path.join(root, "modules"))
    with open(os.path.join(root, "etc/passwd"), "w", encoding="ascii") as file:
        file.write("root:x:0:0::/:/bin/sh\ntcpdump:x:1:1::/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n")
    with open(os.path.join(root, "init"), "w", encoding="ascii") as file:
        file.write(INIT)
    os.chmod(os.path.join(root, "init"), 0o755)
    path = os.path.join(folder, "initramfs")
    subprocess.run(f"cd {root} && find . | cpio --quiet --owner=0:0 -H newc -o >{path}", shell=True, check=True)
    return path


class Guest:
    """A booted guest, and the network namespace with the other end of its device."""

    def __init__(self, folder, wirelane, kernel):
        self.namespace = f"harm-{os.getpid()}-host"
        self.folder, self.wirelane, self.kernel = folder, wirelane, kernel
        self.text = b""

    def __enter__(self):
        self.stack = contextlib.ExitStack()
        try:
            self.start()
        except BaseException:
            self.stack.close()
            raise
        return self

    def start(self):
        ip(["netns", "add", self.namespace])
        self.stack.callback(ip, ["netns", "del", self.namespace])
        for words in (["tuntap", "add", "dev", "harm0", "mode", "tap", "multi_queue", "vnet_hdr"],
                      ["addr", "add", f"{HOST}/24", "dev", "harm0"], ["link", "set", "harm0", "up"]):
            ip(["-n", self.namespace, *words])
        image = file_system(self.folder, self.wirelane, self.kernel)
        path = os.path.join(self.folder, "serial")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen()
        qemu = subprocess.Popen(
            ["ip", "netns", "exec", self.namespace, "qemu-system-x86_64",
             "-accel", os.environ.get("WIRELANE_QEMU_ACCEL", "tcg,thread=multi"), "-machine", "q35", "-cpu", "max",
             "-smp", "2", "-m", "2048", "-nodefaults", "-display", "none", "-no-reboot",
             "-kernel", os.path.join(self.kernel, "vmlinuz"), "-initrd", image,
             "-append", "console=ttyS0 panic=-1 quiet loglevel=4 mitigations=off nowatchdog no_timer_check",
             "-netdev", "tap,id=net0,ifname=harm0,script=no,downscript=no,queues=2,vhost=off",
             "-device", "virtio-net-pci,netdev=net0,mq=on,vectors=6,disable-legacy=on,romfile=",
             "-serial", f"file:{self.folder}/console", "-serial", f"unix:{path}"],
            stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.stack.callback(qemu.wait, 30)
        self.stack.callback(qemu.terminate)
        listener.settimeout(LIMIT_S)
        self.serial = self.stack.enter_context(listener.accept()[0])
        self.release = self.answer("ready")

    def __exit__(self, *_):
        self.stack.close()

    def ask(self, line):
        self.serial.sendall(line.encode() + b"\n")

    def answer(self, word):
        """The rest of the line that begins with this word."""
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            while b"\n" in self.text:
                line, self.text = self.text.split(b"\n", 1)
                line = line.decode("utf-8", "replace").strip()
                if line.startswith("failed"):
                    raise GuestFailure(line)
                if line.startswith(word):
                    return line[len(word):].strip()
            if select.select([self.serial], [], [], 1)[0]:
                self.text += self.serial.recv(4096)
        raise GuestFailure(f"the guest did not say '{word}' within {LIMIT_S} s")

    def features(self):
        """The device's offloads that are on."""
        self.ask("features")
        return {name for name, state in re.findall(r"([\w-]+): (on|off)", self.answer("Features")) if state == "on"}

    def inside(self, *words):
        done = subprocess.run(["ip", "netns", "exec", self.namespace, *words], capture_output=True, text=True, check=False)
        if done.returncode:
            raise GuestFailure(f"'{' '.join(words)}' failed: {done.stderr.strip() or done.stdout[-300:]}")
        return done.stdout

    def iperf3(self, words):
        """The result of a test; its server begins anew after each."""
        for _ in range(40):
            command = ["ip", "netns", "exec", self.namespace, "iperf3", "-c", GUEST, "-J", *words]
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


def ip(words):
    subprocess.run(["ip", *words], check=True)


def compare(wirelane, kernel, commands, rounds, seconds):
    """Rounds of measures by command, and by command what offloads went off."""
    values, off = [], {}
    with tempfile.TemporaryDirectory(prefix="harm-") as folder, Guest(folder, wirelane, kernel) as guest:
        before = guest.features()
        for _ in range(rounds):
            one = {}
            for name, words in commands.items():
                if words:
                    guest.ask(f"start {words}")
                    guest.answer("started")
                one[name] = guest.measure(seconds)
                off[name] = sorted(before - guest.features())
                if words:
                    guest.ask("stop")
                    guest.answer("stopped")
            values.append(one)
        return guest.release, values, off
