"""The host's cores under an emulated machine: a part of one for each virtual CPU, and what is used of them while a generator sends."""

import os
import subprocess
import threading
import time

from guest import GuestFailure

# Long beside the kernel's clock tick, by which it enforces limits, and short beside what the queues of a card hold.
PERIOD_US = 10_000
LOOK_S = 0.1
# Runs until the script is gone, however that ends. Control groups go only after their threads.
SWEEP = """read _
tries=0
while [ -e "$1" ] && [ $tries -lt 100 ]; do rmdir "$1"/cpu* "$1" 2>/dev/null || sleep 0.1; tries=$((tries + 1)); done
rm -rf "$2\""""


def threads(pid):
    """Name and id of each thread of a process."""
    for tid in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{tid}/comm", encoding="utf-8") as file:
            yield file.read().strip(), int(tid)


def virtual(name):
    """The number of the virtual CPU that a thread of QEMU is, if it is one: 'CPU 1/TCG'."""
    return int(name.split()[1].split("/")[0]) if name.startswith("CPU ") else None


def times(pid, tid):
    """Seconds that a thread has run, and has waited for a core (Documentation/scheduler/sched-stats.rst)."""
    with open(f"/proc/{pid}/task/{tid}/schedstat", encoding="ascii") as file:
        ran, waited, _ = file.read().split()
    return int(ran) / 1e9, int(waited) / 1e9


class Parts:
    """A part of a core of its own for each virtual CPU: a slower machine, whose host has the rest of each core for other work.

    Limits are those of control groups, of either version. `folder` is removed with them.
    """

    def __init__(self, folder):
        name = f"testbed-guest-{os.getpid()}"
        versions = [(root, False) for root in ("/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct") if os.path.exists(f"{root}/tasks")]
        if os.path.exists("/sys/fs/cgroup/cgroup.controllers"):
            versions.append(("/sys/fs/cgroup", True))
        if not versions:
            raise GuestFailure("there are no control groups of CPU time in /sys/fs/cgroup")
        root, self.unified = versions[0]
        self.base, self.root = os.path.join(root, name), root
        self.sweeper = subprocess.Popen(["sh", "-c", SWEEP, "sweep", self.base, folder], stdin=subprocess.PIPE, start_new_session=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.sweeper.stdin.close()
        self.sweeper.wait()

    def divide(self, qemu, part):
        """Gives each virtual CPU of QEMU's process this part of a core."""
        os.mkdir(self.base)
        # They come first, where generator and card want their cores at the same time.
        if self.unified:
            write(f"{self.root}/cgroup.subtree_control", "+cpu")
            write(f"{self.base}/cpu.weight", 10_000)
            write(f"{self.base}/cgroup.procs", qemu)
        else:
            write(f"{self.base}/cpu.shares", 262_144)
        for number, tid in [(virtual(name), tid) for name, tid in threads(qemu)]:
            if number is None:
                continue
            os.sched_setaffinity(tid, {number})
            group, quota = f"{self.base}/cpu{number}", round(part * PERIOD_US)
            os.mkdir(group)
            if self.unified:
                write(f"{group}/cgroup.type", "threaded")
                write(f"{self.base}/cgroup.subtree_control", "+cpu")
                write(f"{group}/cpu.max", f"{quota} {PERIOD_US}")
                write(f"{group}/cgroup.threads", tid)
            else:
                write(f"{group}/cpu.cfs_period_us", PERIOD_US)
                write(f"{group}/cpu.cfs_quota_us", quota)
                write(f"{group}/tasks", tid)

    def held_back(self, number):
        """Seconds for which a virtual CPU has been held back by its limit."""
        with open(f"{self.base}/cpu{number}/cpu.stat", encoding="ascii") as file:
            values = dict(line.split() for line in file)
        return int(values["throttled_usec"]) / 1e6 if self.unified else int(values["throttled_time"]) / 1e9


def write(path, value):
    with open(path, "w", encoding="ascii") as file:
        file.write(str(value))


class Watch(threading.Thread):
    """Notes what generator and QEMU use of the host's cores while the generator sends."""

    def __init__(self, agent, qemu, limits):
        super().__init__(daemon=True)
        self.agent, self.qemu, self.limits = agent, qemu, limits
        self.sendings = []

    def taken(self):
        """The sendings since the last call."""
        sendings, self.sendings = self.sendings, []
        return sendings

    def run(self):
        sender, first, last, rate = None, None, None, None
        while True:
            now = self.sender()
            if now and now[0] == sender:
                looked = self.look(sender)
                # The thread that sends ends before the process, and takes its time with it.
                if looked and looked["generator"] >= (last or first or looked)["generator"]:
                    last = looked
            else:
                if first and last:
                    self.sendings.append((rate, {name: last[name] - first[name] for name in first}))
                sender, first, last, rate = None, None, None, None
                if now:
                    sender, rate = now
                    first = self.look(sender)
            time.sleep(LOOK_S)

    def sender(self):
        """Process and rate of the generator, if it runs: a child of its agent."""
        try:
            children = []
            for _, task in threads(self.agent):
                with open(f"/proc/{self.agent}/task/{task}/children", encoding="ascii") as file:
                    children += file.read().split()
            for pid in children:
                with open(f"/proc/{pid}/cmdline", encoding="utf-8") as file:
                    words = file.read().split("\0")
                if "send" in words[1:2]:
                    return int(pid), float(words[words.index("--rate") + 1]) if "--rate" in words else None
        except OSError:
            # It has ended meanwhile.
            pass
        return None

    def look(self, sender):
        """Seconds so far: by the clock, of the generator, of QEMU beside its virtual CPUs, and for each of these how long it ran, and
        waited for its core without being held back."""
        try:
            seconds = {"clock": time.monotonic(), "generator": sum(times(sender, tid)[0] for _, tid in threads(sender)), "rest": 0}
            for name, tid in threads(self.qemu):
                ran, waited = times(self.qemu, tid)
                if (number := virtual(name)) is None:
                    seconds["rest"] += ran
                else:
                    seconds[f"ran {number}"] = ran
                    seconds[f"waited {number}"] = waited - self.limits.held_back(number)
            return seconds
        except OSError:
            return None
