"""``blink support-bundle``: what somebody needs who has to find out what is wrong, and none of an appliance's secrets.

What goes in is a list (``sources.py``); nothing is gathered by looking around. What a listed command or log prints is
cleaned as well (``redact.py``), since an operator's own secrets may have got there.
"""
