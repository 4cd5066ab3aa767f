"""Measure this machine and judge it, before anything is installed; JSON on stdout.

machine.py NEEDS

NEEDS is a JSON object, which the role's vars/main.yml makes. Printed is {"faults": [{"cause", "remedy"}], "notes":
[TEXT]}; a machine without a fault can serve. Standard library only.
"""

import json
import os
import platform
import subprocess
import sys
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


def measure(needs):
    """What this machine offers of ``needs``."""
    report = {
        "python": platform.python_version(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_mib": available_memory_mib(),
        "disk_mib": free_mib(needs["state_dir"]),
        "shm_mib": free_mib(needs["ring_dir"]),
        "port_holder": port_holder(needs["port"], needs["config"]),
    }
    if needs.get("gpu"):
        report["gpus"] = gpus()
    return report


def numbers(version):
    """A version, to be compared with another."""
    return [int(part) for part in version.split(".") if part.isdecimal()]


def judge(machine, needs):
    """The faults of a measured machine, as (cause, remedy). What this appliance holds already is not missing."""
    is_up = machine["port_holder"]["own"]
    if numbers(machine["python"]) < [3, 11]:
        yield (
            f"Python {machine['python']} is too old",
            "Install Python 3.11 or newer and set ansible_python_interpreter",
        )
    if machine["cpus"] < needs["cpus"]:
        yield (
            f"{machine['cpus']} CPUs are available, {needs['cpus']} are needed",
            "Widen this process's CPU affinity, or take a larger machine",
        )
    if machine["memory_mib"] < needs["memory_mib"] and not is_up:
        yield (
            f"{machine['memory_mib']} MiB of memory are available, {needs['memory_mib']} are needed",
            "Stop other programs, or set preflight_memory_mib if the model is smaller than the embedded one",
        )
    if machine["disk_mib"] < needs["disk_mib"] and not is_up:
        yield (
            f"{machine['disk_mib']} MiB are free for {needs['state_dir']}, {needs['disk_mib']} are needed",
            "Free some, or set blink_state_dir to another disk",
        )
    if machine["shm_mib"] < needs["shm_mib"] and not is_up:
        yield (
            f"{machine['shm_mib']} MiB are free for the ring in {needs['ring_dir']}, {needs['shm_mib']} are needed",
            "Enlarge that tmpfs (mount -o remount,size=1G /dev/shm; docker run --shm-size 1g)",
        )
    if len(os.fsencode(needs["run_dir"])) > needs["run_dir_bytes"]:
        yield (
            f"{needs['run_dir']} is longer than {needs['run_dir_bytes']} bytes, too long for a socket's path",
            "Set blink_run_dir or blink_state_dir to a shorter one",
        )
    holder = machine["port_holder"]
    if holder["busy"] and not is_up:
        who = f"process {holder['pid']} ({holder['command']})" if holder["pid"] else "another user's process"
        yield (
            f"Port {needs['port']} is taken by {who}",
            "Stop it, or choose another port: make up PORT=8001, or blink_http_port in the inventory",
        )
    if needs.get("gpu"):
        yield from judge_gpus(machine["gpus"], needs["gpu"], is_up)


def judge_gpus(seen, wanted, is_up):
    """The faults of the GPU that is ``wanted``."""
    branch = wanted["driver"]
    if not seen["found"]:
        yield (
            f"No GPU can be used ({seen['why']})",
            f"Engine {wanted['engine']} needs an NVIDIA GPU and its driver, branch {branch} or newer; `nvidia-smi` "
            "shows both. Without a GPU: blink_engine reference, as in inventory/local",
        )
        return
    gpu = find_gpu(seen, wanted)
    if gpu is None:
        here = " ".join(f"{g['index']} {g['name']} {g['uuid']};" for g in seen["found"])
        yield (
            f"There is no GPU {wanted['device']}; this machine has {here.rstrip(';')}",
            "Set engine.device in blink_settings to one of them",
        )
        return
    if numbers(gpu["driver_version"]) < numbers(branch):
        yield (
            f"The driver is {gpu['driver_version']}",
            f"CUDA 13.0, which the kernels are compiled for, needs branch {branch} or newer. Install it",
        )
    if gpu["mig.mode.current"] == "Enabled":
        yield (
            f"GPU {gpu['index']} is divided (MIG)",
            f"Blink serves from a whole GPU: `nvidia-smi -i {gpu['index']} -mig 0`, or set engine.device in "
            "blink_settings to another",
        )
    if gpu["compute_mode"] == "Prohibited":
        yield f"The compute mode of GPU {gpu['index']} is Prohibited", f"`nvidia-smi -i {gpu['index']} -c DEFAULT`"
    free = whole(gpu["memory.total"]) - whole(gpu["memory.used"])
    if free < wanted["memory_mib"] and not is_up:
        yield (
            f"GPU {gpu['index']} has {free} MiB free of {gpu['memory.total']}, {wanted['memory_mib']} are needed",
            "Stop what uses it (`nvidia-smi` names the processes), or set preflight_gpu_memory_mib if the model is "
            "smaller",
        )


def whole(text):
    """A number of nvidia-smi's; 0 where it has none, such as [N/A]."""
    return int(text) if text.isdecimal() else 0


def find_gpu(seen, wanted):
    """The GPU whose number or UUID is ``wanted``; None where there is none."""
    return next((gpu for gpu in seen["found"] if wanted["device"] in (gpu["uuid"], gpu["index"])), None)


def notes(machine, needs):
    """What costs time, and is no fault."""
    gpu = find_gpu(machine["gpus"], needs["gpu"]) if needs.get("gpu") else None
    if gpu is not None and gpu["persistence_mode"] == "Disabled":
        yield (
            f"GPU {gpu['index']} is not kept initialised between processes, which makes a start of the backend take "
            "seconds longer. Enable nvidia-persistenced."
        )


def main(needs):
    machine = measure(needs)
    faults = [{"cause": cause, "remedy": remedy} for cause, remedy in judge(machine, needs)]
    print(json.dumps({"faults": faults, "notes": list(notes(machine, needs))}))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
