"""The vendor's edge, simulated: apt repository, tools, card. What is inside of it is Blink's own, for real."""
