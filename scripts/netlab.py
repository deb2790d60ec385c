"""What the scripts share that make network namespaces of their own."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time


class Failure(Exception):
    """Something that the person at the keyboard has to know."""


def become_root(command):
    """Starts this script again through sudo where it is not run by root; `command` is what users type."""
    if os.geteuid() == 0:
        return
    if not shutil.which("sudo"):
        raise Failure(f"network namespaces and XDP need root, and sudo is not there: run '{command}' as root")
    print("Network namespaces and XDP need root: going on through sudo.", flush=True)
    os.execvp("sudo", ["sudo", "--", sys.executable, os.path.abspath(sys.argv[0]), *sys.argv[1:]])


def refuse_statistics():
    """Fails while the kernel counts the run times of BPF programs, which costs each run two readings of a clock."""
    with open("/proc/sys/kernel/bpf_stats_enabled", encoding="ascii") as file:
        if file.read().strip() != "0":
            raise Failure("kernel.bpf_stats_enabled is not 0, which makes every BPF program slower: "
                          "sysctl -w kernel.bpf_stats_enabled=0")


def run(*words, **keywords):
    """Runs a program to its end and returns what it wrote to standard output."""
    done = subprocess.run(words, capture_output=True, text=True, start_new_session=True, check=False, **keywords)
    if done.returncode != 0:
        raise Failure(f"'{' '.join(words)}' failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def number(count):
    return f"{count:,}"


def remove_stale(prefix):
    """Removes what a script that was killed has left: processes, namespaces, files."""
    def stale(folder):
        for name in os.listdir(folder) if os.path.isdir(folder) else []:
            match = re.fullmatch(prefix + r"-(\d+)-\w+", name)
            if match and not os.path.exists(f"/proc/{match[1]}"):
                yield name

    for name in stale("/run/netns"):
        # It may be gone by now: the script that it belonged to ended just then.
        found = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False)
        for pid in found.stdout.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    for name in stale(tempfile.gettempdir()):
        path = os.path.join(tempfile.gettempdir(), name)
        with contextlib.suppress(FileNotFoundError):
            # Ours only: anybody may make a folder of such a name there.
            if os.lstat(path).st_uid == os.geteuid():
                shutil.rmtree(path, ignore_errors=True)


def wait_for(what, is_so, seconds=10):
    end = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > end:
            raise Failure(f"waited {seconds} s for {what}, in vain")
        time.sleep(0.02)
