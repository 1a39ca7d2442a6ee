"""Certificates for tests, made with the openssl command."""

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

needs_openssl = pytest.mark.skipif(not shutil.which("openssl"), reason="the openssl command is not installed")


class Paths(NamedTuple):
    cert: Path
    key: Path
    ca: Path


def make_authority(folder, name="ca"):
    """The certificate and the key of an authority."""
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    subject = ["-subj", f"/CN={name}", "-days", "2"]
    _openssl("req", "-x509", *_new_key(key), *subject, "-out", cert)
    return cert, key


def make_certificate(folder, authority, name="worker"):
    """A certificate that the authority has signed, its key, and the authority's own."""
    ca, ca_key = authority
    cert, key, request = folder / f"{name}.pem", folder / f"{name}.key", folder / f"{name}.csr"
    _openssl("req", *_new_key(key), "-subj", f"/CN={name}", "-out", request)
    signing = ["-CA", ca, "-CAkey", ca_key, "-CAcreateserial", "-days", "2"]
    _openssl("x509", "-req", "-in", request, *signing, "-out", cert)
    return Paths(cert, key, ca)


def _new_key(key):
    return ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key]


def _openssl(*arguments):
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
