"""Compare settings of a card's firmware with those wanted; JSON on stdout.

mlxconfig.py DEVICE KEY=NUMBER...

``set`` has the settings to give to `mlxconfig set`, those whose value after the next reset would differ; ``reset`` has
those that are not in force now. ``error`` says why neither is known, and ``absent`` whether because there is no
mlxconfig. Standard library only.
"""

import json
import re
import subprocess
import sys

# KEY, then the columns Default, Current, Next Boot, each VALUE(NUMBER) or a bare number; '*' marks those that differ.
ROW = re.compile(r"^\*?\s+(?P<key>[A-Z][A-Z0-9_]+)\s+(?P<default>\S+)\s+(?P<current>\S+)\s+(?P<next>\S+)\s*$")


def number(value):
    """The number of a column: 0 of ENABLED(0), 4 of 4."""
    match = re.fullmatch(r"\w*\((\d+)\)|(\d+)", value)
    return (match[1] or match[2]) if match else value


def parse(text):
    """Numbers in force now and after the next reset, by key, of the output of `mlxconfig -e q`."""
    rows = [match for match in map(ROW.match, text.splitlines()) if match]
    return {row["key"]: (number(row["current"]), number(row["next"])) for row in rows}


def compare(text, wanted):
    """What differs from ``wanted``, or the key that the card lacks."""
    values = parse(text)
    result = {"set": [], "reset": [], "error": "", "absent": False}
    for key, value in wanted.items():
        if key not in values:
            result["error"] = (
                f"mlxconfig shows no {key}: the card is of another kind, or its tools are of another release"
            )
            break
        current, following = values[key]
        if following != value:
            result["set"].append(f"{key}={value}")
        if current != value:
            result["reset"].append(f"{key}={value}")
    return result


def main(device, *settings):
    wanted = dict(setting.split("=", 1) for setting in settings)
    refused = {"set": list(settings), "reset": [], "error": "", "absent": False}
    try:
        done = subprocess.run(
            ["mlxconfig", "-d", device, "-e", "q", *wanted], capture_output=True, text=True, timeout=120, check=False
        )
    except FileNotFoundError:
        refused |= {"absent": True, "error": "mlxconfig is not installed: run the role doca_host first"}
    except subprocess.TimeoutExpired:
        refused["error"] = f"mlxconfig did not answer for {device} within 120 s: reset the card (power cycle the host)"
    else:
        if done.returncode == 0:
            refused = compare(done.stdout, wanted)
        else:
            said = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()[-1]
            refused["error"] = (
                f"mlxconfig cannot read {device} ({said}): compare blink_card.bdf in the inventory with lspci -d 15b3:"
            )
    print(json.dumps(refused))


if __name__ == "__main__":
    main(*sys.argv[1:])
