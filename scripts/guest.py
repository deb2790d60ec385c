"""A Debian kernel in QEMU, with devices whose other ends are in a network namespace of its own: what scripts share that need
real drivers, or a machine beside this one.

The machine is emulated (TCG), some ten times slower than a real one. The namespace has no name: it is gone with its last process,
and all its processes end with the script, however that ends.
"""

import contextlib
import glob
import os
import re
import select
import shutil
import socket
import subprocess
import time

LIMIT_S = 240
# Where programs end with the thread that started them.
MORTAL = ["setpriv", "--pdeathsig", "KILL"]
HOLD = """mount -t sysfs sysfs /sys || exit 1
for scope in all default; do
	file=/proc/sys/net/ipv6/conf/$scope/disable_ipv6
	if [ -e $file ]; then echo 1 >$file; fi
done
ip link set lo up && echo held && exec sleep infinity"""
# How a guest begins; what it says and is told afterwards goes over its second serial line.
BEGIN = """#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin HOME=/ TMPDIR=/tmp
mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t devtmpfs devtmpfs /dev
mkdir -p /tmp /run /var/run /dev/shm; mount -t tmpfs tmpfs /tmp; mount -t tmpfs tmpfs /run; mount -t tmpfs tmpfs /dev/shm
for module in /modules/*.ko; do insmod $module; done 2>/dev/null
stty -F /dev/ttyS1 raw -echo; exec </dev/ttyS1 >/dev/ttyS1 2>&1
ip link set lo up
"""


class GuestFailure(Exception):
    """The guest did not do what it was asked to."""


def pack(folder, kernel, init, tools, ours=(), files=()):
    """Packs a guest's file system; its path. `tools` are this machine's programs, `ours` are stripped, `files` lie at its root."""
    root = os.path.join(folder, "root")
    for name in ("bin", "modules", "proc", "sys", "dev", "run", "tmp", "etc"):
        os.makedirs(os.path.join(root, name))
    # Programs without rights have to reach theirs.
    os.chmod(root, 0o755)
    for tool in ("busybox", *tools):
        program = shutil.which(tool)
        if not program:
            raise GuestFailure(f"{tool} is not installed, which the guest needs")
        shutil.copy(os.path.realpath(program), os.path.join(root, "bin", tool))
    for program in ours:
        subprocess.run(["strip", "--strip-debug", "-o", os.path.join(root, "bin", os.path.basename(program)), program],
                       check=True)
    for program in glob.glob(os.path.join(root, "bin/*")):
        listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
        for library in re.findall(r"(/\S+) \(0x", listed):
            os.makedirs(root + os.path.dirname(library), exist_ok=True)
            shutil.copy(os.path.realpath(library), root + library)
    for file in files:
        shutil.copy(file, root)
    for module in glob.glob(os.path.join(kernel, "modules/*.ko")):
        shutil.copy(module, os.path.join(root, "modules"))
    with open(os.path.join(root, "etc/passwd"), "w", encoding="ascii") as file:
        file.write("root:x:0:0::/:/bin/sh\ntcpdump:x:1:1::/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n")
    with open(os.path.join(root, "init"), "w", encoding="ascii") as file:
        file.write(BEGIN + init)
    os.chmod(os.path.join(root, "init"), 0o755)
    path = os.path.join(folder, "initramfs")
    subprocess.run(f"cd {root} && find . | cpio --quiet --owner=0:0 -H newc -o >{path}", shell=True, check=True)
    return path


class Card:
    """A virtio-net device of a guest, and the tap device at its other end."""

    def __init__(self, tap, number, queues=1, address=None, offloads=False):
        self.tap, self.queues, self.address, self.offloads = tap, queues, address, offloads
        self.number = number
        self.mac = f"52:54:00:00:00:{number:02x}"

    def words(self):
        """The arguments of ip(8) that create the tap device."""
        mode = ["multi_queue"] * (self.queues > 1) + ["vnet_hdr"] * self.offloads
        yield ["tuntap", "add", "dev", self.tap, "mode", "tap", *mode]
        if self.address:
            yield ["addr", "add", f"{self.address}/24", "dev", self.tap]
        yield ["link", "set", self.tap, "up"]

    def options(self):
        queues = f",queues={self.queues}" if self.queues > 1 else ""
        mq = f",mq=on,vectors={2 * self.queues + 2}" if self.queues > 1 else ""
        return ["-netdev", f"tap,id=net{self.number},ifname={self.tap},script=no,downscript=no,vhost=off{queues}",
                "-device", f"virtio-net-pci,netdev=net{self.number},mac={self.mac},disable-legacy=on,romfile={mq}"]


class Guest:
    """A booted guest, and the network namespace with the other ends of its devices."""

    def __init__(self, folder, kernel, image, cards, append=""):
        # In the namespace, paths begin at the root.
        self.kernel, self.image = os.path.abspath(kernel), os.path.abspath(image)
        self.folder, self.cards, self.append = folder, cards, append
        self.text, self.serial = b"", None

    def __enter__(self):
        self.stack = contextlib.ExitStack()
        try:
            self.start()
        except BaseException:
            self.stack.close()
            raise
        return self

    def __exit__(self, *_):
        self.stack.close()

    def child(self, words, **keywords):
        """Starts a process that ends with this guest."""
        child = subprocess.Popen([*MORTAL, *words], stdin=subprocess.DEVNULL, **keywords)
        self.stack.callback(end, child)
        return child

    def start(self):
        holder = self.child(["unshare", "--net", "--mount", "sh", "-c", HOLD], stdout=subprocess.PIPE, text=True)
        if holder.stdout.readline() != "held\n":
            raise GuestFailure("cannot create a network namespace for the guest")
        self.prefix = ["nsenter", f"--net=/proc/{holder.pid}/ns/net", f"--mount=/proc/{holder.pid}/ns/mnt"]
        for card in self.cards:
            for words in card.words():
                self.inside("ip", *words)
        path = os.path.join(self.folder, "serial")
        listener = self.stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(path)
        listener.listen()
        self.qemu = self.child(
            [*self.prefix, "qemu-system-x86_64", "-name", "guest,debug-threads=on",
             "-accel", os.environ.get("WIRELANE_QEMU_ACCEL", "tcg,thread=multi"), "-machine", "q35", "-cpu", "max",
             "-smp", "2", "-m", "2048", "-nodefaults", "-display", "none", "-no-reboot",
             "-kernel", os.path.join(self.kernel, "vmlinuz"), "-initrd", self.image,
             "-append", f"console=ttyS0 panic=-1 quiet loglevel=4 mitigations=off nowatchdog no_timer_check {self.append}",
             *(word for card in self.cards for word in card.options()),
             "-serial", f"file:{self.folder}/console", "-serial", f"unix:{path}"],
            stderr=self.stack.enter_context(open(os.path.join(self.folder, "qemu"), "wb")))
        listener.settimeout(1)
        while self.serial is None:
            with contextlib.suppress(TimeoutError):
                self.serial = self.stack.enter_context(listener.accept()[0])
            self.check()
        self.release = self.answer("ready")

    def check(self):
        """Fails where QEMU has ended."""
        if self.qemu.poll() is not None:
            said = ""
            for name in ("qemu", "console"):
                with contextlib.suppress(FileNotFoundError), open(f"{self.folder}/{name}", encoding="utf-8", errors="replace") as file:
                    said += file.read()
            raise GuestFailure(f"the guest has ended: {said[-500:].strip() or 'it said nothing'}")

    def ask(self, line):
        self.serial.sendall(line.encode() + b"\n")

    def answer(self, word):
        """The rest of the line that begins with this word."""
        until = time.monotonic() + LIMIT_S
        while time.monotonic() < until:
            while b"\n" in self.text:
                line, self.text = self.text.split(b"\n", 1)
                line = line.decode("utf-8", "replace").strip()
                if line.startswith("failed"):
                    raise GuestFailure(line)
                if line.startswith(word):
                    return line[len(word):].strip()
            if select.select([self.serial], [], [], 1)[0]:
                self.text += self.serial.recv(4096)
            self.check()
        raise GuestFailure(f"the guest did not say '{word}' within {LIMIT_S} s")

    def inside(self, *words):
        """Runs a program in the namespace; what it prints."""
        done = subprocess.run([*self.prefix, *words], capture_output=True, text=True, check=False)
        if done.returncode:
            raise GuestFailure(f"'{' '.join(words)}' failed: {done.stderr.strip() or done.stdout[-300:]}")
        return done.stdout


def end(child):
    """Ends a process, and waits for that."""
    child.terminate()
    try:
        child.wait(30)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
