"""What goes wrong in the lab."""


class LabError(Exception):
    """What failed and what to do about it, in one line."""
