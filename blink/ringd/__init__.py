"""blink-ringd: the daemon that owns a ring's registrations and queue pairs on the host of the ring."""
