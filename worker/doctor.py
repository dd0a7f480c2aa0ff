"""Say what this machine computes with: ``python -m dflashd.worker.doctor``, a JSON line a finding.

``dflashctl doctor`` runs it and shows it to people; mlx is imported here only.
"""

from __future__ import annotations

import sys

import msgspec

from .machine.findings import examine


def main() -> int:
    """Exit status 0: everything was looked at, whatever was found."""
    for finding in examine():
        sys.stdout.buffer.write(msgspec.json.encode(finding) + b"\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
