"""Print, as JSON, what this machine offers. Standard library only: it runs before anything is installed.

machine.py --port PORT --config FILE --disk PATH --shm PATH [--gpu]
"""

import argparse
import json
import os
import platform
import subprocess
from pathlib import Path

LISTEN = "0A"
GPU_FIELDS = (
    "index", "uuid", "name", "driver_version", "memory.total", "memory.used", "compute_mode", "persistence_mode",
    "mig.mode.current",
)  # fmt: skip


def free_mib(path):
    """MiB that this user may still write where ``path`` is, or where its nearest existing parent is."""
    path = Path(path).absolute()
    while not path.exists():
        path = path.parent
    stat = os.statvfs(path)
    return stat.f_bavail * stat.f_frsize >> 20


def available_memory_mib():
    """MiB that can be had without swapping, within the limit of this process's control group."""
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    available = int(fields["MemAvailable"].split()[0]) >> 10
    for limit, usage in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            left = int(Path(limit).read_text()) - int(Path(usage).read_text())
        except (OSError, ValueError):  # no such controller, or "max"
            continue
        available = min(available, left >> 20)
    return available


def listening_inodes(port):
    """Inodes of the TCP sockets, of either family, that listen on ``port``."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            rows = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for row in rows:
            fields = row.split()
            if fields[3] == LISTEN and int(fields[1].rsplit(":", 1)[1], 16) == port:
                inodes.add(fields[9])
    return inodes


def command_line(pid):
    """What ``pid`` was started with; empty where that cannot be read."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def started_for(pid, config):
    """Whether ``pid`` is a process of the appliance of ``config``: its services carry it in their environment."""
    try:
        return f"BLINK_CONFIG={config}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def port_holder(port, config):
    """Who listens on ``port``: nobody, the appliance of ``config`` itself, or a process (pid 0: another user's)."""
    wanted = {f"socket:[{inode}]" for inode in listening_inodes(port)}
    if not wanted:
        return {"busy": False, "own": False, "pid": 0, "command": ""}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            found = any(str(descriptor.readlink()) in wanted for descriptor in (process / "fd").iterdir())
        except OSError:  # gone, or another user's
            continue
        if found:
            pid = int(process.name)
            return {"busy": True, "own": started_for(pid, config), "pid": pid, "command": command_line(pid)}
    return {"busy": True, "own": False, "pid": 0, "command": ""}


def gpus():
    """What nvidia-smi says of each GPU, by GPU_FIELDS, and why it says nothing."""
    command = ["nvidia-smi", f"--query-gpu={','.join(GPU_FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as e:
        return {"found": [], "why": f"nvidia-smi: {e.strerror if isinstance(e, OSError) else 'no answer for 60 s'}"}
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    if done.returncode != 0 or not lines:
        return {"found": [], "why": " ".join((done.stdout + done.stderr).split()) or "nvidia-smi names no GPU"}
    rows = [[value.strip() for value in line.split(",")] for line in lines]
    return {
        "found": [dict(zip(GPU_FIELDS, row, strict=True)) for row in rows if len(row) == len(GPU_FIELDS)],
        "why": "",
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--config", required=True)
    parser.add_argument("--disk", required=True)
    parser.add_argument("--shm", required=True)
    parser.add_argument("--gpu", action="store_true")
    args = parser.parse_args()
    report = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_mib": available_memory_mib(),
        "disk_mib": free_mib(args.disk),
        "shm_mib": free_mib(args.shm),
        "port_holder": port_holder(args.port, args.config),
    }
    if args.gpu:
        report["gpus"] = gpus()
    print(json.dumps(report))


if __name__ == "__main__":
    main()
