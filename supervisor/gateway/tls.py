"""The certificate and its key, looked at before anything listens with them."""

from __future__ import annotations

import ssl
from pathlib import Path

from ..config.http_section import HttpSection
from ..errors import UnsafeFile


def check_tls(http: HttpSection) -> None:
    """Raise UnsafeFile that says what is wrong with the files, if there are any."""
    if http.tls_certificate is None or http.tls_key is None:
        return
    path = Path(http.tls_key)
    try:
        if path.stat().st_mode & 0o027:
            raise UnsafeFile(f"{path} can be read by all or written by others: `chmod 640` it")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(http.tls_certificate, path, password=_no_password)
    except (OSError, ValueError) as error:  # ssl's errors among them
        raise UnsafeFile(f"{http.tls_certificate} and {path} cannot be used: {error}") from error


def _no_password() -> str:
    # Without this, OpenSSL would ask on a terminal that nobody watches.
    raise ValueError("the key has a passphrase; store it without one, readable by dflashd only")
