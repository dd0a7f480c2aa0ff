"""Which dflashd this is. The packaging reads it here, so nothing is looked up at each start."""

VERSION = "0.1.0"
