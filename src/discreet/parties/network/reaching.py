"""Knocking at the coordinator's door before joining: what is wrong is said in one sentence.

NVFlare itself waits in silence when a port is closed or a certificate is refused. What may pass by itself is a
:class:`~discreet.errors.NotYet`; anything else would be the same tomorrow.
"""

from __future__ import annotations

import socket
import ssl
from datetime import datetime

from cryptography import x509
from cryptography.x509.oid import NameOID

from discreet.errors import CannotConnect, NobodyThere, NotYet
from discreet.parties.network.kits import Kit


def reach(kit: Kit, timeout: float = 5.0) -> None:
    """Shake hands with the coordinator once, and say in one sentence what is wrong. Sends nothing of the study."""
    where = f"{kit.host}:{kit.port}"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # the name is compared below, to be able to explain it
    context.load_verify_locations(kit.path("authority.pem"))
    context.load_cert_chain(kit.path("site.crt"), kit.path("site.key"))
    try:
        with (
            socket.create_connection((kit.host, kit.port), timeout=timeout) as plain,
            context.wrap_socket(plain) as secure,
        ):
            _check_name(secure, kit)
            _listen_for_refusal(secure)
    except socket.gaierror:
        raise NotYet(f"no computer is known by the name {kit.host!r}; ask the coordinator.") from None
    except ConnectionRefusedError:
        raise NobodyThere(f"nothing listens on {where}: the coordinator has not started yet.") from None
    except TimeoutError:
        raise NotYet(f"{where} does not answer: a firewall may be closed, or the address wrong.") from None
    except ssl.SSLCertVerificationError as error:
        raise CannotConnect(_verification(error, where)) from None
    except ssl.SSLError as error:
        raise CannotConnect(_refusal(error, where, kit)) from None
    except ConnectionError:
        raise NotYet(f"{where} closed the connection: the coordinator is starting or ending.") from None
    except OSError as error:
        raise NotYet(f"{where} cannot be reached ({error.strerror or 'network problem'}).") from None


def _check_name(secure: ssl.SSLSocket, kit: Kit) -> None:
    der = secure.getpeercert(binary_form=True) or b""
    names = x509.load_der_x509_certificate(der).subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    found = str(names[0].value) if names else "nobody"
    if found != kit.host:
        raise CannotConnect(
            f"{kit.host}:{kit.port} shows the certificate of {found!r}, not of the study's coordinator."
        )


def _listen_for_refusal(secure: ssl.SSLSocket) -> None:
    """Under TLS 1.3 a server refuses a client's certificate only after the handshake: wait for it a moment."""
    secure.settimeout(0.4)
    try:
        if secure.recv(1) == b"":
            raise ConnectionResetError
    except TimeoutError:
        return


def _verification(error: ssl.SSLCertVerificationError, where: str) -> str:
    if "expired" in error.verify_message:
        return (
            f"the certificate of {where} has expired; the coordinator must make new kits, unless this computer's "
            f"clock is wrong: it says {datetime.now():%d %B %Y, %H:%M}."
        )
    if "not yet valid" in error.verify_message:
        return (
            f"the certificate of {where} is not valid yet by this computer's clock, which says "
            f"{datetime.now():%d %B %Y, %H:%M}; set the clock."
        )
    return f"{where} belongs to another authority than this kit: one of the two comes from other kits."


def _refusal(error: ssl.SSLError, where: str, kit: Kit) -> str:
    reason = (error.reason or "").lower()
    if "unknown_ca" in reason or "unknown ca" in reason:
        return f"the coordinator at {where} does not know the authority that made {kit.source.name}."
    if "expired" in reason:
        return (
            f"the coordinator at {where} says that {kit.source.name} has expired; ask for new kits, unless one of "
            "the two clocks is wrong."
        )
    if "bad_certificate" in reason or "bad certificate" in reason:
        return (
            f"the coordinator at {where} does not accept {kit.source.name}: by its clock the kit may not be valid "
            "yet; compare the clocks."
        )
    if "wrong_version" in reason or "record" in reason:
        return f"{where} does not speak TLS: it is not the study's coordinator."
    return f"the coordinator at {where} refused {kit.source.name} ({reason.replace('_', ' ') or 'TLS'})."
