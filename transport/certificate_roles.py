"""Roles that a certificate allows: its extended key usage, and rules that bind it to roles.

A rule is ``ROLE, ... [of APPLICATION] = KIND:PATTERN``. It allows the roles to a connection whose
certificate has a name of the kind that matches the pattern, for the applications whose names match
``APPLICATION`` (all, without it). A role is ``peer``, ``producer``, ``consumer`` or ``driver``. A
kind is ``DNS``, ``IP``, ``URI`` or ``email`` (subject alternative names), or ``CN`` (common name of
the subject). Patterns are those of a shell, ``*``, ``?`` and ``[abc]``; ``*`` matches dots and
slashes too. They match whole names, and only for ``DNS`` is case of no account.

    peer = DNS:tm*.cluster.example
    driver, producer, consumer of etl-* = CN:etl-*
"""

import fnmatch
import functools
import ipaddress
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ..protocol.errors import NotPermitted
from ..protocol.schema import ROLE_CONSUMER, ROLE_COPIER, ROLE_DRIVER, ROLE_PEER, ROLE_PRODUCER

if TYPE_CHECKING:
    from cryptography import x509

ROLES: Final = {
    "peer": ROLE_PEER,
    "producer": ROLE_PRODUCER,
    "consumer": ROLE_CONSUMER,
    "driver": ROLE_DRIVER,
}
KINDS: Final = ("DNS", "IP", "URI", "email", "CN")

_RULE: Final = re.compile(
    r"(?P<roles>[^\s,=]+(?:\s*,\s*[^\s,=]+)*)(?:\s+of\s+(?P<application>[^\s,=]+))?"
    r"\s*=\s*(?P<kind>[^\s:=]+):(?P<pattern>\S(?:.*\S)?)"
)
_FORM: Final = 'the form is "ROLE, ... [of APPLICATION] = KIND:PATTERN"'
_EXAMPLES: Final = (
    'such as "peer = DNS:tm*.cluster.example" or "driver, producer, consumer of etl-* = CN:etl-*"'
)
_WILDCARDS: Final = frozenset("*?[")
_MOST_SHOWN_CHARACTERS: Final = 200
"""Of the names in a certificate, in an error."""


class CertificateRefused(NotPermitted):
    """The certificate of the other side is trusted, and does not allow what its Hello asks for."""

    def __init__(self, message: str, *, value: object = None, remedy: str = "") -> None:
        super().__init__(message, reason="certificate", value=value, remedy=remedy)


@dataclass(frozen=True, slots=True)
class CertificateRule:
    """One rule: who has this name may have these roles."""

    roles: frozenset[int]
    application: str | None
    """Pattern of application names; None: every application."""
    kind: str
    pattern: str

    def allows(self, names: "CertificateNames", role: int, application_id: str) -> bool:
        """Return whether a certificate with these names may have the role for the application."""
        if role not in self.roles:
            return False
        if self.application is not None and not fnmatch.fnmatchcase(
            application_id, self.application
        ):
            return False
        return any(
            fnmatch.fnmatchcase(_comparable(kind, name), self.pattern)
            for kind, name in names.names
            if kind == self.kind
        )


@dataclass(frozen=True, slots=True)
class CertificateNames:
    """The part of a certificate that decides on roles."""

    names: tuple[tuple[str, str], ...]
    """Kind and text of each name."""
    serves: bool
    """Whether it may be a server's: it names the use ``serverAuth``, or limits its uses not."""

    def __str__(self) -> str:
        text = ", ".join(f"{kind}:{name}" for kind, name in self.names) or "no names"
        return text if len(text) <= _MOST_SHOWN_CHARACTERS else f"{text[:_MOST_SHOWN_CHARACTERS]}…"


@functools.lru_cache(maxsize=1024)
def parse_rule(text: str) -> CertificateRule:
    """Read a rule.

    Raises:
        ValueError: The text is no rule; the error has the value, the form and an example.
    """
    match = _RULE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f'"{text}" is not a rule: {_FORM}, {_EXAMPLES}')
    names = [name.strip() for name in match["roles"].split(",")]
    for name in names:
        if name not in ROLES:
            raise ValueError(
                f'"{text}" names the role "{name}": use one of {", ".join(ROLES)}; {_FORM}, '
                f"{_EXAMPLES}"
            )
    kind, pattern, application = match["kind"], match["pattern"], match["application"]
    if kind not in KINDS:
        raise ValueError(
            f'"{text}" names the kind "{kind}": use one of {", ".join(KINDS)}; {_FORM}, {_EXAMPLES}'
        )
    if application is not None and "peer" in names:
        raise ValueError(
            f'"{text}" binds peers to an application: a TaskManager reads for all applications, so '
            f"give peers a rule without of, {_EXAMPLES}"
        )
    if kind == "IP" and _WILDCARDS.isdisjoint(pattern):
        try:
            pattern = str(ipaddress.ip_address(pattern))
        except ValueError:
            raise ValueError(
                f'"{text}" has no address behind IP: use one such as 10.0.0.7 or fd00::7, or a '
                "pattern such as 10.0.0.*"
            ) from None
    return CertificateRule(
        frozenset(ROLES[name] for name in names), application, kind, _comparable(kind, pattern)
    )


def permits(
    certificate_der: bytes | None, role: int, application_id: str, rules: Collection[str] = ()
) -> CertificateRefused | None:
    """Return why a certificate does not allow a role for an application; None if it does.

    For connections over TLS, on the side that accepts. A certificate whose extended key usage lacks
    ``serverAuth`` is never a peer's. One without that extension may be used for anything (RFC 5280,
    section 4.2.1.12). With rules, one of them must allow the role.

    Args:
        certificate_der: The certificate of the other side; None if it shows none.
        role: The role in its Hello.
        application_id: The application in its Hello; empty for a peer.
        rules: The setting ``tls_certificate_roles``.
    """
    if role == ROLE_COPIER:  # a TaskManager, whatever application it writes for
        role, application_id = ROLE_PEER, ""
    if not rules and (role != ROLE_PEER or certificate_der is None):
        return None
    asked = next((name for name, number in ROLES.items() if number == role), str(role))
    if certificate_der is None:
        return CertificateRefused(
            f"A {asked} must show a certificate to this TaskManager",
            remedy="Set transport.tls_certificate_file and transport.tls_key_file of the side that "
            "connects",
        )
    try:
        names = read_names(certificate_der)
    except ValueError as error:
        return CertificateRefused(
            f"The certificate of a {asked} cannot be read",
            value=error,
            remedy="Issue it again, with names and uses as RFC 5280 has them",
        )
    if role == ROLE_PEER and not names.serves:
        return CertificateRefused(
            "The certificate is for clients only, and TaskManagers serve one another",
            value=names,
            remedy="Let the TaskManager that connects show a certificate with extendedKeyUsage "
            "serverAuth, clientAuth",
        )
    if not rules or any(parse_rule(rule).allows(names, role, application_id) for rule in rules):
        return None
    return CertificateRefused(
        f"The certificate is not for a {asked}"
        + (f' of the application "{application_id}"' if application_id else ""),
        value=names,
        remedy="Show another certificate, or add a rule to transport.tls_certificate_roles of the "
        "TaskManager that refuses",
    )


def prepare() -> None:
    """Load the package that reads certificates, so that the first client does not wait for it."""
    import cryptography.x509  # noqa: F401 - a tenth of a second, which clients need not spend


def read_names(certificate_der: bytes) -> CertificateNames:
    """Read the names and the uses of a certificate.

    Raises:
        ValueError: It is not a certificate, or its names or uses cannot be read.
    """
    from cryptography import x509
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    try:
        certificate = x509.load_der_x509_certificate(certificate_der)
        names = [
            ("CN", _text(attribute.value))
            for attribute in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        ]
        extensions = certificate.extensions
        names += _alternative_names(extensions)
        try:
            uses = extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        except x509.ExtensionNotFound:
            serves = True
        else:
            serves = ExtendedKeyUsageOID.SERVER_AUTH in uses
    except (x509.DuplicateExtension, x509.UnsupportedGeneralNameType) as error:
        raise ValueError(str(error)) from error
    return CertificateNames(tuple(names), serves)


def _alternative_names(extensions: "x509.Extensions") -> Iterator[tuple[str, str]]:
    from cryptography import x509

    try:
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return
    for name in names:
        for kind, form in (
            ("DNS", x509.DNSName),
            ("IP", x509.IPAddress),
            ("URI", x509.UniformResourceIdentifier),
            ("email", x509.RFC822Name),
        ):
            if isinstance(name, form):
                yield kind, str(name.value)


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode(errors="replace")


def _comparable(kind: str, text: str) -> str:
    return text.lower() if kind == "DNS" else text
