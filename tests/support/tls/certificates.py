"""Certificates that a test makes, and the certificate that a port shows."""

import socket
import ssl
import subprocess
from pathlib import Path


def make_certificate(folder: Path, name: str) -> bytes:
    """Write a new certificate for ``name`` and its key; returns the certificate in DER."""
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-keyout", str(folder / "key.pem"), "-out", str(folder / "certificate.pem"), "-subj", f"/CN={name}"],
        check=True, capture_output=True,
    )  # fmt: skip
    return ssl.PEM_cert_to_DER_cert((folder / "certificate.pem").read_text())


def trusting_context() -> ssl.SSLContext:
    """Return TLS of a client that takes any certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def shown_certificate(host: str, port: int) -> bytes | None:
    """Return the certificate of a port in DER; blocks the calling thread."""
    with socket.create_connection((host, port)) as sock, trusting_context().wrap_socket(sock) as wrapped:
        return wrapped.getpeercert(binary_form=True)
