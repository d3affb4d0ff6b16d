"""Is the certificate in a folder that of the model in it? A certificate alone says nothing about any weights.

``model.json`` names the hash of the weights and the digest of the certificate, and shows the coefficients; the
certificate names the procedure, with the schema that was declared. All of them must say the same. Who can write the
folder can still replace all files at once: what a signature covers is the certificate, and with it the procedure.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from discreet.certificate import Certificate, Procedure
from discreet.cli.files import CERTIFICATE, MODEL
from discreet.cli.models import FittedModel, model_text
from discreet.errors import CertificateRejected, InvalidParameter
from discreet.linear.schema import Numeric, Schema

BARE = "a certificate alone: it says nothing about which weights it is for; give the model's folder to check that"
WHOLE = "weights, coefficients and certificate are those that model.json names"


def verified_model(folder: Path, certificate: Certificate) -> FittedModel:
    """The model in a folder, if this is its certificate; else :class:`~discreet.errors.CertificateRejected`."""
    try:
        model, text = FittedModel.load(folder), model_text(folder)
    except (InvalidParameter, OSError) as error:
        reason = error.requirement if isinstance(error, InvalidParameter) else "is incomplete."
        raise CertificateRejected(f"{folder} is rejected: the model {reason}") from None
    insist_belonging(folder, text, model, certificate)
    return model


def insist_belonging(
    folder: Path, text: dict[str, Any], model: FittedModel, certificate: Certificate
) -> None:
    """Raise unless the certificate is the one that ``model.json`` names, of the procedure that made it."""
    settings = certificate.procedure.settings if isinstance(certificate.procedure, Procedure) else {}
    if "study" in text:  # of several parties: the model is known by its study, each party has its certificate
        _insist(folder, text.get("digest") == settings.get("digest"), f"{MODEL} is of another study")
        return
    named = text.get("certificate") == certificate.digest()
    _insist(folder, named, f"{CERTIFICATE} is not the certificate that {MODEL} names")
    _insist(folder, _of_schema(settings, model.schema), f"{CERTIFICATE} is of another schema or target")


def _of_schema(settings: Any, schema: Schema) -> bool:
    """True if what was declared, with learnt bounds filled in, is the schema of the model."""
    try:
        declared = Schema.from_dict(settings["schema"])
        learnt = {
            name: (schema.columns[name].lower, schema.columns[name].upper)  # type: ignore[union-attr]
            for name, column in declared.columns.items()
            if isinstance(column, Numeric) and not column.declared
        }
        return declared.with_bounds(learnt) == schema  # type: ignore[arg-type]
    except (InvalidParameter, LookupError, TypeError, AttributeError):
        return False


def _insist(folder: Path, condition: bool, otherwise: str) -> None:
    if not condition:
        raise CertificateRejected(f"{folder} is rejected: {otherwise}.")
