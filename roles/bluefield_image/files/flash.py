"""Flash a card, and say how that goes. Runs as a transient unit, so that it outlives the connection that began it.

flash.py run DIRECTORY --device rshim0 --bdf BDF --bfb FILE --config FILE --sys /sys --limit SECONDS
flash.py wait DIRECTORY UNIT --seen PHASE

``run`` lets go of the host's functions of the card, runs bfb-install, takes them back, and judges by what the card has
said, since bfb-install ends with 0 after failures too. ``wait`` returns, as JSON, once the phase is another than
``--seen``, or after a while: {"phase", "detail", "done", "cause", "remedy"}; an empty cause is success. The file bf.cfg
has secrets and is removed in any case. Standard library only.
"""

import argparse
import json
import re
import subprocess
import time
from pathlib import Path

# What the card or bfb-install says, what it means, what to do; the first that matches counts.
FAILURES = [
    (r"boot: .*([Bb]usy)", "the card's rshim is busy: another program pushes to it",
     "`fuser -v /dev/rshim*/boot` names it; end it, and flash again"),
    (r"boot: .*Invalid argument", "the card's rshim drops what is pushed (DROP_MODE 1)",
     "echo 'DROP_MODE 0' > /dev/rshimN/misc, and flash again"),
    (r"boot: .*(Operation not permitted|[Ll]ocked)", "the card's rshim is locked (secure boot of the card's own)",
     "unlock it from the card's BMC"),
    (r"Failed to push boot stream", "the boot stream could not be pushed to the card",
     "read `journalctl -u rshim`; a card that hangs needs a power cycle of its host"),
    (r"CRITICAL ERROR", "the card stopped with a CRITICAL ERROR while it booted the image",
     "the log has what it said before; an image for another generation of card does this, and so does a damaged one"),
    (r"NIC firmware update failed", "the card's NIC firmware was not updated",
     "the old firmware runs with the new system, which is not supported: power cycle the host, and flash again"),
    (r"(ERR.*: )?Installation failed", "the installation on the card failed",
     "the lines before it in the log say which step; the card has rebooted to what was left, so flash it again"),
]  # fmt: skip
MARKERS = ("Linux up", "DPU is ready")
POLL_S = 0.5


def verdict(said):
    """(cause, remedy) of a failure in what was said; empty if there is none."""
    for pattern, cause, remedy in FAILURES:
        if re.search(pattern, said):
            return cause, remedy
    return "", ""


class Flash:
    """One run of bfb-install with what has to happen around it."""

    def __init__(self, args):
        self.args = args
        self.log = args.directory / "log"
        self.pci = args.sys / "bus/pci"
        self.deadline = time.monotonic() + args.limit

    def tell(self, phase, detail="", cause="", remedy="", done=False):
        status = {"phase": phase, "detail": detail, "done": done, "cause": cause, "remedy": remedy}
        new = self.args.directory / "status.new"
        new.write_text(json.dumps(status))
        new.replace(self.args.directory / "status.json")

    def functions(self):
        """The card's functions that the host's network driver has: all but the one that rshim works through."""
        card = self.args.bdf.rsplit(".", 1)[0]
        found = sorted((self.pci / "devices").glob(f"{card}.*"))
        return [f for f in found if (f / "driver").exists() and (f / "driver").resolve().name == "mlx5_core"]

    def until(self, condition, seconds):
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                return False
            time.sleep(POLL_S)
        return True

    def release(self, functions):
        """Unbind, so that the host's driver does not meet a card that restarts under it. (cause, remedy)"""
        for function in functions:
            (self.pci / "drivers/mlx5_core/unbind").write_text(function.name)
            if not self.until(lambda f=function: not (f / "driver").exists(), 60):
                return (
                    f"the host's driver does not let go of {function.name}",
                    "stop what uses its network or RDMA device (`rdma resource show`), and flash again",
                )
        return "", ""

    def take_back(self, functions):
        """Bind again, and wait for network and RDMA device. (cause, remedy)"""
        for function in functions:
            if not (function / "driver").exists():
                (self.pci / "drivers/mlx5_core/bind").write_text(function.name)
                self.until(lambda f=function: (f / "driver").exists(), 60)
        for function in functions:
            if not self.until(lambda f=function: any((f / "net").glob("*")) and any((f / "infiniband").glob("*")), 180):
                return (
                    f"the host's function {function.name} of the card has no network and RDMA device after the flash",
                    "the host's driver waits for the card's: read `dmesg | grep mlx5` on both, and reboot the pair",
                )
        return "", ""

    def install(self):
        """Run bfb-install to the card's last word. (cause, remedy)"""
        args = self.args
        argv = ["bfb-install", "--bfb", args.bfb, "--config", args.config, "--rshim", args.device, "--keep-log"]
        with self.log.open("w") as output:
            installer = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        misc = Path("/dev") / args.device / "misc"
        while True:
            ended = installer.poll() is not None  # before its output is read, so that nothing of it is missed
            said = self.log.read_text(errors="replace")
            if ended:  # it ends at "Rebooting...", and the card goes on speaking
                said += misc.read_text(errors="replace") if misc.exists() else ""
            cause, remedy = verdict(said)
            lines = [line.strip() for line in said.splitlines() if line.strip()]
            if ended and (cause or any(marker in said for marker in MARKERS)):
                self.log.write_text(said)
                return cause, remedy
            if ended and installer.returncode != 0:
                return (
                    f"bfb-install ended with {installer.returncode} ({lines[-1] if lines else 'no word'})",
                    "see its log",
                )
            if time.monotonic() > self.deadline:
                return (
                    f"the card has not said within {args.limit:.0f} s that its Linux is up; its last words: "
                    f"{lines[-1] if lines else 'none'}",
                    f"look at its console (screen /dev/{args.device}/console); if it hangs, power cycle; flash again",
                )
            self.tell("installing", lines[-1] if lines else "")
            time.sleep(POLL_S)

    def run(self):
        functions = self.functions()
        try:
            self.tell("releasing the host's functions", " ".join(f.name for f in functions))
            cause, remedy = self.release(functions)
            if not cause:
                self.tell("pushing the image")
                cause, remedy = self.install()
        except OSError as error:
            cause, remedy = str(error), "run the role doca_host, which installs what is missing"
        finally:
            self.args.config.unlink(missing_ok=True)
        self.tell("taking the host's functions back", " ".join(f.name for f in functions))
        back = self.take_back(functions)
        if not cause:
            cause, remedy = back
        self.tell("failed" if cause else "installed", "", cause, remedy, done=True)


def wait(directory, unit, seen, seconds=60):
    """The status, once its phase is not ``seen``, it is final, or time is up."""
    end = time.monotonic() + seconds
    while True:
        active = subprocess.run(["systemctl", "is-active", "--quiet", unit], check=False).returncode == 0
        try:
            status = json.loads((directory / "status.json").read_text())
        except FileNotFoundError:
            status = {"phase": "starting", "detail": "", "done": False, "cause": "", "remedy": ""}
        if not status["done"] and not active:
            status |= {
                "done": True,
                "cause": f"the flash ended without a verdict while it was {status['phase']}: it took too long and was "
                "ended, or the host went down",
                "remedy": f"read `journalctl -u {unit}`; look at the card's console before flashing again",
            }
        if status["done"] or status["phase"] != seen or time.monotonic() > end:
            return status
        time.sleep(POLL_S)


def main():
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run")
    run.add_argument("directory", type=Path)
    for name in ("device", "bdf"):
        run.add_argument(f"--{name}", required=True)
    for name in ("bfb", "config", "sys"):
        run.add_argument(f"--{name}", type=Path, required=True)
    run.add_argument("--limit", type=float, required=True)
    waiting = commands.add_parser("wait")
    waiting.add_argument("directory", type=Path)
    waiting.add_argument("unit")
    waiting.add_argument("--seen", default="")
    args = parser.parse_args()
    if args.command == "run":
        Flash(args).run()
    else:
        print(json.dumps(wait(args.directory, args.unit, args.seen)))


if __name__ == "__main__":
    main()
