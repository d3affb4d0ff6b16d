"""The study file: one meaning, one digest, and no word that is ignored."""

import math
from dataclasses import replace

import pytest

from discreet.errors import InvalidParameter
from discreet.events import Gaussian
from discreet.parties import Study, observers, rehearse
from discreet.parties.observation.observers import price_of_dropouts
from discreet.parties.optimizers import suggested_rate, suggested_rounds
from discreet.parties.party_plan import PartyPlan
from discreet.parties.study import Aggregation, Privacy
from support.parties_bank import SIZES, holders, study

TEXT = """
[study]
name = "readmission-2026"
algorithm = "sgd2"
[parties]
hospital-a = 1200
hospital-b = 800
[privacy]
epsilon = 1.0
delta = 1e-6
[training]
rounds = 200
clip_norm = 1.0
[model]
kind = "logistic"
dimension = 20
columns = ["age", "sex"]
"""


def test_the_digest_is_the_same_everywhere():
    plan = Study.from_toml(TEXT)
    assert plan.digest() == "d15ca718162279a89cd37c76b3932f77de3a8d5f6207c25d78bd9efc76d2abcb"
    swapped = TEXT.replace("hospital-a = 1200\nhospital-b = 800", "hospital-b = 800\nhospital-a = 1200")
    assert Study.from_toml(swapped + "\n# a comment").digest() == plan.digest()
    assert Study.from_dict(plan.to_dict()) == plan


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("epsilon = 1.0", "epsilon = 1.1"),
        ("rounds = 200", "rounds = 201"),
        ("clip_norm = 1.0", "clip_norm = 1.5"),
        ("= 1200", "= 1201"),
        ('"age"', '"Age"'),
        ("delta = 1e-6", 'delta = 1e-6\nnoise = "notes"'),
    ],
)
def test_every_word_counts(before, after):
    assert Study.from_toml(TEXT.replace(before, after)).digest() != Study.from_toml(TEXT).digest()


def test_load(tmp_path):
    path = tmp_path / "study.toml"
    path.write_text(TEXT)
    assert Study.load(path) == Study.from_toml(TEXT)


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        ("epsilon = 1.0", "epsilon = nan", "epsilon"),
        ("epsilon = 1.0", "epsilon = -1", "epsilon"),
        ("epsilon = 1.0", "epsilom = 1.0", "epsilom"),
        ("delta = 1e-6", "delta = 0", "delta"),
        ("delta = 1e-6", "delta = 0.01", "delta"),
        ("delta = 1e-6", 'delta = 1e-6\nagainst = "nobody"', "against"),
        ("clip_norm = 1.0", "clip_norm = inf", "clip_norm"),
        ("clip_norm = 1.0", "clip_norm = true", "clip_norm"),
        ("clip_norm = 1.0", "", "clip_norm"),
        ("rounds = 200", "rounds = 2.5", "rounds"),
        ("rounds = 200", "", "rounds"),
        ("rounds = 200", "rounds = 200\ntokens = 7", "tokens"),
        ("rounds = 200", "rounds = 200\nrate = 0.5", "neighbours"),
        ("rounds = 200", "rounds = 200\noptimizer = 'lion'", "optimizer"),
        ("rounds = 200", "rounds = 200\nradius = nan", "radius"),
        ("rounds = 200", "rounds = 200\nsteps = 'notes-convex'", "radius"),
        ("rounds = 200", "rounds = 200\nsteps = 'notes-strongly-convex'", "strong_convexity"),
        ("hospital-a = 1200", "hospital-a = 0", "hospital-a"),
        ("hospital-a = 1200", "coordinator = 1200", "coordinator"),
        ("hospital-a = 1200", '"a b" = 1200', "a b"),
        ('algorithm = "sgd2"', 'algorithm = "sgd3"', "algorithm"),
        ('algorithm = "sgd2"', 'algorithm = "sgd2"\nmood = "good"', "mood"),
        ("dimension = 20", "", "dimension"),
        ('kind = "logistic"', "", "kind"),
        ("[model]", "[extra]\nx = 1\n[model]", "extra"),
        ("[privacy]", "[privicy]", "privacy"),
        ("[model]", "[network]\ncoordinator = 'here'\n[model]", "coordinator"),
        ("[study]", "[study", "TOML"),
    ],
)
def test_what_has_no_meaning_is_refused_by_name(before, after, named):
    assert before in TEXT
    with pytest.raises(InvalidParameter, match=named):
        Study.from_toml(TEXT.replace(before, after))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"algorithm": "sgd1", "rate": 0.5}, "rate"),
        ({"algorithm": "sgd1", "rounds": 3}, "rounds"),
        ({"algorithm": "sgd1", "privacy": Privacy(1.0, 1e-3, "add-remove")}, "neighbours"),
        ({"algorithm": "sgd1", "aggregation": Aggregation("secure")}, "aggregation"),
        ({"aggregation": Aggregation("secure", dropouts=2)}, "dropouts"),
        ({"aggregation": Aggregation("plain", dropouts=3)}, "dropouts"),
        ({"sizes": SIZES | {"ann": 10**12 + 1}, "privacy": (1.0, 1e-15)}, "ann"),
        (
            {"algorithm": "sgd1", "tokens": None, "sizes": {"ann": 2 * 10**6}, "privacy": (1.0, 1e-9)},
            "rounds",
        ),
        ({"aggregation": Aggregation("secure"), "weights": "equal"}, "weights"),
    ],
)
def test_combinations_without_a_theorem_are_refused(changes, named):
    with pytest.raises(InvalidParameter, match=named):
        study(**changes)


@pytest.mark.parametrize("against", ["coordinator", "another party", "broadcasts"])
def test_the_noise_keeps_the_budget_of_the_observer_that_is_named(against):
    plan = study(privacy=Privacy(1.0, 1e-3, against=against))
    assert observers(plan)[against].guarantee.within(plan.budget)
    tenth_less = plan.arrangement.with_noise(0.9 * plan.noise_multiplier)
    assert not observers(tenth_less, 1e-3)[against].guarantee.within(plan.budget)


def test_the_terms_of_a_party_are_for_its_strongest_observer():
    weak = study(privacy=Privacy(1.0, 1e-3, against="broadcasts"), aggregation=Aggregation(dropouts=0))
    assert PartyPlan(weak, "ann").budget.epsilon > 1.5
    plan = study()
    assert PartyPlan(plan, "ann").event == Gaussian(plan.noise_multiplier) * 20
    assert math.isclose(PartyPlan(plan, "ann").budget.epsilon, 1.0, rel_tol=1e-4)
    with pytest.raises(InvalidParameter, match="party"):
        PartyPlan(plan, "dan")


def test_the_noise_of_the_notes_is_available():
    plan = study(privacy=Privacy(0.9, 1e-7, noise="notes"))
    assert plan.noise_multiplier > study(privacy=(0.9, 1e-7)).noise_multiplier


def test_updates_default_to_the_square_of_the_records():
    plan = study("sgd1", tokens=None)
    assert plan.updates == sum(SIZES.values()) ** 2
    assert replace(plan, algorithm="sgd1").records == 100


def test_secure_sums_that_a_lying_coordinator_could_open_are_refused():
    """With four parties and two dropouts it asks each pair of them for other shares, and opens one party's sum."""
    four, seven = ({f"party-{k}": 20 for k in range(count)} for count in (4, 7))
    with pytest.raises(
        InvalidParameter, match=r"lying coordinator.*fewer dropouts.*more parties, at least 7"
    ):
        study(sizes=four, aggregation=Aggregation("secure", dropouts=2))
    with pytest.raises(InvalidParameter, match="at least 8"):
        study(sizes=seven, aggregation=Aggregation("secure", dropouts=2, colluders=1))
    for sizes, dropouts in ((four, 1), (seven, 2)):
        made = study(sizes=sizes, aggregation=Aggregation("secure", dropouts=dropouts))
        assert made.arrangement.withstands_lies
        assert "follows the protocol" not in str(observers(made))
    weak = replace(made.arrangement, dropouts=5)  # an arrangement that no study may have says so
    assert "only if it follows the protocol" in str(observers(weak, 1e-3))


def test_unless_given_anybody_may_be_missing_from_plain_sums_and_nobody_from_secure_ones():
    assert (study().dropouts, study("sgd1").dropouts) == (2, 2)
    assert study(aggregation=Aggregation("secure")).dropouts == 0
    assert study(aggregation=Aggregation(dropouts=0)).dropouts == 0
    assert study().to_dict()["aggregation"] == {
        "kind": "plain",
        "dropouts": 2,
        "colluders": 0,
        "robust": "none",
    }
    assert str(observers(study())).endswith("while at most 2 of 3 parties are missing")


def test_the_certified_delta_of_a_secure_study_is_the_one_of_its_budget():
    plan = study(privacy=(1.0, 1e-6), aggregation=Aggregation("secure", dropouts=1))
    certificate = rehearse(plan, holders()).certificates["ann"]
    assert certificate.guarantee.within(plan.budget)
    assert 0.9998e-6 < certificate.guarantee.delta <= 1e-6  # a part is held back for noise in integers
    assert any("more than 0 of the other parties" in text for text in certificate.not_covered)


def test_a_study_of_format_1_is_refused_with_a_sentence():
    """Its messages were floats, and its digest is another one: kits and ledgers of it belong to no study of today."""
    with pytest.raises(InvalidParameter, match=r"floating-point sums.*Agree on it anew"):
        Study.from_toml('format = "discreet study 1"\n' + TEXT)
    plan = Study.from_toml('format = "discreet study 2"\n' + TEXT)
    assert plan == Study.from_toml(TEXT)
    assert plan.privacy.arithmetic == "hardened"
    assert plan.to_dict()["format"] == "discreet study 2"


def test_float_arithmetic_is_a_word_of_its_own():
    plan = Study.from_toml(TEXT.replace("delta = 1e-6", 'delta = 1e-6\narithmetic = "float"'))
    assert plan.accounted_delta == plan.privacy.delta
    assert plan.digest() != Study.from_toml(TEXT).digest()
    with pytest.raises(InvalidParameter, match="arithmetic"):
        Study.from_toml(TEXT.replace("delta = 1e-6", 'delta = 1e-6\narithmetic = "double"'))
    with pytest.raises(InvalidParameter, match="arithmetic"):
        study(privacy=Privacy(1.0, 1e-3, arithmetic="float"), aggregation=Aggregation("secure"))


def test_rows_that_count_on_unequal_weights_say_that_they_are_for_real_numbers():
    table = observers(study(weights="equal"))
    assert "real numbers" in table["final model"].note
    assert "real numbers" not in table["coordinator"].note
    assert "real numbers" not in observers(study())["final model"].note


def test_the_distance_of_discrete_noise_fits_into_what_is_spared():
    for plan in (study(privacy=(1.0, 1e-6)), study("sgd1", privacy=(1.0, 1e-6))):
        charge = (1 + math.e) * plan.arithmetic.distance
        assert 0 < charge < plan.privacy.delta - plan.accounted_delta
        assert PartyPlan(plan, "ann").arithmetic.distance <= plan.arithmetic.distance


def test_the_suggested_rate_follows_the_noise():
    def rate(sizes=(2000, 1500), **changes):
        return suggested_rate(
            study(sizes=dict(zip("ab", sizes, strict=True)), privacy=(1.0, 1e-6), **changes), 8.0
        )

    assert rate(rounds=100) == pytest.approx(0.6 / (84 * 2**0.5 * 10 / 3500), rel=0.05)
    assert rate(rounds=400) == pytest.approx(rate(rounds=100) / 4, rel=0.05)
    assert rate(sizes=(200_000, 150_000), rounds=100) == 8.0
    assert rate(clip_norm=2.0, rounds=100) == pytest.approx(rate(rounds=100) / 2, rel=0.05)


def test_the_suggested_rounds_leave_the_rate_at_half_of_what_the_loss_allows():
    def plan(rounds, sizes=(12_000, 12_000)):
        return study(sizes=dict(zip("ab", sizes, strict=True)), privacy=(1.0, 1e-6), rounds=rounds)

    found = suggested_rounds(plan(100), 8.0)
    assert found == pytest.approx(suggested_rounds(plan(400), 8.0), rel=0.05)  # whatever was there before
    assert suggested_rate(plan(found), 8.0) == pytest.approx(4.0, rel=0.1)
    assert suggested_rounds(plan(100, (50, 50)), 8.0) == 30
    assert suggested_rounds(plan(100, (900_000, 900_000)), 8.0) == 1000


@pytest.mark.parametrize(("kind", "parties"), [("plain", 3), ("secure", 5)])
def test_dropouts_have_a_price(kind, parties):
    sizes = {f"hospital-{letter}": 100 for letter in "abcdefgh"[:parties]}
    plan = replace(Study.from_toml(TEXT), parties=sizes, aggregation=Aggregation(kind, dropouts=0))
    prices = price_of_dropouts(plan)
    assert list(prices) == (list(range(parties)) if kind == "plain" else [0, 1])
    exact = observers(replace(plan, aggregation=Aggregation(kind, dropouts=1)))["final model"]
    assert prices[1]["epsilon"] == exact.guarantee.epsilon.upper
    costs = list(prices.values())
    if kind == "plain":  # everybody adds the same noise, and fewer of them count
        assert costs[0]["noise"] == costs[1]["noise"]
        assert costs[0]["epsilon"] < costs[1]["epsilon"] < costs[2]["epsilon"]
    else:  # each share is larger
        assert costs[1]["noise"] == pytest.approx(costs[0]["noise"] * math.sqrt(5 / 4), rel=1e-3)
