"""The simulated card: what its inventory, its host's tools and its own words agree on. The lab's is the same."""

SERIALS = "MT2512X0000"  # and the appliance's number
SERIAL, BDF = f"{SERIALS}1", "0000:0d:00.2"
OLD_FIRMWARE, FIRMWARE = "32.43.1014", "32.47.1026"
