"""``dflashctl service``: run the daemon under systemd or launchd."""

from __future__ import annotations

import argparse
import sys

from ..config import ConfigError
from ..exit_statuses import EXIT_CONFIGURATION, EXIT_FAILED, EXIT_NOT_FOUND, EXIT_OK
from ..service.installed import Service, ServiceError
from ..service.plan import service_plan


def service(options: argparse.Namespace) -> int:
    """Carry out one action on the service."""
    place = Service(system=options.system)
    try:
        match options.action:
            case "print":
                text = place.text(service_plan(options.config, system=options.system))
                sys.stdout.write(text.decode())
            case "install":
                place.install(service_plan(options.config, system=options.system))
                sys.stdout.write(f"dflashd runs as a service ({place.file})\n")
            case "uninstall":
                if not place.uninstall():
                    sys.stderr.write(f"dflashctl: no service is installed at {place.file}\n")
                    return EXIT_NOT_FOUND
                sys.stdout.write(f"{place.file} is removed\n")
            case _:
                sys.stdout.write(place.status())
    except ConfigError as error:
        sys.stderr.write("".join(f"dflashctl: {line}\n" for line in str(error).splitlines()))
        return EXIT_CONFIGURATION
    except ServiceError as error:
        sys.stderr.write(f"dflashctl: {error}\n")
        return EXIT_FAILED
    return EXIT_OK
