"""Is the certificate in a folder that of the model in it?

The certificate names the digests of ``weights.safetensors`` and ``model.json``, and the procedure with the schema
that was declared; ``model.json`` names the weights, and shows the coefficients. All must say the same. Who can write
the folder can still replace all files at once, but not sign the certificate that they would need.

Certificates of 0.1.0 name no files. There ``model.json`` names the certificate, which anybody can edit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from discreet.certificate import Certificate, Procedure
from discreet.certificate.contents import insist_on_files
from discreet.cli.files import CERTIFICATE, MODEL, WEIGHTS
from discreet.cli.models import FittedModel, model_text
from discreet.errors import CertificateRejected, InvalidParameter
from discreet.linear.schema import Numeric, Schema

WHOLE = "weights, coefficients and model.json agree"


def verified_model(folder: Path, certificate: Certificate) -> FittedModel:
    """The model in a folder, if this is its certificate; else :class:`~discreet.errors.CertificateRejected`."""
    if certificate.files:
        _insist(
            folder, {WEIGHTS, MODEL} <= dict(certificate.files).keys(), f"{CERTIFICATE} is of other files"
        )
        insist_on_files(certificate.files, folder)
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
    """Raise unless the certificate is for these files, and of the procedure that made them."""
    settings = certificate.procedure.settings if isinstance(certificate.procedure, Procedure) else {}
    if "study" in text:  # of several parties: the model is known by its study, each party has its certificate
        _insist(folder, text.get("digest") == settings.get("digest"), f"{MODEL} is of another study")
        return
    named = bool(certificate.files) or text.get("certificate") == certificate.digest()
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
