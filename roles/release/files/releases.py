"""Print, as JSON, which releases a machine has. Standard library only.

releases.py VENV [STAGED]

{"current": RELEASE, "previous": RELEASE, "staged": RELEASE}, each with the ids `bundle` (of what is installed) and `id`
(of the code), empty where there is none. VENV is the link to the current release; STAGED is the bundle's id of another.
"""

import json
import sys
from pathlib import Path


def release(folder):
    """The ids of the release in ``folder``. A whole one has both files."""
    try:
        bundle, code = ((folder / name).read_text().strip() for name in (".bundle", ".release"))
    except OSError:
        return {"bundle": "", "id": ""}
    return {"bundle": bundle, "id": code}


def main(venv, staged=""):
    print(
        json.dumps(
            {
                "current": release(Path(venv)),
                "previous": release(Path(f"{venv}.previous")),
                "staged": release(Path(f"{venv}.releases", staged or "none")),
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
