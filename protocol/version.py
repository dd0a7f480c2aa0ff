"""Which dflashd this is. The packaging reads it here, so no file of an installation is looked up."""

VERSION = "0.1.0"
