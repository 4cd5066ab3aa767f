"""The status of a failed work request in words: which hop, and the likely cause."""

from __future__ import annotations

# enum ibv_wc_status. 5 only says that another operation of the queue failed first.
_STATUS = {
    1: ("LOC_LEN_ERR", "on the frontend: an operation longer than the port allows"),
    2: ("LOC_QP_OP_ERR", "on the frontend: the device could not process an operation"),
    4: ("LOC_PROT_ERR", "on the frontend: staging memory is not registered"),
    5: ("WR_FLUSH_ERR", "the queue pair was shut down"),
    6: ("MW_BIND_ERR", "on the frontend: the device could not process an operation"),
    7: ("BAD_RESP_ERR", "an answer that belongs to no request; look for a duplicate address in this network"),
    8: ("LOC_ACCESS_ERR", "on the frontend: staging memory is not registered for this"),
    9: (
        "REM_INV_REQ_ERR",
        "on the ring host: its device found a request invalid; see that both sides run the same release",
    ),
    10: (
        "REM_ACCESS_ERR",
        "on the ring host: its device refused access to the ring; the memory was deregistered, or a defect",
    ),
    11: ("REM_OP_ERR", "on the ring host: its device could not carry out a request; look at its kernel log"),
    12: (
        "RETRY_EXC_ERR",
        "no answer from the ring host; a cable, switch, MTU or firewall (UDP port 4791), the host is down, or "
        "its blink-ringd ended",
    ),
    13: ("RNR_RETRY_EXC_ERR", "on the ring host: its queue pair takes no requests"),
    21: ("GENERAL_ERR", "on the frontend: its device failed; look at its kernel log"),
}


def explain(status: int) -> str:
    """What ``status``, not 0, of a work completion means."""
    name, meaning = _STATUS.get(status, ("unknown", "see enum ibv_wc_status"))
    return f"{meaning} (status {status}, {name})"
