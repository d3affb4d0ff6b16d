"""Refusals of certificates and signatures, and the broken twins of what only phrases them."""

from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

import discreet.certificate.verification as verification
from discreet import Bounds, Budget, Gaussian, Ledger
from discreet.certificate import Arithmetic, Certificate, CertificateRejected
from discreet.certificate.certificate_file import read_certificate
from discreet.certificate.certificate_views import CertificateViews
from discreet.certificate.signatures import Signature, read_signing_key
from discreet.certificate.verdict_views import VerdictViews
from discreet.certificate.verification import checked_files
from discreet.errors import InvalidParameter
from discreet.ledger import GaussianFilter
from discreet.plan.plan import Plan

RULE = GaussianFilter(Budget(1.0, 1e-6))
PLAN = Plan.adaptive("fit", RULE)


@pytest.fixture
def ledger():
    with Ledger.in_memory(RULE) as ledger:
        ledger.run(Gaussian(40.0) * 2, PLAN.digest()).reserve(2)
        yield ledger


def test_what_is_said_of_the_arithmetic():
    assert Arithmetic("hardened", 1e-9).caution == ""
    assert "floating point" in Arithmetic().caution


def test_signatures_and_keys_of_other_kinds_are_refused(tmp_path):
    for public, signature in (("0" * 63, "0" * 128), ("0" * 64, "x" * 128), (1, "0" * 128)):
        with pytest.raises(InvalidParameter, match="bytes in hexadecimal"):
            Signature(public, signature)
    key = generate_private_key(65537, 2048)
    (tmp_path / "rsa.pem").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    with pytest.raises(InvalidParameter, match="another kind"):
        read_signing_key(tmp_path / "rsa.pem")


@pytest.mark.parametrize("files", [(), (("a", "0" * 64), ("a", "1" * 64))])
def test_files_are_named_once_each(files):
    with pytest.raises(InvalidParameter, match="each named once"):
        checked_files(files)


def test_a_filter_has_no_closer_guarantee(ledger):
    """More digits are asked for where less is claimed; a filter has none, so the claim is rejected."""
    certificate = Certificate.of(ledger, PLAN)
    less = replace(certificate.guarantee, epsilon=Bounds(0.0, 0.9))
    with pytest.raises(CertificateRejected, match=r"epsilon\.upper=0\.9"):
        replace(certificate, guarantee=less).verify(ledger)


def test_a_file_that_is_no_certificate_is_not_quoted(ledger, tmp_path):
    certificate = Certificate.of(ledger, PLAN)
    certificate.save(tmp_path / "right.json")
    assert read_certificate(tmp_path / "right.json") == certificate
    altered = certificate.to_json().replace('"fit"', '"fit2"')
    texts = {"it is not": "secret", "its digest does not match": altered}
    for told, text in texts.items():
        (tmp_path / "wrong.json").write_text(text)
        with pytest.raises(CertificateRejected, match=told) as error:
            read_certificate(tmp_path / "wrong.json")
        assert "secret" not in str(error.value)


def test_a_list_is_a_list(ledger):
    text = Certificate.of(ledger, PLAN).to_json()
    with pytest.raises(InvalidParameter, match="a list is missing"):
        Certificate.from_json(text.replace('"signatures": []', '"signatures": {}'))


# The broken twins: views and a second accountant that say anything.


def test_views_that_lie_accept_nothing(ledger, monkeypatch):
    honest = Certificate.of(ledger, PLAN)
    kept = honest.digest(), honest.to_json()
    for name in ("headline", "__str__", "__repr__", "plot", "_repr_html_"):
        monkeypatch.setattr(CertificateViews, name, lambda *_: "accepted")
    for name in ("headline", "findings", "__str__"):
        monkeypatch.setattr(VerdictViews, name, lambda *_: "accepted")
    names = ("charged", "continued", "all_runs", "same_entries", "went_on", "for_files", "same_files")
    for name in (*names, "missing_ledger", "signed_by_other"):
        monkeypatch.setattr(verification.verdict_views, name, lambda *_: "accepted")
    monkeypatch.setattr(verification.verdict_views, "circumstances", lambda certificate: ())
    monkeypatch.setattr(verification, "second_opinion", lambda *_: "accepted")
    assert (honest.digest(), honest.to_json()) == kept
    assert honest.verify(ledger).vouched
    assert honest.verify().outcome == "consistent"  # its claims still count, whatever is said of them
    with pytest.raises(CertificateRejected, match="what follows is"):
        replace(honest, guarantee=replace(honest.guarantee, delta=1e-9)).verify(ledger)
    with pytest.raises(CertificateRejected, match="a seed"):
        replace(honest, trusted=False).verify(ledger)
