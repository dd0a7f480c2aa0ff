"""The daemon: configuration, core, shell and command line of dflashd."""
