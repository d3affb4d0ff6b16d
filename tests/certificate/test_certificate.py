"""Certificates: what they claim follows from what they show, and whatever was altered is refused or harmless."""

import copy
import json
import math
import random
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import discreet.certificate.second_opinion as second_opinion
from discreet import Bounds, Budget, Composition, Gaussian, Laplace, Ledger, account
from discreet.accounting.renyi import renyi_epsilon
from discreet.certificate import Arithmetic, Certificate, CertificateRejected, new_signing_key, public_key_of
from discreet.certificate.signatures import read_signing_key
from discreet.core.noise import distance_to_continuous, grid_for
from discreet.errors import BudgetExceeded, DiscreetError, InvalidParameter, PlanViolation
from discreet.files import digest
from discreet.ledger import FixedPlan, GaussianFilter, Till
from discreet.plan.plan import Plan
from discreet.plan.recipe import Recipe

BUDGET = Budget(epsilon=1.0, delta=1e-6)
PLAN = Recipe(records=60_000, batch_size=600, epochs=5).calibrate(BUDGET)


def plan_ledger(steps=PLAN.steps, rule=None):
    ledger = Ledger.in_memory(rule or FixedPlan(PLAN.event, BUDGET))
    ledger.run(PLAN.event, PLAN.digest()).reserve(steps)
    return ledger


def adaptive(ledger_budget=BUDGET, noises=(30.0, 12.0), **spare):
    procedure = Plan.adaptive("fit", GaussianFilter(BUDGET, **spare), {"steps": 40, "clip": 1.5})
    ledger = Ledger.in_memory(GaussianFilter(ledger_budget, **spare))
    for stage, noise in enumerate(noises):
        event = Gaussian(noise) * 3
        ledger.run(event, procedure.digest(), name=f"fit/{stage}").reserve(3)
    return ledger, procedure


@pytest.fixture(scope="module")
def certificate():
    with plan_ledger() as ledger:
        return Certificate.of(ledger, PLAN)


def test_the_guarantee_is_that_of_the_plan_by_both_accountants(certificate):
    assert certificate.guarantee == PLAN.guarantee
    findings = str(certificate.verify())
    second = renyi_epsilon(PLAN.event, PLAN.delta)
    assert f"{second:.2f}" in findings
    assert certificate.guarantee.epsilon.upper <= second


def test_what_is_printed_is_for_people(certificate):
    assert repr(certificate).startswith(f"<Certificate {certificate.digest()[:12]} of ")
    assert len(repr(certificate)) < 300
    first, second, *rest = str(certificate).splitlines()
    assert first == certificate.headline
    assert "500 releases" in second
    assert rest == [f"not covered: {text}" for text in certificate.not_covered]


def test_files_round_trip(certificate, tmp_path):
    certificate.save(tmp_path / "certificate.json")
    again = Certificate.load(tmp_path / "certificate.json")
    assert again == certificate
    assert again.verify().guarantee == PLAN.guarantee


def test_a_plan_that_stopped_early_still_promises_the_whole_plan():
    with plan_ledger(steps=7) as ledger:
        assert Certificate.of(ledger, PLAN).guarantee == PLAN.guarantee


def test_an_adaptive_procedure_promises_its_own_budget_and_names_that_of_the_ledger():
    wide = Budget(epsilon=3.0, delta=1e-6)
    ledger, procedure = adaptive(wide)
    with ledger:
        ledger.run(Gaussian(5.0) * 1, "a" * 64, name="somebody-else").reserve(1)
        certificate = Certificate.of(ledger, procedure)
    assert certificate.guarantee.epsilon.upper == 1.0
    assert certificate.together.epsilon.upper == 3.0
    assert "all runs of this ledger together: (3, 1e-06)" in str(certificate.verify())
    lower = account(Gaussian(30.0) * 3 + Gaussian(12.0) * 3).epsilon_bounds(1e-6).lower
    assert certificate.guarantee.epsilon.lower == pytest.approx(lower, rel=1e-9)


def test_the_ledger_confirms_and_so_do_its_entries():
    with plan_ledger(steps=10) as ledger:
        certificate = Certificate.of(ledger, PLAN)
        ledger.run(PLAN.event, PLAN.digest()).reserve(1)  # going on does not spoil an earlier certificate
        assert "the ledger went on by 3 entries and 1 releases" in str(certificate.verify(ledger))
        entries = ledger.entries()
    copied = certificate.verify(entries)
    assert (copied.outcome, "in the ledger" in str(copied)) == ("consistent", False)
    assert "the given first 3 entries say the same" in str(copied)
    with pytest.raises(CertificateRejected, match="older than the certificate"):
        certificate.verify(entries[:2])
    with pytest.raises(CertificateRejected, match="makes no sense"):
        certificate.verify([*entries, entries[1]])
    entries[2] = entries[2].replace("10", "1")
    with pytest.raises(CertificateRejected, match="says something else"):
        certificate.verify(entries)


def test_signatures(certificate, tmp_path):
    key = new_signing_key(tmp_path / "officer.pem")
    assert (tmp_path / "officer.pem").stat().st_mode & 0o077 == 0
    with pytest.raises(InvalidParameter, match="never overwritten"):
        new_signing_key(tmp_path / "officer.pem")
    signed = certificate.signed(read_signing_key(tmp_path / "officer.pem"))
    again = Certificate.from_json(signed.to_json())
    assert f"signed by {public_key_of(key)}" in str(again.verify(signed_by=public_key_of(key)))
    with pytest.raises(CertificateRejected, match="not signed by"):
        certificate.verify(signed_by=public_key_of(key))
    moved = replace(certificate, not_covered=(*certificate.not_covered, "rain"), signatures=signed.signatures)
    with pytest.raises(CertificateRejected, match="is not of this certificate"):
        moved.verify()
    twice = signed.signed(Ed25519PrivateKey.generate())
    assert len(str(twice.verify()).split("signed by")) == 3


def test_files_that_hold_no_key_are_refused(tmp_path):
    (tmp_path / "key").write_text("no")
    for path in (tmp_path / "key", tmp_path / "missing"):
        with pytest.raises(InvalidParameter, match="holds no signing key"):
            read_signing_key(path)


def test_a_seed_is_no_guarantee():
    with plan_ledger() as ledger:
        certificate = Certificate.of(ledger, PLAN, trusted=False)
    assert '"randomness": "seed"' in certificate.to_json()
    with pytest.raises(CertificateRejected, match="nothing is private"):
        certificate.verify()


def test_a_smaller_epsilon_than_follows_is_rejected(certificate):
    lower, upper = certificate.guarantee.epsilon
    with pytest.raises(CertificateRejected, match="what follows is"):
        replace(
            certificate, guarantee=replace(certificate.guarantee, epsilon=Bounds(lower, upper * 0.999))
        ).verify()
    with pytest.raises(CertificateRejected, match="what follows is"):
        replace(certificate, guarantee=replace(certificate.guarantee, delta=1e-7)).verify()
    with pytest.raises(CertificateRejected, match="what follows is"):
        replace(
            certificate, guarantee=replace(certificate.guarantee, observer="sees the final model")
        ).verify()


def test_a_procedure_that_the_ledger_does_not_know_is_rejected(certificate):
    other = Recipe(records=60_000, batch_size=600, epochs=6).calibrate(BUDGET)
    with pytest.raises(CertificateRejected, match="knows no run"):
        replace(certificate, plan=other).verify()


def test_a_run_that_departed_from_the_plan_is_rejected(certificate):
    noise = Gaussian(0.1) * 500
    with Ledger.in_memory(FixedPlan(noise, Budget(1e6, 1e-6))) as ledger:
        ledger.run(noise, PLAN.digest()).reserve(500)
        with pytest.raises(BudgetExceeded, match="more than the rule"):
            Certificate.of(ledger, PLAN)
        statement = ledger.statement()
    with pytest.raises(CertificateRejected):
        replace(certificate, ledger=statement).verify()


def test_a_procedure_that_overspent_its_own_rule_is_not_certified():
    ledger, procedure = adaptive(Budget(epsilon=3.0, delta=1e-6), noises=(5.0, 5.0))
    with ledger, pytest.raises(BudgetExceeded, match="nothing is certified"):
        Certificate.of(ledger, procedure)


def test_a_broken_first_accountant_is_caught_by_the_second(certificate, monkeypatch):
    """The twin: bounds that are four times too large contradict the other proof."""

    class Fourfold:
        def __init__(self, curve):
            self.curve = curve

        def epsilon_bounds(self, delta):
            return Bounds(*(4 * bound for bound in self.curve.epsilon_bounds(delta)))

    certificate.verify()
    monkeypatch.setattr(second_opinion, "account", lambda *arguments: Fourfold(account(*arguments)))
    with pytest.raises(CertificateRejected, match="the second accountant proves"):
        certificate.verify()


def test_events_without_a_second_theorem_say_so():
    plan = Recipe(records=1000, batch_size=100, steps=10, sampling="fixed-size").calibrate(
        Budget(2.0, 1e-6, "replace-one")
    )
    with Ledger.in_memory(FixedPlan(plan.event, Budget(2.0, 1e-6, "replace-one"))) as ledger:
        ledger.run(plan.event, plan.digest()).reserve(1)
        assert "has no theorem" in str(Certificate.of(ledger, plan).verify())


@pytest.mark.parametrize("settings", [{"x": float("nan")}, {"x": object()}, {1: {2, 3}}, "words"])
def test_settings_that_are_no_plain_data_are_refused(settings):
    with pytest.raises(InvalidParameter, match="settings"):
        Plan.adaptive("fit", GaussianFilter(BUDGET), settings)


def test_other_things_are_refused(certificate, tmp_path):
    with plan_ledger() as ledger:
        with pytest.raises(InvalidParameter, match="plan"):
            Certificate.of(ledger, "plan")
        for name, value in {"arithmetic": "float", "trusted": "no", "not_covered": "abc"}.items():
            with pytest.raises(InvalidParameter, match=name):
                Certificate.of(ledger, PLAN, **{name: value})
        with pytest.raises(PlanViolation, match="nothing to certify"):
            Certificate.of(ledger, Recipe(records=60_000, batch_size=600, epochs=6).calibrate(BUDGET))
    with pytest.raises(InvalidParameter, match="ledger"):
        Certificate.of(None, PLAN)
    with pytest.raises(InvalidParameter, match="rule"):
        Plan.adaptive("fit", BUDGET)
    with pytest.raises(InvalidParameter, match="key"):
        certificate.signed(b"key")
    (tmp_path / "large").write_bytes(b" " * (2**26 + 1))
    with pytest.raises(InvalidParameter, match="too large"):
        Certificate.load(tmp_path / "large")


def test_a_certificate_is_stale_once_the_procedure_went_beyond_its_rule():
    with Ledger.in_memory(FixedPlan(PLAN.event * 2, Budget(2.0, 1e-6))) as ledger:
        ledger.run(PLAN.event, PLAN.digest(), name="first").reserve(PLAN.steps)
        certificate = Certificate.of(ledger, PLAN)
        certificate.verify(ledger)
        ledger.run(PLAN.event, PLAN.digest(), name="second").reserve(1)
        with pytest.raises(CertificateRejected, match="more than the rule"):
            certificate.verify(ledger)


def test_what_is_not_covered_cannot_be_hidden(certificate):
    with pytest.raises(CertificateRejected, match="hides"):
        replace(certificate, not_covered=certificate.not_covered[1:]).verify()
    assert replace(certificate, not_covered=(*certificate.not_covered, "the moon")).verify()


def test_a_rule_that_exceeds_its_own_budget_is_rejected(certificate):
    rule = replace(certificate.ledger.rule, budget=Budget(0.5, 1e-6))
    with pytest.raises(CertificateRejected, match="exceeds its Budget"):
        replace(certificate, ledger=replace(certificate.ledger, rule=rule)).verify()


def test_a_ledger_too_short_for_what_it_says_is_rejected(certificate):
    anchor = replace(certificate.ledger.anchor, sequence=1)
    with pytest.raises(CertificateRejected, match="cannot say so much"):
        replace(certificate, ledger=replace(certificate.ledger, anchor=anchor)).verify()


@pytest.mark.parametrize("ledger", [123, "study.ledger", {}, [1, 2], b"x"])
def test_what_is_no_ledger_is_refused(certificate, ledger):
    with pytest.raises(CertificateRejected, match="must be a Ledger, or its entries"):
        certificate.verify(ledger)


def test_what_is_returned_is_what_was_computed(certificate):
    generous = replace(
        certificate, guarantee=replace(certificate.guarantee, epsilon=Bounds(0.0, 1e9), delta=0.5)
    )
    found = generous.verify()
    assert found.guarantee == PLAN.guarantee
    assert "claims less than it could: (1e+09, 0.5)" in str(found)


def test_hardened_noise_is_charged_to_delta():
    event, steps = Gaussian(30.0), 3
    grid = grid_for(event, clip_norm=1.0, most_records=10**6)
    distance = steps * distance_to_continuous(event, 1.0, grid, dimension=1000)
    ledger, procedure = adaptive(noises=(30.0,), spare=0.0)
    with ledger:
        certificate = Certificate.of(ledger, procedure, arithmetic=Arithmetic("hardened", distance))
        coarse = Certificate.of(ledger, procedure, arithmetic=Arithmetic("hardened", 1e-9))
    assert 1e-6 < certificate.guarantee.delta < 1e-6 + 1e-18
    assert coarse.guarantee.delta == pytest.approx(1e-6 + 1e-9 * (1 + math.e), rel=1e-12)
    assert "bits that were released" in str(certificate.verify())
    with pytest.raises(CertificateRejected, match="delta=1e-06, and what follows is 1"):
        replace(certificate, guarantee=replace(certificate.guarantee, delta=1e-6)).verify()


def test_all_runs_together_are_as_far_from_continuous_noise_as_each_of_them():
    """What another run's noise in integers adds to delta was missing in the promise for all runs together.

    The ledger holds nothing back for it, as those of versions before 0.2.
    """

    def promised(*distances, noted=True):
        ledger = Ledger.in_memory(GaussianFilter(Budget(1.0, 1e-6), spare=0.0))
        for number, distance in enumerate(distances):
            plan = Plan.adaptive(
                "fit", GaussianFilter(Budget(0.5, 1e-6), spare=0.0), {"run": f"fit-{number}"}
            )
            known = distance if noted or number + 1 < len(distances) else 0.0  # as by an older version
            Till.open(ledger, plan).pay(Gaussian(30.0), name=f"fit-{number}", distance=known)
        own = distances[-1]
        with ledger:
            arithmetic = Arithmetic("hardened", own) if own else Arithmetic()
            certificate = Certificate.of(ledger, plan, arithmetic=arithmetic)
            assert certificate.verify(ledger).outcome == "accepted"
            assert not noted or ledger.guarantee() == certificate.together
        assert Certificate.from_json(certificate.to_json()) == certificate
        return certificate

    several = promised(1e-9, 3e-9, 2e-9)
    price = 1 + math.exp(several.together.epsilon.upper)
    assert several.together.delta == pytest.approx(1e-6 + 6e-9 * price, rel=1e-12)
    assert several.guarantee.delta < 1e-6 + 2e-9 * price
    assert promised(1e-9, 0.0).together.delta > 1e-6  # also for one who computes in floating point
    assert promised(1e-9, 2e-9, noted=False).together.delta == pytest.approx(1e-6 + 3e-9 * price, rel=1e-4)
    own_only = replace(several.together, delta=1e-6 + 2e-9 * price)
    with pytest.raises(CertificateRejected):
        replace(several, together=own_only).verify()


def test_a_distance_that_the_ledger_has_noted_cannot_be_hidden():
    """Called floating point, a run of whole numbers would promise a smaller delta than its own ledger says."""
    plan = Plan.adaptive("fit", GaussianFilter(BUDGET, spare=0.0), {})
    with Ledger.in_memory(GaussianFilter(BUDGET, spare=0.0)) as ledger:
        Till.open(ledger, plan).pay(Gaussian(30.0), distance=1e-9)
        honest = Certificate.of(ledger, plan, arithmetic=Arithmetic("hardened", 1e-9))
        assert honest.verify(ledger).outcome == "accepted"
        hidden = replace(honest, arithmetic=Arithmetic(), guarantee=replace(honest.guarantee, delta=1e-6))
        altered = Certificate.from_json(hidden.to_json())
        with pytest.raises(CertificateRejected, match="delta=1e-06, and what follows is 1"):
            altered.verify(ledger)
        smaller = replace(hidden, arithmetic=Arithmetic("hardened", 1e-12))
        with pytest.raises(CertificateRejected):
            smaller.verify(ledger)


@pytest.mark.parametrize("distance", [math.nan, -1e-9, 1.0, "1e-9", True])
def test_a_distance_between_laws_is_a_number_below_one(distance):
    with (
        Ledger.in_memory(GaussianFilter(Budget(1.0, 1e-6))) as ledger,
        pytest.raises(InvalidParameter, match="distance"),
    ):
        ledger.run(Gaussian(30.0), "0" * 64, distance=distance)


def test_pure_guarantees_are_kept_by_discrete_noise():
    """Discrete Laplace noise of the event's scale has its epsilon exactly; Gaussian noise never has delta 0."""
    spoilt = Arithmetic("hardened", 1e-9)
    pure = account(Laplace(2.0) * 3).guarantee(0.0)
    assert pure.at_distance(spoilt.distance) == pure
    assert (
        account(Laplace(2.0) * 3).guarantee(1e-9).at_distance(spoilt.distance).delta > 1e-9
    )  # any other delta is charged
    steps = np.arange(-60, 61)
    law = np.exp(-np.abs(steps) / 4.0)  # scale 4 in steps; a record moves the sum by 2: event Laplace(2)
    assert np.abs(np.log(law[2:] / law[:-2])).max() * 3 <= pure.epsilon.upper * (1 + 1e-12)
    assert (
        account(Composition(((Laplace(2.0), 1), (Gaussian(50.0), 1)))).epsilon_bounds(0.0).upper == math.inf
    )


@pytest.mark.parametrize(
    ("kind", "distance"), [("hardened", 0.0), ("float", 1e-9), ("hardened", math.nan), ("x", 0)]
)
def test_arithmetic_that_means_nothing_is_refused(kind, distance):
    with pytest.raises(InvalidParameter, match=r"distance|kind"):
        Arithmetic(kind, distance)


def accepted(text):
    """The certificate if it is accepted, else None. Any other exception than ours is a failure."""
    try:
        certificate = Certificate.from_json(text)
        certificate.verify()
    except DiscreetError:
        return None
    return certificate


def test_damaged_texts_are_refused(certificate):
    """1000 texts with bytes flipped, cut off, doubled or moved: the digest covers everything that has a meaning."""
    source, text = random.Random(1), certificate.to_json()
    for _ in range(1000):
        raw = bytearray(text.encode())
        start, stop = sorted(source.sample(range(len(raw)), 2))
        kind = source.randrange(4)
        if kind == 0:
            raw[start] ^= 1 << source.randrange(8)
        elif kind == 1:
            del raw[start : min(stop, start + 40)]
        elif kind == 2:
            raw[start:start] = raw[start : min(stop, start + 40)]
        else:
            raw = raw[:start]
        damaged = raw.decode(errors="replace")
        with suppress(InvalidParameter):
            assert Certificate.from_json(damaged) == certificate  # white space only


def leaves(data, path=()):
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    yield path
    for key, value in items:
        yield from leaves(value, (*path, key))


def altered(data, source):
    """The data with one value changed, removed or added somewhere."""
    data = copy.deepcopy(data)
    path = source.choice([path for path in leaves(data) if path])
    parent = data
    for key in path[:-1]:
        parent = parent[key]
    old = parent[path[-1]]
    new = source.choice(
        [None, -1, 0, 1, 2**70, 0.5, 1e-300, 1e300, "", "x", "0" * 64, [], {}, True]
        + ([old * 2, old / 2, old + 1, -old] if isinstance(old, float | int) else [])
    )
    if source.random() < 0.1:
        del parent[path[-1]]
    else:
        parent[path[-1]] = new
    return data


def test_certificates_altered_by_someone_who_repairs_the_digest(certificate):
    """1000 single changes with the digest made good: what is still accepted claims no more than it can prove."""
    source, original = random.Random(2), json.loads(certificate.to_json())
    survivors = 0
    for _ in range(1000):
        data = altered(original, source)
        data.pop("digest", None)
        content = {key: value for key, value in data.items() if key != "signatures"}
        try:
            data["digest"] = digest(content)
        except ValueError:  # not JSON
            continue
        found = accepted(json.dumps(data))
        if found is not None:
            survivors += 1
            assert found.guarantee.epsilon.upper >= certificate.guarantee.epsilon.lower
            assert found.guarantee.delta >= certificate.guarantee.delta
            assert found.plan == certificate.plan
    assert survivors < 300


def test_the_same_certificate_whatever_the_data():
    """Two runs of one plan differ in the ledger's random name only."""
    texts = []
    for _ in range(2):
        with plan_ledger() as ledger:
            data = json.loads(Certificate.of(ledger, PLAN).to_json())
        del data["ledger"]["anchor"], data["digest"]
        texts.append(data)
    assert texts[0] == texts[1]


@pytest.mark.parametrize("delta", [0.0, 1e-9])
def test_pure_privacy(delta):
    event, budget = Laplace(scale=20.0) * 4, Budget(0.21, delta)
    with Ledger.in_memory(FixedPlan(event, budget)) as ledger:
        procedure = Plan.adaptive("counts", FixedPlan(event, budget))
        ledger.run(event, procedure.digest()).reserve(4)
        assert Certificate.of(ledger, procedure).verify().guarantee.epsilon.upper <= 0.2 * (1 + 1e-9)


def test_no_pickle_in_the_package():
    for file in (Path(second_opinion.__file__).parent).glob("*.py"):
        assert "pickle" not in file.read_text()


def test_the_three_outcomes(certificate, tmp_path):
    weights, key = tmp_path / "weights.bin", Ed25519PrivateKey.generate()
    weights.write_bytes(b"\x01\x02")
    bound = certificate.for_files(weights)
    assert json.loads(bound.to_json())["format"] == "discreet certificate 2"
    assert Certificate.from_json(bound.to_json()) == bound
    assert bound.verify(folder=tmp_path).outcome == "consistent"
    assert str(bound.verify()).startswith("consistent; nobody vouches for it\n")
    signed = bound.signed(key)
    trusted = public_key_of(key)
    assert (
        signed.verify(folder=tmp_path).outcome == "consistent"
    )  # anybody can sign: who is trusted must be said
    assert signed.verify(folder=tmp_path, signed_by=trusted).outcome == "accepted"
    with plan_ledger() as ledger:
        unknown = Certificate.of(ledger, PLAN).for_files(weights)
        assert unknown.verify(ledger, folder=tmp_path).claimed == ("it is for the files weights.bin",)
        mine = Certificate.of(ledger, PLAN).for_files(weights, ledger=ledger)
        assert mine == unknown
        assert mine.verify(ledger, folder=tmp_path).outcome == "accepted"
        assert str(mine.verify(ledger)).startswith("accepted\n")
    weights.write_bytes(b"\x01\x03")
    with pytest.raises(
        CertificateRejected, match=r"weights\.bin is not the file that the certificate is for"
    ):
        signed.verify(folder=tmp_path, signed_by=trusted)
    weights.unlink()
    with pytest.raises(CertificateRejected, match="missing"):
        signed.verify(folder=tmp_path, signed_by=trusted)


def test_a_signature_does_not_survive_other_files(certificate, tmp_path):
    (tmp_path / "a").write_bytes(b"a")
    (tmp_path / "b").write_bytes(b"b")
    signed = certificate.for_files(tmp_path / "a").signed(Ed25519PrivateKey.generate())
    assert signed.for_files(tmp_path / "b").signatures == ()
    for files in (certificate.for_files(tmp_path / "b").files, ()):
        with pytest.raises(CertificateRejected, match="is not of this certificate"):
            replace(signed, files=files).verify()


def test_a_certificate_without_files_vouches_for_none(certificate, tmp_path):
    key = Ed25519PrivateKey.generate()
    signed = certificate.signed(key)
    assert json.loads(signed.to_json())["format"] == "discreet certificate 1"  # as 0.1.0 wrote and reads it
    assert signed.verify(signed_by=public_key_of(key)).outcome == "accepted"
    found = signed.verify(signed_by=public_key_of(key), folder=tmp_path)
    assert (found.outcome, "it holds no digest of any file" in str(found)) == ("consistent", True)


@pytest.mark.parametrize("name", ["../weights", "/etc/passwd", "a/b", "", ".hidden", "x" * 101])
def test_files_are_named_plainly(certificate, name):
    data = json.loads(certificate.to_json()) | {"format": "discreet certificate 2", "files": {name: "a" * 64}}
    with pytest.raises(InvalidParameter):
        Certificate.from_json(json.dumps(data))
