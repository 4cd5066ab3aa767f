"""A certificate authority of a test's own."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

SIGNS = x509.KeyUsage(
    digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
    key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
)  # fmt: skip


class Authority:
    """Signs certificates; ``pem`` is its own."""

    def __init__(self, name: str) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        self.pem = self._sign(self._name, self._key.public_key(), None, 30)

    def issue(self, name: str, *, days: int = 30) -> tuple[str, str]:
        """Certificate and key, as PEM, of ``name`` and of 127.0.0.1; of negative ``days``, one that has ended."""
        key = ec.generate_private_key(ec.SECP256R1())
        form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        return self._sign(subject, key.public_key(), name, days), key.private_bytes(*form).decode()

    def _sign(self, subject: x509.Name, key: ec.EllipticCurvePublicKey, host: str | None, days: int) -> str:
        end = datetime.now(UTC) + timedelta(days=days)
        builder = x509.CertificateBuilder(self._name, subject, key, x509.random_serial_number())
        builder = builder.not_valid_before(end - timedelta(days=60)).not_valid_after(end)
        builder = builder.add_extension(x509.BasicConstraints(ca=host is None, path_length=None), critical=True)
        # Python 3.13 verifies strictly (RFC 5280, section 4.2.1), and asks for the rest.
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(signer, critical=False)
        if host is None:
            builder = builder.add_extension(SIGNS, critical=True)
        else:
            names = [x509.DNSName(host), x509.IPAddress(ip_address("127.0.0.1"))]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        signed = builder.sign(self._key, hashes.SHA256())
        return signed.public_bytes(serialization.Encoding.PEM).decode()
