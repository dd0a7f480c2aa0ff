"""Running under systemd or launchd: what we tell them, and the files that make them run us."""
