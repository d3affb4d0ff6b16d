"""The folder of a fitted model: writing it, :func:`load`, and whether the certificate in it is that of the model.

The certificate names the digests of ``weights.safetensors`` and ``model.json``, and the procedure with the schema
that was declared; ``model.json`` names the weights, and shows the coefficients. All must say the same. Who can write
the folder can still replace all files at once, but not sign the certificate that they would need.

Certificates of 0.1.0 name no files. There ``model.json`` names the certificate, which anybody can edit.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from discreet.certificate import Certificate
from discreet.certificate.certificate_file import read_certificate
from discreet.certificate.signatures import read_signing_key
from discreet.certificate.verification import insist_on_files
from discreet.errors import CertificateRejected, InvalidParameter, LedgerUnavailable
from discreet.events import Gaussian
from discreet.folders import whole_folder
from discreet.ledger import Ledger
from discreet.linear.column_kinds import Numeric
from discreet.linear.declarations import bounds_of
from discreet.linear.encoder import BoundedRows, SchemaEncoding
from discreet.linear.fitted_model import MODEL, WEIGHTS, FittedModel, model_text
from discreet.linear.schema import Schema

CERTIFICATE = "certificate.json"
WHOLE = "weights, coefficients and model.json agree"

SigningKey = Ed25519PrivateKey | str | os.PathLike[str]


def save_model(fitted: Any, folder: str | os.PathLike[str], sign_with: SigningKey | None = None) -> None:
    """Write a fitted estimator into a new folder, which appears whole or not at all."""
    place = Path(folder)
    if place.exists():
        requirement = "exists; a model was paid for and is never replaced: choose another name."
        raise InvalidParameter("folder", str(place), requirement)
    with whole_folder(place) as part:
        write_model(fitted, part, sign_with)


def write_model(fitted: Any, folder: Path, sign_with: SigningKey | None = None) -> tuple[str, ...]:
    """Write all that belongs to a fitted estimator into an existing folder; the names of the files.

    The certificate is for the files that were written. Its signature covers them, and so does the ledger that paid,
    if it can still be written to.
    """
    more = {
        "estimator": type(fitted).__name__,
        "spending": spending(fitted.certificate_),
        "notes": list(fitted.diagnosis_.notes),
    }
    files = FittedModel.of(fitted).write(folder, more)
    with _paying_ledger(fitted) as ledger:
        certificate = fitted.certificate_.for_files(*files, ledger=ledger)
    if sign_with is not None:
        key = sign_with if isinstance(sign_with, Ed25519PrivateKey) else read_signing_key(Path(sign_with))
        certificate = certificate.signed(key)
    certificate.save(folder / CERTIFICATE)
    fitted.certificate_ = certificate
    return WEIGHTS, MODEL, CERTIFICATE


@contextmanager
def _paying_ledger(fitted: Any) -> Iterator[Ledger | None]:
    """The ledger that paid for an estimator, if there is one on disk that can be opened."""
    place = fitted.ledger
    if place is None or isinstance(place, Ledger):
        yield place
        return
    with ExitStack() as stack:
        found = None
        with suppress(LedgerUnavailable):
            key = None if fitted.ledger_key is None else Path(fitted.ledger_key)
            found = stack.enter_context(
                Ledger.open(place if isinstance(place, str) else Path(place), key=key)
            )
        yield found


def spending(certificate: Certificate) -> list[dict[str, Any]]:
    """What the budget was spent on, in order: the shares are of the squared signal-to-noise ratio.

    Empty for methods with theorems, which are one release.
    """
    digest = certificate.plan.digest()
    stages: list[tuple[str, int, float]] = []
    for run in certificate.ledger.runs:
        if run.plan_hash == digest:
            for event, releases in run.event.parts():
                if isinstance(event, Gaussian):
                    stages.append((run.name.rpartition("/")[2], releases, event.noise_multiplier))
    total = math.fsum(releases / noise**2 for _, releases, noise in stages)
    return [
        {"stage": name, "releases": releases, "noise_multiplier": noise, "share": releases / noise**2 / total}
        for name, releases, noise in stages
    ]


def load(folder: str | os.PathLike[str]) -> FittedModel:
    """The model in a folder that ``model.save`` or ``discreet fit`` has written. No pickle is read.

    Guarantee: what does not fit together, or is not what the certificate in the folder is for, is rejected. Without
    a certificate, as in the result of a study, ``certificate_`` is None: nobody can check what the model gave away.
    """
    place = Path(folder)
    if not (place / CERTIFICATE).exists():
        return FittedModel.read(place)
    return verified_model(place, read_certificate(place / CERTIFICATE))


def verified_model(folder: Path, certificate: Certificate) -> FittedModel:
    """The model in a folder, if this is its certificate; else :class:`~discreet.errors.CertificateRejected`."""
    if certificate.files:
        _insist(
            folder, {WEIGHTS, MODEL} <= dict(certificate.files).keys(), f"{CERTIFICATE} is of other files"
        )
        insist_on_files(certificate.files, folder)
    try:
        model, text = FittedModel.read(folder), model_text(folder)
    except (InvalidParameter, OSError) as error:
        reason = error.requirement if isinstance(error, InvalidParameter) else "is incomplete."
        raise CertificateRejected(f"{folder} is rejected: the model {reason}") from None
    insist_belonging(folder, text, model, certificate)
    return replace(model, certificate_=certificate)


def insist_belonging(
    folder: Path, text: dict[str, Any], model: FittedModel, certificate: Certificate
) -> None:
    """Raise unless the certificate is for these files, and of the plan that made them."""
    settings = certificate.plan.settings
    if "study" in text:  # of several parties: the model is known by its study, each party has its certificate
        _insist(folder, text.get("digest") == settings.get("digest"), f"{MODEL} is of another study")
        return
    named = bool(certificate.files) or text.get("certificate") == certificate.digest()
    _insist(folder, named, f"{CERTIFICATE} is not the certificate that {MODEL} names")
    _insist(folder, _of_encoding(settings, model.encoding), f"{CERTIFICATE} is of another schema or target")


def _of_encoding(settings: Any, encoding: SchemaEncoding | BoundedRows) -> bool:
    """True if what was declared, with learnt bounds filled in, is how the model reads a table."""
    if isinstance(encoding, BoundedRows):
        return bool(settings.get("row_norm") == encoding.columns.text_norm)
    schema = encoding.schema
    try:
        if settings["schema"] is None:
            return _of_bounds(settings, schema)
        declared = Schema.from_dict(settings["schema"])
        learnt = {
            name: (schema.columns[name].lower, schema.columns[name].upper)  # type: ignore[union-attr]
            for name, column in declared.columns.items()
            if isinstance(column, Numeric) and not column.declared
        }
        return declared.with_bounds(learnt) == schema  # type: ignore[arg-type]
    except (InvalidParameter, LookupError, TypeError, AttributeError):
        return False


def _of_bounds(settings: Mapping[str, Any], schema: Schema) -> bool:
    """True if a model without a schema has the bounds that were declared; None were learnt."""
    columns = [column for column in schema.columns.values() if isinstance(column, Numeric)]
    if settings.get("row_norm") is not None or len(columns) < len(schema.columns):
        return False
    if settings["bounds"] is None:
        return True
    lower, upper = bounds_of(settings["bounds"], len(columns), tuple(schema.columns))
    declared = zip(lower.tolist(), upper.tolist(), strict=True)
    return [(column.lower, column.upper) for column in columns] == list(declared)


def _insist(folder: Path, condition: bool, otherwise: str) -> None:
    if not condition:
        raise CertificateRejected(f"{folder} is rejected: {otherwise}.")
