"""Judge the GPU driver of this machine; JSON {state, cause, remedy} on stdout.

driver.py VERSION {dmabuf|peermem}

States: ready; reboot (another version is loaded than installed); unloaded (no kernel module, as before the first
reboot); rebuild (nvidia-peermem does not fit the RDMA drivers); broken (what no reboot cures). Standard library only.
"""

import json
import subprocess
import sys

VERDICTS = {
    "ready": ("the driver {version} is loaded", ""),
    "mismatch": (
        "The GPU driver's library and its loaded kernel module differ in version",
        "Reboot the pair: playbooks/provision.yml does so when it is drained.",
    ),
    "other": (
        "The GPU driver {loaded} is loaded, and {version} is wanted",
        "Reboot the pair: playbooks/provision.yml does so when it is drained.",
    ),
    "unloaded": (
        "The GPU driver's kernel module is not loaded",
        "If the machine was rebooted since then, `dkms status` and `dmesg | grep -i nvidia` say why: it was not built "
        "(kernel headers), or not signed and refused (Secure Boot).",
    ),
    "absent": ("nvidia-smi is not installed", "Run the role gpu_driver first."),
    "closed": (
        "The GPU driver has closed kernel modules (license {license}), which cannot give GPU memory as a dma-buf",
        "Set gpu_driver_packages to those with the open modules (nvidia-open, nvidia-driver-580-server-open), remove "
        "the others, and run this again.",
    ),
    "rebuild": (
        "nvidia-peermem has symbols of other RDMA drivers than are installed (Unknown symbol "
        "ib_register_peer_memory_client): DOCA or OFED was installed again after the GPU driver",
        "Run the role gpu_driver, which builds the modules again; if it just did, `dkms status` says why that failed.",
    ),
    "peermem": (
        "nvidia-peermem cannot be loaded ({said})",
        "See `dmesg | tail`, or use gpu_driver_peer_memory: dmabuf.",
    ),
    "hung": (
        "nvidia-smi did not answer within 120 s",
        "The GPU has fallen off the bus (`dmesg | grep Xid`): power cycle.",
    ),
    "unknown": ("nvidia-smi failed ({said})", "See `dmesg | grep -iE 'nvrm|xid'`."),
}
STATES = {
    "ready": "ready", "mismatch": "reboot", "other": "reboot", "unloaded": "unloaded", "absent": "unloaded",
    "rebuild": "rebuild",
}  # fmt: skip


def run(*argv):
    """(exit code, output); the code is None where there is no such program, and 124 where it hung."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    except FileNotFoundError:
        return None, ""
    except subprocess.TimeoutExpired:
        return 124, ""
    return done.returncode, f"{done.stdout}\n{done.stderr}".strip()


def find(version, peer_memory):
    """The verdict's name, and what its texts need."""
    wanted = version.split(":")[-1].split("-")[0]  # of epoch:version-revision
    code, said = run("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    words = {"version": wanted, "said": said.splitlines()[-1] if said else f"exit code {code}"}
    if code is None:
        return "absent", words
    if code == 124:
        return "hung", words
    if "version mismatch" in said:
        return "mismatch", words
    if "couldn't communicate" in said:
        return "unloaded", words
    if code != 0:
        return "unknown", words
    words["loaded"] = said.splitlines()[0]
    if words["loaded"] != wanted:
        return "other", words
    code, words["license"] = run("modinfo", "-F", "license", "nvidia")
    if code != 0 or "GPL" not in words["license"]:
        return "closed", words
    if peer_memory == "peermem":
        code, said = run("modprobe", "nvidia-peermem")
        words["said"] = said.splitlines()[-1] if said else f"exit code {code}"
        if code != 0:
            return "rebuild" if "Unknown symbol" in said else "peermem", words
    return "ready", words


def main(version, peer_memory):
    name, words = find(version, peer_memory)
    cause, remedy = (text.format(**words) for text in VERDICTS[name])
    print(json.dumps({"state": STATES.get(name, "broken"), "cause": cause, "remedy": remedy}))


if __name__ == "__main__":
    main(*sys.argv[1:])
