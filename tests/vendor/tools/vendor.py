"""What the stand-ins share: the machine's hardware and its faults (/vendor/state.json), and the transcript of calls."""

import contextlib
import fcntl
import json
import os
import sys
from pathlib import Path

PLACE = Path("/vendor")
TOOL = Path(sys.argv[0]).name


def boot_id():
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@contextlib.contextmanager
def state():
    """The hardware, to read and to change; written back at the end."""
    with (PLACE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        content = json.loads((PLACE / "state.json").read_text())
        before = json.dumps(content)
        yield content
        if json.dumps(content) != before:
            new = PLACE / "state.json.new"
            new.write_text(json.dumps(content, indent=1))
            new.replace(PLACE / "state.json")


def hardware():
    with state() as content:
        return content


def record():
    """Add this call to the transcript that tests read."""
    with (PLACE / "transcript").open("a") as file:
        file.write(json.dumps([TOOL, *sys.argv[1:]]) + "\n")


def usage(word):
    """End as for an option that is not known: code 2, so that no role can rely on one that does not exist."""
    print(f"{TOOL}: unrecognized argument {word!r}", file=sys.stderr)
    sys.exit(2)


def fail(text, code=1):
    print(text, file=sys.stderr)
    sys.exit(code)


def options(words, flags=(), values=()):
    """Split ``words`` into options and the rest; ``values`` take the next word or what follows '='."""
    found, rest, words = {}, [], list(words)
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if word in flags:
            found[word] = True
        elif name in values and equals:
            found[name] = value
        elif word in values and words:
            found[word] = words.pop(0)
        elif word.startswith("-"):
            usage(word)
        else:
            rest.append(word)
    return found, rest


os.umask(0o022)
