"""Judge a gateway's certificate with key, and the authority of the appliances'; on the operator's machine.

certificate.py, with {"certificate": PEM, "authority": PEM} on stdin; an empty one is not judged. Prints
{"cause", "remedy"} as JSON; an empty cause is right. Says nothing of what is in a key. Needs `cryptography`, which
Ansible brings along.
"""

import itertools
import json
import re
import sys
from datetime import UTC, datetime

from cryptography import x509
from cryptography.hazmat.primitives import serialization

KEY = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----", re.DOTALL)
WHOLE = "give certificate, chain and key as one PEM text: cat server.crt chain.crt server.key"


def public(key):
    """Bytes by which public keys are compared."""
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def certificates(pem):
    """The certificates of a PEM text, none where it has none or a damaged one."""
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        return []


def dates(certificate):
    """(cause, remedy) of a certificate that is not valid today."""
    now, name = datetime.now(UTC), certificate.subject.rfc4514_string()
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now > end:
        return f"the certificate of {name} ended on {end:%Y-%m-%d}", "have it renewed"
    if now < begin:
        return f"the certificate of {name} begins on {begin:%Y-%m-%d}", "wait for that day, or correct this clock"
    return "", ""


def judge_certificate(pem):
    """(cause, remedy) of the gateway's own."""
    chain = certificates(pem)
    if not chain:
        return "it has no certificate, or a damaged one", WHOLE
    found = KEY.search(pem)
    if not found:
        return "it has no private key", WHOLE
    try:
        key = serialization.load_pem_private_key(found[0], password=None)
    except (ValueError, TypeError):
        return "its private key is damaged or has a passphrase", "give a key without passphrase, as PKCS #8"
    if public(key.public_key()) != public(chain[0].public_key()):
        return "its private key belongs to another certificate than the first", WHOLE
    for lower, upper in itertools.pairwise(chain):
        if lower.issuer != upper.subject:
            return "its chain is out of order: a certificate is not followed by its issuer's", WHOLE
    return next((verdict for verdict in map(dates, chain) if verdict[0]), ("", ""))


def judge_authority(pem):
    """(cause, remedy) of who signs the appliances' certificates."""
    found = certificates(pem)
    if not found:
        return "it has no certificate, or a damaged one", "give the authority's certificate as PEM"
    return next((verdict for verdict in map(dates, found) if verdict[0]), ("", ""))


def main():
    given = json.load(sys.stdin)
    verdict = ("", "")
    for name, judge in (("certificate", judge_certificate), ("authority", judge_authority)):
        if given[name].strip() and not verdict[0]:
            cause, remedy = judge(given[name].encode())
            verdict = (f"gateway_{name}: {cause}" if cause else "", remedy)
    print(json.dumps({"cause": verdict[0], "remedy": verdict[1]}))


if __name__ == "__main__":
    main()
