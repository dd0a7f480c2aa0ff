"""``dflashctl service``: run the daemon under systemd or launchd."""

from __future__ import annotations

import argparse
import sys

from ..exit_statuses import EXIT_FAILED, EXIT_NOT_FOUND, EXIT_OK
from ..service.installed import Service, ServiceError
from ..service.plan import service_plan
from .looks import write_json


def service(options: argparse.Namespace) -> int:
    """Carry out one action on the service."""
    place = Service(system=options.system)
    try:
        match options.action:
            case "print":
                plan = service_plan(options.config, system=options.system)
                text = place.text(plan).decode()
                told(options, place, text, text=text)
            case "install":
                place.install(service_plan(options.config, system=options.system))
                told(options, place, f"dflashd runs as a service ({place.file})\n")
            case "uninstall":
                if not place.uninstall():
                    sys.stderr.write(f"dflashctl: no service is installed at {place.file}\n")
                    return EXIT_NOT_FOUND
                told(options, place, f"{place.file} is removed\n")
            case _:
                text = place.status()
                told(options, place, text, text=text)
    except ServiceError as error:
        sys.stderr.write(f"dflashctl: {error}\n")
        return EXIT_FAILED
    return EXIT_OK


def told(options: argparse.Namespace, place: Service, words: str, *, text: str = "") -> None:
    """Say what became of it, to a person or a program."""
    if options.json:
        write_json({"file": str(place.file), "installed": place.file.exists(), "text": text})
    else:
        sys.stdout.write(words)
