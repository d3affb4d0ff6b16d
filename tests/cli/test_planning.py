"""account, calibrate, explore, plan: the library's numbers, in the library's words."""

import json

import pytest
from click.testing import CliRunner

import discreet as dp
from discreet.cli import main
from discreet.ledger import Ledger, TruncatedRenyiFilter
from discreet.plan.explore import explore
from discreet.plan.prices import price_of_steps

STEP = ["--noise-multiplier", "4", "--rate", "0.01", "--steps", "10000"]


def answer(*words: object) -> dict:
    result = CliRunner().invoke(main, [*map(str, words), "--json"])
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def refused(*words: object) -> str:
    result = CliRunner().invoke(main, list(map(str, words)))
    assert result.exit_code == 2, result.output
    assert result.stderr.count("\n") == 1
    return result.stderr


EVENTS = {
    "gaussian": (["--noise-multiplier", "2"], dp.Gaussian(2.0), "add-remove"),
    "laplace": (["--laplace-scale", "3", "--steps", "4"], dp.Laplace(3.0) * 4, "add-remove"),
    "poisson": (
        ["--noise-multiplier", "1", "--rate", "0.1", "--steps", "1e1"],
        dp.PoissonSampled(0.1, dp.Gaussian(1.0)) * 10,
        "replace-one",
    ),
    "fixed": (
        ["--noise-multiplier", "1", "--fixed-size", "5/100", "--steps", "7"],
        dp.FixedSizeSampled(5, 100, dp.Gaussian(1.0)) * 7,
        "replace-one",
    ),
    "allocation": (
        ["--noise-multiplier", "2", "--allocation", "5", "--steps", "10"],
        dp.RandomlyAllocated(5, dp.Gaussian(2.0)) * 2,
        "add-remove",
    ),
}


@pytest.mark.parametrize("kind", EVENTS)
def test_account_is_the_librarys(kind):
    words, event, neighbours = EVENTS[kind]
    found = answer("account", *words, "--neighbours", neighbours, "--delta", "1e-5", "--epsilon", "0.5")
    curve = dp.account(event, neighbours)
    assert dp.Event.from_dict(found["event"]).parts() == event.parts()
    lower, upper = curve.epsilon_bounds(1e-5)
    assert found["epsilon"] == [{"delta": 1e-5, "lower": lower, "upper": upper}]
    lower, upper = curve.delta_bounds(0.5)
    assert found["delta"] == [{"epsilon": 0.5, "lower": lower, "upper": upper}]
    assert found["power"] == {"false_alarms": 0.01, "upper": curve.power(0.01)}


def test_account_in_words_rounds_to_the_safe_side():
    result = CliRunner().invoke(main, ["account", *STEP, "--delta", "1e-5", "--delta", "1e-6"])
    curve = dp.account(dp.PoissonSampled(0.01, dp.Gaussian(4.0)) * 10_000)
    rows = [line.split() for line in result.stdout.splitlines() if line.startswith("1e-")]
    assert [float(row[0]) for row in rows] == [1e-5, 1e-6]
    for delta, upper, lower in rows:
        exact = curve.epsilon_bounds(float(delta))
        assert float(upper) >= exact.upper
        assert float(lower) <= exact.lower


def test_account_reads_events_and_plans(tmp_path):
    file = tmp_path / "e.json"
    file.write_text((dp.Gaussian(2.0) * 3).to_json())
    expected = dp.account(dp.Gaussian(2.0) * 3).epsilon(1e-5)
    assert answer("account", "--event", file, "--delta", "1e-5")["epsilon"][0]["upper"] == expected
    plan = dp.Recipe(records=1000, batch_size=100, steps=10).with_noise(2.0, delta=1e-6)
    plan.save(file)
    found = answer("account", "--event", file, "--delta", "1e-6")["epsilon"][0]["upper"]
    assert found == plan.guarantee.epsilon.upper
    assert "leave out --rate" in refused("account", "--event", file, "--rate", "1", "--delta", "1e-6")


def test_account_reads_what_other_libraries_wrote(tmp_path):
    file = tmp_path / "history.json"
    file.write_text('{"history": [[4.0, 0.01, 10000]], "mechanism": "prv"}')
    found = answer("account", "--from", "opacus", file, "--delta", "1e-5")
    assert found["epsilon"][0]["upper"] == dp.account(
        dp.PoissonSampled(0.01, dp.Gaussian(4.0)) * 10_000
    ).epsilon(1e-5)
    assert found["epsilon"][0]["upper"] < found["renyi"][0]["epsilon"]
    file.write_text("LaplaceDpEvent(noise_multiplier=3.0)")
    assert answer("account", "--from", "dp-accounting", file, "--epsilon", "0.1")["delta"][0]["upper"] > 0
    assert "--from" in refused("account", "--from", "opacus", file, "--delta", "1e-5")
    assert "leave out --steps" in refused(
        "account", "--from", "opacus", file, "--steps", "2", "--delta", "1e-5"
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--delta", "1e-5"], "--noise-multiplier: is needed"),
        (["--noise-multiplier", "1"], "--delta: is needed"),
        (["--noise-multiplier", "nan", "--delta", "1e-5"], "--noise-multiplier=nan: must be"),
        (["--noise-multiplier", "-1", "--delta", "1e-5"], "--noise-multiplier=-1: must be"),
        (["--laplace-scale", "inf", "--delta", "1e-5"], "--laplace-scale=inf: must be"),
        (["--noise-multiplier", "1", "--laplace-scale", "1", "--delta", "1e-5"], "only one of"),
        (["--noise-multiplier", "1", "--rate", "2", "--delta", "1e-5"], "--rate=2: must be"),
        (["--noise-multiplier", "1", "--rate", ".1", "--allocation", "3", "--delta", "1e-5"], "only one of"),
        (
            ["--noise-multiplier", "1", "--fixed-size", "5", "--delta", "1e-5"],
            "--fixed-size=5: must be batch",
        ),
        (["--noise-multiplier", "1", "--fixed-size", "5/4", "--delta", "1e-5"], "--fixed-size=5: must be"),
        (["--noise-multiplier", "1", "--fixed-size", "1/4", "--delta", "1e-5"], "--neighbours='replace-one'"),
        (["--noise-multiplier", "1", "--steps", "2.5", "--delta", "1e-5"], "--steps=2.5: must be"),
        (["--noise-multiplier", "1", "--steps", "0", "--delta", "1e-5"], "--steps=0: must be"),
        (
            ["--noise-multiplier", "1", "--allocation", "4", "--steps", "6", "--delta", "1e-5"],
            "--steps=6: random",
        ),
        (["--noise-multiplier", "1", "--delta", "1e-5", "--delta", "7"], "--delta=7: must be"),
        (["--noise-multiplier", "1", "--delta", "nan"], "--delta=nan: must be"),
        (["--noise-multiplier", "1", "--epsilon", "-1"], "--epsilon=-1: must be"),
        (["--noise-multiplier", "1", "--delta", "1e-5", "--group-size", "0"], "--group-size=0: must be"),
        (["--noise-multiplier", "1", "--delta", "1e-5", "--tolerance", "2"], "--tolerance=2: must be"),
        (["--noise-multiplier", "1", "--delta", "1e-5", "--neighbours", "both"], "'--neighbours'"),
    ],
)
def test_account_refuses_by_the_name_as_typed(words, says):
    assert says in refused("account", *words)


def test_account_of_a_file_that_is_none(tmp_path):
    result = CliRunner().invoke(main, ["account", "--event", str(tmp_path / "none"), "--delta", "1e-5"])
    assert (result.exit_code, "No such file" in result.stderr) == (1, True)
    garbage = tmp_path / "garbage"
    garbage.write_bytes(bytes(range(256)) * 9)
    assert f"--event={garbage}"[:60] in refused("account", "--event", garbage, "--delta", "1e-5")


@pytest.mark.parametrize(
    ("words", "parameter", "family", "better"),
    [
        (["--rate", ".01", "--steps", "1000"], "noise_multiplier", EVENTS, 0.999),
        (["--find", "laplace-scale"], "laplace_scale", EVENTS, 0.999),
        (["--find", "steps", "--noise-multiplier", "20"], "steps", EVENTS, None),
        (["--find", "rate", "--noise-multiplier", "1", "--steps", "50"], "rate", EVENTS, 1.002),
    ],
)
def test_calibrated_values_are_within_the_budget_and_no_better_ones_are(words, parameter, family, better):
    budget = dp.Budget(1.0, 1e-5)
    found = answer("calibrate", "--epsilon", "1", "--delta", "1e-5", *words)
    event = dp.Event.from_dict(found["event"])
    assert dp.account(event).guarantee(1e-5).within(budget)
    assert found["epsilon"]["upper"] == dp.account(event).epsilon(1e-5)
    value = found[parameter]
    option = "--" + parameter.replace("_", "-")
    given = [word for word in words if word not in ("--find", option[2:])]
    beyond = value + 1 if better is None else value * better
    dearer = answer("account", *given, option, repr(beyond), "--delta", "1e-5")
    assert dearer["epsilon"][0]["upper"] > 1.0


def test_the_noise_in_words_still_is_within_the_budget():
    result = CliRunner().invoke(main, ["calibrate", "--epsilon", "1", "--delta", "1e-5"])
    noise = float(result.stdout.split()[1])
    assert dp.account(dp.Gaussian(noise)).epsilon(1e-5) <= 1.0


def test_calibrate_refuses():
    budget = ["calibrate", "--epsilon", "1", "--delta", "1e-5"]
    assert "--noise-multiplier=3: is what --find looks for" in refused(*budget, "--noise-multiplier", 3)
    assert "--epsilon=nan" in refused("calibrate", "--epsilon", "nan", "--delta", "1e-5")
    assert "'--delta'" in refused("calibrate", "--epsilon", "1")
    assert "--noise-multiplier: is needed" in refused(*budget, "--find", "steps")


GRID = [
    "explore",
    "--records",
    "6000",
    "--batch-size",
    "64,256",
    "--epochs",
    "2,4",
    "--epsilon",
    "2",
    "--delta",
    "1e-5",
]


def test_explore_is_the_librarys():
    found = answer(*GRID, "--dimension", 10)
    recipe = dp.Recipe(records=6000, batch_size=64, epochs=2)
    table = explore(recipe, dp.Budget(2.0, 1e-5), dimension=10, batch_size=[64, 256], epochs=[2, 4])
    assert found == {"rows": [row.values() for row in table.rows], "refused": []}
    assert CliRunner().invoke(main, [*GRID, "--dimension", "10"]).stdout == f"{table}\n"


def test_the_best_row_and_the_frontier(tmp_path):
    rows = answer(*GRID)["rows"]
    plan = tmp_path / "best.json"
    best = answer(*GRID, "--best", "steps", "--out", plan)["rows"]
    assert best == [min(rows, key=lambda row: row["steps"])]
    assert dp.Plan.load(plan).steps == best[0]["steps"]
    frontier = answer(*GRID, "--frontier", "steps,noise_multiplier")["rows"]
    for row in rows:
        beaten = any(
            other["steps"] <= row["steps"]
            and other["noise_multiplier"] <= row["noise_multiplier"]
            and other is not row
            for other in rows
        )
        assert (row in frontier) != beaten
    assert "--frontier=cost: must be one of" in refused(*GRID, "--frontier", "cost")
    assert "exists" in refused(*GRID, "--out", plan)


def test_prices_and_records_needed():
    words = ["explore", "--records", "1000", "--steps", "1,100", "--epsilon", "1", "--delta", "1e-5"]
    found = answer(*words, "--price-of-steps")["prices"]
    expected = price_of_steps(1000, dp.Budget(1.0, 1e-5), [1, 100])
    assert found == [price._asdict() for price in expected]
    count = answer(*words[:3], *words[3:], "--batch-size", "100", "--noise-per-coordinate", "0.01")
    assert count["records_needed"] > 1000
    assert "--batch-size: is needed" in refused(*words)
    assert "--records=nan" in refused("explore", "--records", "nan", *words[3:], "--batch-size", "10")


PLAN = ["plan", "--records", "60000", "--batch-size", "256", "--epochs", "2", "--delta", "1e-6"]


def test_plan_writes_what_the_library_plans(tmp_path):
    out = tmp_path / "plan.json"
    found = answer(*PLAN, "--epsilon", "2", "--out", out)
    plan = dp.Recipe(records=60_000, batch_size=256, epochs=2).calibrate(dp.Budget(2.0, 1e-6))
    assert dp.Plan.load(out) == plan
    assert found["digest"] == plan.digest()
    assert found["epsilon"]["upper"] == plan.guarantee.epsilon.upper <= 2.0
    assert "exists" in refused(*PLAN, "--epsilon", "2", "--out", out)
    result = CliRunner().invoke(
        main, [*PLAN, "--noise-multiplier", "2", "--out", str(out), "--overwrite", "--explain"]
    )
    assert dp.Plan.load(out).noise_multiplier == 2.0
    assert result.stdout.startswith(dp.Plan.load(out).explain())


def test_a_ledger_for_a_plan(tmp_path):
    out, place = tmp_path / "plan.json", tmp_path / "l.sqlite"
    answer(*PLAN, "--epsilon", "2", "--out", out)
    answer("ledger", "new", place, "--plan", out)
    with Ledger.open(place) as ledger:
        assert ledger.remaining(dp.Plan.load(out).event) == 1
    shown = answer("ledger", "show", place)
    assert (shown["spent"], shown["remaining"]) == (0.0, {"releases": dp.Plan.load(out).steps})


def test_a_ledger_for_releases_like_a_plans(tmp_path):
    out, place = tmp_path / "plan.json", tmp_path / "l.sqlite"
    answer(*PLAN, "--epsilon", "2", "--out", out)
    budget = ["--epsilon", "3", "--delta", "1e-5"]
    made = answer("ledger", "new", place, "--plan", out, "--rule", "truncated-renyi", *budget)
    charge = dp.Plan.load(out).stage().charge
    assert made["rule"] == TruncatedRenyiFilter.for_event(charge, dp.Budget(3.0, 1e-5)).to_dict()
    with Ledger.open(place) as ledger:
        room = ledger.remaining(charge)
        ledger.run(charge * room, charge.digest()).reserve(room // 2)
    shown = answer("ledger", "show", place)
    assert shown["remaining"]["share"] == pytest.approx(0.5, abs=0.01)
    listed = CliRunner().invoke(main, ["ledger", "show", str(place)]).stdout.split("\n\n")[1]
    assert listed.splitlines()[1].split() == ["run", f"{room // 2:,}", f"{room:,}", "50.0%"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "exactly one of --epsilon and --noise-multiplier"),
        (["--epsilon", "nan"], "--epsilon=nan"),
        (["--noise-multiplier", "nan"], "--noise-multiplier=nan"),
        (["--epsilon", "2", "--clip-norm", "nan"], "--clip-norm=nan"),
        (["--epsilon", "2", "--records", "2.5"], "--records=2.5"),
        (["--epsilon", "2", "--batch-size", "nan"], "--batch-size=nan"),
        (["--epsilon", "2", "--epochs", "nan"], "--epochs=nan"),
        (["--epsilon", "2", "--steps", "3"], "--epochs=2: give exactly one of"),
        (["--epsilon", "2", "--delta", "0.1"], "--delta=0.1: must be below 1 / records"),
        (["--epsilon", "2", "--sampling", "fixed-size"], "--neighbours='replace-one'"),
    ],
)
def test_plan_refuses(tmp_path, words, says):
    assert says in refused(*PLAN, "--out", tmp_path / "p.json", *words)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    for words in ([*PLAN, "--epsilon", "2"], GRID):
        result = CliRunner().invoke(main, [*words, "--out", str(file / "plan.json")])
        assert result.exit_code == 1
        assert result.stderr == f"error[file]: {file / 'plan.json'}: Not a directory.\n"
    folder = CliRunner().invoke(main, [*PLAN, "--epsilon", "2", "--out", str(tmp_path), "--overwrite"])
    assert (folder.exit_code, folder.stderr) == (1, f"error[file]: {tmp_path}: Is a directory.\n")
    assert list(tmp_path.iterdir()) == [file]


def test_account_shows_exact_costs_and_infinite_ones_as_such():
    shown = CliRunner().invoke(main, ["account", "--laplace-scale", "1", "--delta", "0"]).stdout
    assert shown.split("\n\n")[1].splitlines()[1].split() == ["0", "1", "1"]
    assert "At 1% false alarms the best attacker finds at most 2.719% of the records." in shown
    words = ["account", "--noise-multiplier", "1", "--delta", "0"]
    assert CliRunner().invoke(main, words).stdout.count("infinite") == 2
    found = answer(*words)["epsilon"][0]
    assert (found["lower"], found["upper"]) == ("infinite", "infinite")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["--epsilon", "1000"],
            "The search ends at --noise-multiplier 0.05; the budget would allow less noise.",
        ),
        (["--epsilon", "10", "--noise-multiplier", "9", "--find", "rate"], "all records in every batch"),
        (["--epsilon", "1"], None),
        (["--epsilon", "1", "--noise-multiplier", "5", "--find", "steps"], None),
    ],
)
def test_calibrate_says_where_its_search_ended(words, says):
    result = CliRunner().invoke(main, ["calibrate", "--delta", "1e-6", *words])
    assert ("The search ends" in result.stdout) == (says is not None)
    assert (says or "") in result.stdout
    assert answer("calibrate", "--delta", "1e-6", *words)["end_of_search"] == (says is not None)


def test_plan_notes_a_delta_near_one_over_records(tmp_path):
    words = ["plan", "--records", "1000", "--batch-size", "100", "--steps", "5", "--noise-multiplier", "2"]
    loud = CliRunner().invoke(main, [*words, "--delta", "2e-4", "--out", str(tmp_path / "a.json")])
    assert loud.stderr.startswith("note: delta 0.0002 is more than a tenth of 1 / records (1,000)")
    quiet = CliRunner().invoke(main, [*words, "--delta", "1e-4", "--out", str(tmp_path / "b.json")])
    assert (quiet.exit_code, quiet.stderr) == (0, "")


def test_a_declared_number_of_records_decides_about_delta():
    from discreet.cli.events import gaussian_budget

    assert gaussian_budget(1.0, 2e-3, records=40).delta == 2e-3
    for delta, records in (
        (2e-3, 60),
        (2e-3, None),
        (1e-3, None),
        (1e-4, 10_000),
        (0.0, None),
        (float("nan"), 5),
    ):
        with pytest.raises(dp.InvalidParameter, match="delta"):
            gaussian_budget(1.0, delta, records=records)
