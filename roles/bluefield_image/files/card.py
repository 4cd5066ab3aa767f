"""Say which rshim device and which firmware a card has, on the host that holds it; JSON on stdout.

card.py BDF [--dev /dev]

{"device", "cause", "remedy", "firmware", "running"}: ``cause`` is empty if the card can be flashed through /dev/DEVICE.
Cards are matched by PCI address: rshim numbers them in the order in which it met them. Standard library only.
"""

import argparse
import json
import re
import subprocess
from pathlib import Path


def run(*argv):
    """Output of a command, empty where there is none or it hangs."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout


def keys(misc):
    """The settings at the start of an rshim's misc file."""
    rows = (line.split(None, 1) for line in misc.splitlines() if re.match(r"[A-Z]+_[A-Z_]+\s", line))
    return {row[0]: row[1] for row in rows if len(row) == 2}


def slot(bdf):
    """The card's place: rshim works through a function of its own, which has another last digit."""
    return bdf.rsplit(".", 1)[0]


def devices(dev):
    """Settings of every rshim device here, by its name."""
    found = {}
    for misc in sorted(dev.glob("rshim*/misc")):
        try:
            found[misc.parent.name] = keys(misc.read_text(errors="replace"))
        except OSError as error:
            found[misc.parent.name] = {"ERROR": str(error)}
    return found


def find(bdf, dev):
    """(device, cause, remedy) of the card at ``bdf``."""
    all_devices = devices(dev)
    for name, values in all_devices.items():
        if slot(values.get("DEV_NAME", "").split("-", 1)[-1].strip()) == slot(bdf):
            if values.get("DROP_MODE", "0").startswith("1"):
                return "", f"/dev/{name} drops everything (DROP_MODE 1)", f"echo 'DROP_MODE 0' > /dev/{name}/misc"
            return name, "", ""
    if "another backend already attached" in run("journalctl", "--unit=rshim", "--boot", "--output=cat", "--no-pager"):
        return (
            "", f"the rshim of the card {bdf} belongs to another backend, as a rule the card's BMC",
            "end it there (`systemctl stop rshim` on the BMC), or set doca_host_rshim_force: true and run the role "
            "doca_host, which takes it",
        )  # fmt: skip
    if run("systemctl", "is-active", "rshim").strip() != "active":
        return "", "rshim does not run here", "run the role doca_host, or read `journalctl -u rshim`"
    others = ", ".join(f"{name}: {values.get('DEV_NAME', '?')}" for name, values in all_devices.items())
    return (
        "", f"no rshim device is the card {bdf}" + (f" (there are {others})" if others else ""),
        "correct blink_card.bdf in the inventory, or seat the card again: a card that hangs shows no rshim before a "
        "power cycle",
    )  # fmt: skip


def firmware(text):
    """(version in flash, version that runs) of what `flint query` says; empty where it says none."""
    stored = re.search(r"^FW Version:\s+(\S+)", text, re.MULTILINE)
    running = re.search(r"^FW Version\(Running\):\s+(\S+)", text, re.MULTILINE)
    version = stored[1] if stored else ""
    return version, running[1] if running else version


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bdf")
    parser.add_argument("--dev", type=Path, default=Path("/dev"))
    args = parser.parse_args()
    device, cause, remedy = find(args.bdf, args.dev)
    stored, running = firmware(run("flint", "-d", f"{slot(args.bdf)}.0", "q"))
    print(json.dumps(
        {"device": device, "cause": cause, "remedy": remedy, "firmware": stored, "running": running}
    ))  # fmt: skip


if __name__ == "__main__":
    main()
