"""What the studio answers is what the library says, and what it exports makes the same plan."""

import shlex

import pytest
from click.testing import CliRunner

import discreet as dp
from discreet.cli import main
from discreet.plan.prices import price_of_clip
from discreet.studio.planning import Wish, curves, export_plan, price_plan

WISH = Wish(records=60_000, batch_size=600, epochs=10, delta=1e-6, noise_multiplier=1.2)
WISHES = [
    WISH,
    Wish(60_000, 600, 10, 1e-6, fixed="epsilon", epsilon=2.0),
    Wish(5_000, 50, 3.0, 1e-5, sampling="random-allocation", noise_multiplier=2.0),
    Wish(5_000, 50, 2.5, 1e-5, sampling="fixed-size", neighbours="replace-one", fixed="epsilon"),
    Wish(5_000, 50, 4.0, 1e-5, sampling="full-batch", clip_norm=0.3),
]


def test_the_price_is_that_of_the_accountant():
    answer = price_plan(WISH)
    bounds = dp.account(dp.PoissonSampled(0.01, dp.Gaussian(1.2)) * 1000).epsilon_bounds(1e-6)
    assert answer["epsilon"] == {"lower": bounds.lower, "upper": bounds.upper}
    assert answer["steps"] == 1000
    assert answer["noise_per_coordinate"] == pytest.approx(1.2 / 600)


@pytest.mark.parametrize("wish", WISHES, ids=lambda wish: wish.sampling)
def test_exports_make_the_same_plan(wish, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    texts = export_plan(wish)
    names = {}
    exec(texts["python"], names)
    assert names["plan"] == dp.Plan.load("plan.json") == dp.Plan.from_json(texts["plan"]) == wish.plan()
    words = shlex.split(texts["command"])
    assert words[0] == "discreet"
    result = CliRunner().invoke(main, [*words[1:], "--overwrite"])
    assert result.exit_code == 0, result.output
    assert dp.Plan.load("plan.json") == wish.plan()


def test_curves_pass_through_the_plan():
    answer, epsilon = curves(WISH), price_plan(WISH)["epsilon"]["upper"]
    steps, epsilons = answer["steps"]["steps"], answer["steps"]["epsilon"]
    assert steps[0] < 1000 < steps[-1] == 2000
    assert epsilons == sorted(epsilons)
    assert epsilons[0] < epsilon < epsilons[-1]
    frontier = answer["frontier"]
    assert frontier["epsilon"] == sorted(frontier["epsilon"])
    assert frontier["noise"] == sorted(frontier["noise"], reverse=True)
    at = frontier["noise"].index(1.2)
    assert frontier["epsilon"][at] == epsilon
    assert answer["hits"] == WISH.plan().curve.power(0.01)


def test_the_best_clip_is_at_the_bottom():
    answer = curves(WISH)["clip"]
    budget = dp.Budget(price_plan(WISH)["epsilon"]["upper"], 1e-6)
    around = price_of_clip(60_000, 1000, 1.0, budget, [answer["best"] * f for f in (0.9, 1.0, 1.1)])
    assert around[1].total < min(around[0].total, around[2].total)
    assert min(answer["error"]) == answer["error"][answer["clip"].index(answer["best"])]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("records", float("nan")),
        ("batch_size", 0),
        ("delta", 2),
        ("noise_multiplier", "1"),
        ("noise_multiplier", -1),
        ("epochs", float("inf")),
        ("sampling", "shuffle"),
        ("neighbours", "all"),
        ("fixed", "luck"),
        ("dimension", 0.5),
    ],
)
def test_bad_wishes_are_refused_by_name(name, value):
    data = {"records": 60_000, "batch_size": 600, "epochs": 10, "delta": 1e-6} | {name: value}
    with pytest.raises(dp.InvalidParameter, match=name):
        price_plan(Wish.from_dict(data))


@pytest.mark.parametrize("data", [None, [], {"records": 1}, {"recrods": 1}])
def test_what_is_no_wish_is_refused(data):
    with pytest.raises(dp.InvalidParameter, match="wish"):
        Wish.from_dict(data)
