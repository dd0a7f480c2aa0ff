"""Exit statuses of ``dflashd`` and ``dflashctl``. They are stable: scripts and units rely on them.

``docs/operations.md`` says what each means for whoever starts us.
"""

from __future__ import annotations

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
"""Wrong arguments (argparse's own)."""
EXIT_NO_DAEMON = 3
EXIT_NOT_FOUND = 4
EXIT_REFUSED = 5
"""The request cannot be served as it is: bad_request, unsupported, unauthorised."""
EXIT_TRY_AGAIN = 75
"""It may work later (EX_TEMPFAIL of sysexits.h); of ``dflashd``: another one serves there."""
EXIT_CONFIGURATION = 78
"""The configuration cannot be used: starting again does not help (EX_CONFIG)."""
EXIT_INTERRUPTED = 130
