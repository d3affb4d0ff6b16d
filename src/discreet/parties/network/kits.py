"""Kits: what a party needs to join a study, and what the coordinator needs to run it, one small zip file each.

A kit holds a TLS certificate, a key that signs messages, and the roster: the public signing keys of all sites under
the digest of the study. It holds no settings. What a site permits is written by the site itself, on its own machine,
from the installed library, so a kit cannot loosen it.

    make_kits(study, "kits")             # kits/coordinator.zip, kits/hospital-a.zip, ...
    kit = open_kit("hospital-a.zip")     # unpacked beside the zip, keys readable by their owner only
    kit.check(study)                     # the right study, not expired

A party that makes its signing key itself (``discreet study key``) gives the coordinator the public key only. Whoever
makes a kit with a signing key could answer in the party's name. In a plain study that can spoil the model, but shows
nobody's records. In a secure sum it could play all parties but one and read that one's sum, so there every party must
make its own key, and compare the roster's fingerprint with the others.
"""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from discreet.certificate.signatures import public_key_of, read_signing_key
from discreet.errors import CannotConnect, InvalidParameter, missing_extra, one_of, whole
from discreet.files import canonical, digest, parse_json, write_whole
from discreet.parties.joint import roster_digits, roster_trouble
from discreet.parties.own_folder import insist_on_own_folder
from discreet.parties.study import COORDINATOR, Study

_FORMAT = "discreet kit 1"
_MEMBERS = ("kit.json", "roster.json", "authority.pem", "site.crt", "site.key", "signing.key", "README.txt")
_OPTIONAL = ("signing.key", "README.txt")
_SECRET = ("site.key", "signing.key")
_LARGEST = 1 << 20  # bytes of one member
_TAKEN = ("server", "revoked", "authority")


def make_kits(
    study: Study, folder: str | Path, valid_days: int = 90, keys: Mapping[str, str] | None = None
) -> dict[str, Path]:
    """Write one kit per party and one for the coordinator into the new ``folder``; returns their paths by name.

    ``keys`` gives the public signing keys (in hexadecimal) of parties that keep their private keys to themselves.
    With secure sums these must be all.
    """
    days = whole("valid_days", valid_days, at_least=1, at_most=3650)
    names = _site_names(study)
    host, port = split_address(study.network.coordinator)
    given = dict(keys or {})
    if unknown := sorted(set(given) - set(study.names)):
        raise InvalidParameter("keys", unknown, "are no parties of this study.")
    without = [name for name in study.names if name not in given]
    if study.aggregation.kind == "secure" and without:
        needed = (
            "are not enough: in a secure study whoever makes a party's signing key could read its sums. Each party "
            f"makes its own with `discreet study key`; missing are {', '.join(without)}."
        )
        raise InvalidParameter("keys", sorted(given), needed)
    target = Path(folder)
    if target.exists() and any(target.iterdir()):
        raise InvalidParameter("folder", str(folder), "is not empty; kits are never overwritten.")
    target.mkdir(parents=True, exist_ok=True, mode=0o700)

    signing = {name: Ed25519PrivateKey.generate() for name in names if name not in given}
    roster = {
        name: _public_key(given[name]) if name in given else public_key_of(signing[name]) for name in names
    }
    authority = _Authority(study.name, days)
    about = {"format": _FORMAT, "study": study.digest(), "name": study.name, "host": host, "port": port}
    paths = {}
    for name in names:
        content = authority.issue(host if name == COORDINATOR else name, server=name == COORDINATOR)
        content["kit.json"] = canonical(about | {"party": name}).encode()
        content["roster.json"] = canonical({"study": study.digest(), "keys": roster}).encode()
        content["README.txt"] = _readme(name, study, own_key=name in given).encode()
        if name in signing:
            content["signing.key"] = signing[name].private_bytes(
                Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
            )
        paths[name] = target / f"{name}.zip"
        _write_zip(paths[name], content)
    return paths


def _readme(name: str, study: Study, own_key: bool) -> str:
    """What whoever opens the zip should know."""
    text = f"Kit of {name} for the study {study.name}, {study.digest()}.\nFor {name} alone: it holds secret keys.\n"
    if name == COORDINATOR:
        return f"{text}Use it with: discreet coordinate study.toml --kit {name}.zip\n"
    if own_key:
        text += "Messages are signed with the key that you made yourself: discreet join ... --key FILE\n"
    else:
        text += (
            "signing.key was made together with this kit, so whoever made the kit could answer in your name. In this "
            "study, with\nplain sums, that could spoil the model; it shows nothing of your records, nor of the "
            "others'. To exclude it, make your\nown key with `discreet study key` and send its public key before "
            "the kits are made.\n"
        )
    return f"{text}Use it with: discreet join study.toml --data YOUR_TABLE --kit {name}.zip\n"


class _Authority:
    """A certificate authority that lives for one call: its key is never written down."""

    def __init__(self, name: str, days: int) -> None:
        lighter = _lighter()
        self._name = lighter.Identity(name[:60])
        self._start = datetime.now(UTC) - timedelta(minutes=5)  # clocks differ a little
        self._end = self._start + timedelta(days=days)
        self._key, public = lighter.generate_keys()
        self._certificate = self._sign(self._name, public, ca=True)

    def issue(self, name: str, server: bool) -> dict[str, bytes]:
        """Certificate and key of one site."""
        lighter = _lighter()
        private, public = lighter.generate_keys()
        certificate = self._sign(
            lighter.Identity(name, "discreet"), public, server_default_host=name if server else None
        )
        return {
            "authority.pem": lighter.serialize_cert(self._certificate),
            "site.crt": lighter.serialize_cert(certificate),
            "site.key": lighter.serialize_pri_key(private),
        }

    def _sign(self, subject: Any, public: Any, **options: Any) -> Any:
        return _lighter().generate_cert(
            subject,
            self._name,
            self._key,
            public,
            not_valid_before=self._start,
            not_valid_after=self._end,
            **options,
        )


def _lighter() -> Any:
    """NVFlare's provisioning tools, which know the certificates that NVFlare accepts."""
    try:
        import nvflare.lighter.utils as lighter
    except ImportError:
        raise missing_extra("Studies over a network need NVFlare", "parties") from None
    return lighter


def _site_names(study: Study) -> list[str]:
    host, _ = split_address(study.network.coordinator)
    for name in study.names:
        if name in _TAKEN or name == host:  # whose certificate would pass for the coordinator's
            raise InvalidParameter("parties", name, "means something else on a network; choose another name.")
    return [COORDINATOR, *study.names]


def _public_key(text: str) -> str:
    if not isinstance(text, str) or not re.fullmatch(r"[0-9a-f]{64}", text):
        raise InvalidParameter(
            "keys", text, "must be 32 bytes in hexadecimal, as `discreet study key` prints."
        )
    return text


def split_address(address: str) -> tuple[str, int]:
    """Host and port of ``"host:port"``."""
    host, _, port = address.rpartition(":")
    if not re.fullmatch(r"[A-Za-z0-9.-]{1,60}", host) or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InvalidParameter("coordinator", address, 'must be "host:port", such as "b.example.org:8443".')
    return host, int(port)


def _write_zip(path: Path, content: Mapping[str, bytes]) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in content.items():
            archive.writestr(name, data)


def revoke(kits: str | Path, party: str) -> None:
    """Note beside the coordinator's kit that ``party`` is to be refused from now on, also while a study runs."""
    folder = Path(kits)
    kit = read_kit(folder / f"{COORDINATOR}.zip")
    _, names, _ = _read_description(folder / f"{COORDINATOR}.zip", kit)
    one_of("party", party, sorted(set(names) - {COORDINATOR}))
    write_whole(folder / "revoked.json", canonical({"revoked": sorted({party, *revoked_parties(folder)})}))


def revoked_parties(kits: str | Path) -> frozenset[str]:
    """The parties whose kits were revoked."""
    try:
        text = (Path(kits) / "revoked.json").read_text()
    except FileNotFoundError:
        return frozenset()
    names = parse_json(text, "revoked.json").get("revoked")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InvalidParameter(
            "revoked.json", str(kits), "does not list the parties that are revoked; restore it."
        )
    return frozenset(names)


class Revocations:
    """The revoked parties, read again whenever the file has changed; ``tell`` is called with each."""

    def __init__(self, kits: Path, tell: Callable[[str], object]) -> None:
        self._kits, self._tell = kits, tell
        self._stamp, self._names = -1, frozenset[str]()

    def __call__(self) -> frozenset[str]:
        try:
            stamp = os.stat(self._kits / "revoked.json").st_mtime_ns
        except FileNotFoundError:
            stamp = 0
        if stamp != self._stamp:
            self._names, self._stamp = revoked_parties(self._kits), stamp
            for name in self._names:
                self._tell(name)
        return self._names


@dataclass(frozen=True)
class Kit:
    """A kit that was unpacked into ``folder``."""

    party: str
    name: str
    study: str
    host: str
    port: int
    roster: Mapping[str, str]
    folder: Path
    source: Path
    begins: datetime
    expires: datetime

    @property
    def digest(self) -> str:
        """SHA-256 of study and roster, which is that of ``roster.json``: what consent and certificates name."""
        return digest({"study": self.study, "keys": dict(self.roster)})

    @property
    def fingerprint(self) -> str:
        """The first 32 digits of the digest: sites that compare them by telephone know that they hold one roster."""
        return roster_digits(self.digest)

    @property
    def is_coordinator(self) -> bool:
        """True for the one kit of the coordinator."""
        return self.party == COORDINATOR

    def path(self, member: str) -> Path:
        """Where a member of the kit lies."""
        return self.folder / member

    def check(self, study: Study, now: datetime | None = None) -> None:
        """Raise the reason, in one sentence, why this kit cannot be used for this study now."""
        if study.digest() != self.study:
            raise CannotConnect(
                f"{self.source.name} belongs to another study ({self.study[:12]}) than this study file "
                f"({study.digest()[:12]}); all sites must hold the same study.toml, byte for byte in its settings."
            )
        if trouble := roster_trouble(self.roster, study):
            raise CannotConnect(f"{self.source.name} is not for this study: {trouble}. Ask for new kits.")
        if (
            study.aggregation.kind == "secure"
            and not self.is_coordinator
            and self.path("signing.key").exists()
        ):
            raise CannotConnect(
                f"{self.source.name} brings a signing key, so whoever made it could read this party's secure sums. "
                "Make a key with `discreet study key`, and ask the coordinator for kits with its public key."
            )
        today = now or datetime.now(UTC)
        if today < self.begins:
            raise CannotConnect(
                f"{self.source.name} is not valid before {self.begins:%d %B %Y, %H:%M} UTC, and this computer's "
                f"clock says {today:%d %B %Y, %H:%M} UTC; set the clock."
            )
        if self.expires <= today:
            raise CannotConnect(
                f"{self.source.name} expired on {self.expires:%d %B %Y}; ask the coordinator for new kits "
                "(discreet study kits)."
            )

    def signing_key(self, own: str | Path | None = None) -> Ed25519PrivateKey:
        """The key that signs this party's messages: its own file, or the one in the kit. It must be in the roster."""
        path = Path(own) if own is not None else self.path("signing.key")
        if own is None and not path.exists():
            raise CannotConnect(
                f"{self.party} keeps its own signing key: name its file with --key, as made by `discreet study key`."
            )
        key = read_signing_key(path)
        if public_key_of(key) != self.roster.get(self.party):
            raise CannotConnect(
                f"the signing key in {path.name} is not the one that the study's roster lists for {self.party}."
            )
        return key


def read_kit(path: str | Path) -> dict[str, bytes]:
    """The members of a kit, by name. Nothing else is read from the archive, and nothing is written."""
    try:
        with zipfile.ZipFile(path) as archive:
            found = {info.filename: info for info in archive.infolist()}
            if not set(found) <= set(_MEMBERS) or any(info.file_size > _LARGEST for info in found.values()):
                raise InvalidParameter("kit", str(path), "holds files that are no part of a kit.")
            content = {name: archive.read(name) for name in found}
    except (OSError, zipfile.BadZipFile, RuntimeError, NotImplementedError) as error:
        raise InvalidParameter("kit", str(path), f"cannot be read as a kit ({error}).") from None
    if missing := [name for name in _MEMBERS if name not in content and name not in _OPTIONAL]:
        raise InvalidParameter("kit", str(path), f"is no kit: {missing[0]} is missing.")
    return content


def open_kit(path: str | Path, folder: str | Path | None = None) -> Kit:
    """Unpack a kit into ``folder`` (by default beside the zip, under its name) and describe it.

    A folder that another user could change is refused: see :mod:`discreet.parties.own_folder`.
    """
    source = Path(path).resolve()
    content = read_kit(path)
    about, roster, certificate = _read_description(Path(path), content)
    target = Path(folder).absolute() if folder is not None else source.with_suffix("")
    target.mkdir(parents=True, exist_ok=True, mode=0o700)
    insist_on_own_folder(target, "kit")
    target = target.resolve()
    for name in _MEMBERS:
        (target / name).unlink(missing_ok=True)
    for name, data in content.items():
        _write_member(target / name, data, secret=name in _SECRET)
    return Kit(
        party=about["party"],
        name=about["name"],
        study=about["study"],
        host=about["host"],
        port=about["port"],
        roster=roster,
        folder=target,
        source=source,
        begins=certificate.not_valid_before_utc,
        expires=certificate.not_valid_after_utc,
    )


def _read_description(
    path: Path, content: Mapping[str, bytes]
) -> tuple[dict[str, Any], dict[str, str], x509.Certificate]:
    """What ``kit.json`` says, the roster's keys, and the site's certificate; whatever is wrong is refused."""
    member = "kit.json"
    try:
        about = parse_json(content[member].decode("utf-8", "replace"), member)
        if about.get("format") != _FORMAT:
            raise InvalidParameter(
                "kit", str(path), "was made by another version of this library; ask for a new one."
            )
        for word in ("party", "name", "study", "host"):
            if not isinstance(about[word], str):
                raise TypeError(word)
        whole("port", about["port"], at_least=1, at_most=65535)
        member = "roster.json"
        keys = _roster(parse_json(content[member].decode("utf-8", "replace"), member), about["study"])
        member = "site.crt"
        return about, keys, x509.load_pem_x509_certificate(content[member])
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, InvalidParameter) and error.name == "kit":
            raise
        raise InvalidParameter(
            "kit", str(path), f"is damaged: {member} in it makes no sense; ask for a new one."
        ) from None


def _roster(data: Mapping[str, Any], study: str) -> dict[str, str]:
    """The keys of a roster, if it is of this study and holds nothing but names and keys."""
    keys = data["keys"]
    if data["study"] != study or set(data) != {"study", "keys"} or COORDINATOR not in keys:
        raise ValueError("another study")
    return {str(name): _public_key(key) for name, key in keys.items()}


def _write_member(path: Path, data: bytes, secret: bool) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o644)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
