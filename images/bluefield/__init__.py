"""The image of a BlueField card: the vendor's BFB, a bf.cfg for each card, and the release of the frontend."""
