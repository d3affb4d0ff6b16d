"""The folder of a model: whose certificate it is, and that its text alone says what it predicts."""

import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from discreet import Budget, CertificateRejected, Gaussian
from discreet.certificate import Certificate, new_signing_key, public_key_of
from discreet.cli import main
from discreet.ledger import GaussianFilter, Ledger
from discreet.linear.fitted_model import FittedModel
from discreet.linear.model_folder import insist_belonging
from discreet.plan.plan import Plan

SCHEMA = """
[columns]
age = { bounds = [0, 100] }
hours = { learn = true, missing = "flag" }
job = { categories = ["clerk", "farmer"] }
smoker = { flag = "yes" }
only = { categories = ["yes"] }
income = { categories = ["low", "middle", "high"] }
spend = { bounds = [0, 100] }
"""
ROWS = 3000
FEATURES = ("age", "hours", "job", "smoker", "only")


def run(*words, **extra):
    return CliRunner().invoke(main, list(map(str, words)), **extra)


def done(*words, **extra):
    result = run(*words, "--json", **extra)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def fit(place, target, out, *words):
    text = SCHEMA.replace("[columns]", f'target = "{target}"\n[columns]')
    other = {"income": "spend", "spend": "income"}[target]
    (place / "schema.toml").write_text("\n".join(line for line in text.splitlines() if other not in line))
    budget = ("--epsilon", "1", "--delta", "1e-6", "--model", "linear")
    return [
        "fit",
        place / "table.csv",
        "--schema",
        place / "schema.toml",
        *budget,
        "--out",
        place / out,
        *words,
    ]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("models"), np.random.default_rng(3)
    age, hours = rng.uniform(30, 50, ROWS).round(1), rng.uniform(10, 60, ROWS).round()
    job, smoker = rng.choice(["clerk", "farmer", "pilot"], ROWS), rng.choice(["yes", "no"], ROWS)
    score = (age - 40) / 5 + (job == "farmer") - (smoker == "yes")
    income = np.select([score < -1, score < 1], ["low", "middle"], "high")
    columns = {"age": age, "hours": hours, "job": job, "smoker": smoker, "only": smoker, "income": income}
    columns["spend"] = (50 + 8 * score).round(2)
    lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    (folder / "table.csv").write_text("\n".join(lines) + "\n")
    done(*fit(folder, "income", "classes"))
    done(*fit(folder, "spend", "numbers"))
    return folder


TABLE = """age,hours,job,smoker,only
40,30,clerk,yes,yes
0,30,farmer,no,no
100,,pilot,,yes
41.5,1e9,,yes,
-5,-1e9,farmer,yes,yes
old,nan,clerk,no,yes
"""


def by_hand(text):
    """The scores of ``TABLE``: intercept + coefficient * clamped value, from what model.json says."""
    columns, scores = text["schema"]["columns"], []
    for line in TABLE.splitlines()[1:]:
        cells, score = dict(zip(FEATURES, line.split(","), strict=True)), np.array(text["intercept"])
        for name, coefficients in text["coefficients"].items():
            column, _, value = name.partition("=")
            known, cell = columns[column], cells[column]
            number = _number(cell)
            if value == "missing":
                x = float(np.isnan(number))
            elif value:
                x = float(cell == value)
            elif "flag" in known:
                x = float(cell == known["flag"])
            else:
                lower, upper = known["bounds"]
                gap = lower + text["missing"][name] * (upper - lower)
                x = gap if np.isnan(number) else np.clip(number, lower, upper)
            score = score + np.clip(x, *text["clamped_to"][name]) * np.array(coefficients)
        scores.append(score)
    return np.array(scores)


def _number(cell):
    try:
        return float(cell)
    except ValueError:
        return np.nan


def test_predictions_can_be_computed_from_model_json_alone(place):
    text = json.loads((place / "classes" / "model.json").read_text())
    lower, upper = text["clamped_to"]["age"]
    assert 0 < lower < 35 < 45 < upper < 100  # learnt: narrower than what was declared
    scores = by_hand(text)
    chances = np.exp(scores - scores.max(axis=1, keepdims=True))
    chances /= chances.sum(axis=1, keepdims=True)
    answer = done("predict", place / "classes", "-", "--probabilities", input=TABLE)
    assert answer["predictions"] == [text["classes"][k] for k in chances.argmax(axis=1)]
    found = np.array([answer["columns"][f"probability of {label}"] for label in text["classes"]]).T
    assert found == pytest.approx(chances, abs=1e-5)

    text = json.loads((place / "numbers" / "model.json").read_text())
    expected = np.clip(by_hand(text)[:, 0], *text["target_bounds"])
    answer = done("predict", place / "numbers", "-", "--keep", "job", input=TABLE)
    assert answer["predictions"] == pytest.approx(expected, rel=1e-5)
    assert (answer["task"], answer["target"]) == ("regression", "spend")
    assert answer["columns"] == {"job": ["clerk", "farmer", "pilot", "", "farmer", "clerk"]}
    without = {**text, "clamped_to": {name: [-np.inf, np.inf] for name in text["clamped_to"]}}
    assert not np.allclose(by_hand(without), by_hand(text), atol=0.1)  # the clamps matter


def altered(place, tmp_path, change=None):
    """A copy of the model of numbers whose text, as a dictionary, was changed."""
    folder = tmp_path / "m"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(place / "numbers", folder)
    if change:
        text = json.loads((folder / "model.json").read_text())
        change(text)
        (folder / "model.json").write_text(json.dumps(text))
    return folder


def rejected(folder, reason):
    for words in (["verify", folder], ["predict", folder, "-"]):
        result = run(*words, input=TABLE)
        assert (result.exit_code, result.stdout) == (1, ""), words
        assert result.stderr.startswith(f"error[certificate-rejected]: {folder} is rejected: ")
        assert reason in result.stderr, result.stderr
        assert result.stderr.count("\n") == 1


def test_the_certificate_of_another_model_is_rejected(place, tmp_path):
    folder = altered(place, tmp_path)
    assert run("verify", folder).exit_code == 3
    shutil.copy(place / "classes" / "certificate.json", folder)
    rejected(folder, "model.json is not the file that the certificate is for")
    bound = Certificate.load(folder / "certificate.json").for_files(folder / "weights.safetensors")
    bound.save(folder / "certificate.json")
    rejected(folder, "certificate.json is of other files")
    bound.for_files(folder / "weights.safetensors", folder / "model.json").save(folder / "certificate.json")
    rejected(folder, "certificate.json is of another schema or target")


def aged(folder, change=lambda text: None, key=None):
    """Make the folder one of 0.1.0: model.json names the certificate, which names no files."""
    certificate = replace(Certificate.load(folder / "certificate.json"), files=(), signatures=())
    certificate = certificate.signed(key) if key else certificate
    certificate.save(folder / "certificate.json")
    text = json.loads((folder / "model.json").read_text()) | {"certificate": certificate.digest()}
    change(text)
    (folder / "model.json").write_text(json.dumps(text))


def test_an_old_certificate_is_verified_but_vouches_for_no_weights(place, tmp_path):
    key = Ed25519PrivateKey.generate()
    folder = altered(place, tmp_path)
    aged(folder, key=key)
    assert json.loads((folder / "certificate.json").read_text())["format"] == "discreet certificate 1"
    trusted = ("--signed-by", public_key_of(key))
    assert done("verify", folder / "certificate.json", *trusted)["outcome"] == "accepted"
    result = run("verify", folder, *trusted)
    assert (result.exit_code, "it holds no digest of any file" in result.stdout) == (3, True)
    assert run("predict", folder, "-", input=TABLE).exit_code == 0
    aged(folder, lambda text: text.update(certificate="a" * 64))
    rejected(folder, "certificate.json is not the certificate that model.json names")


def test_other_weights_do_not_pass_under_a_signed_certificate(place, tmp_path):
    """The attack on 0.1.0: weights of another fit, and a model.json edited to name the signed certificate."""
    key = new_signing_key(tmp_path / "key")
    trusted = ("--signed-by", public_key_of(key))
    done(*fit(place, "spend", "signed", "--sign-with", tmp_path / "key"))
    folder = place / "signed"
    assert done("verify", folder, *trusted)["accepted"]
    for name in ("weights.safetensors", "model.json"):
        shutil.copy(place / "numbers" / name, folder)
    text = json.loads((folder / "model.json").read_text())
    digest = json.loads((folder / "certificate.json").read_text())["digest"]
    (folder / "model.json").write_text(json.dumps(text | {"certificate": digest}))
    rejected(folder, "is not the file that the certificate is for")


def test_the_meaning_of_the_weights_is_signed_too(place, tmp_path):
    """Class names swapped in model.json turn every prediction around; 0.1.0 accepted it."""
    folder = tmp_path / "m"
    shutil.copytree(place / "classes", folder)
    text = json.loads((folder / "model.json").read_text())
    text["classes"] = ["middle", "low", "high"]
    (folder / "model.json").write_text(json.dumps(text))
    rejected(folder, "model.json is not the file that the certificate is for")


def test_an_invented_certificate_is_consistent_at_best(place, tmp_path):
    """An epsilon of 0.1 for a model of epsilon 1: everything follows, and 0.1.0 called it accepted."""
    folder = tmp_path / "m"
    shutil.copytree(place / "numbers", folder)
    truth = Certificate.load(folder / "certificate.json").plan
    rule = GaussianFilter(Budget(0.1, 1e-6))
    invented = Plan.adaptive(truth.name, rule, truth.settings)
    with Ledger.in_memory(rule) as ledger:
        ledger.run(Gaussian(1e3) * 1, invented.digest()).reserve(1)
        certificate = Certificate.of(ledger, invented)
    certificate = certificate.for_files(folder / "weights.safetensors", folder / "model.json")
    certificate.signed(Ed25519PrivateKey.generate()).save(folder / "certificate.json")
    result = run("verify", folder)
    assert result.exit_code == 3
    assert f"{folder}/certificate.json: consistent; nobody vouches for it\n" in result.stdout
    assert "accepted" not in result.stdout
    assert Certificate.load(folder / "certificate.json").verify(folder=folder).outcome == "consistent"
    other = run("verify", folder, "--signed-by", public_key_of(Ed25519PrivateKey.generate()))
    assert (other.exit_code, "it is not signed by" in other.stderr) == (1, True)


def test_weights_and_text_must_agree(place, tmp_path):
    folder = altered(place, tmp_path)
    rejected(altered(place, tmp_path, lambda text: text.update(task="lies")), "model.json is not the file")
    folder = altered(place, tmp_path)
    shutil.copy(place / "classes" / "weights.safetensors", folder)
    rejected(folder, "weights.safetensors is not the file that")
    changes = {
        "coefficients": lambda text: text["coefficients"]["age"].__setitem__(0, 7.0),
        "intercept": lambda text: text["intercept"].__setitem__(0, text["intercept"][0] + 1e-3),
        "clamped_to": lambda text: text["clamped_to"].pop("age"),
    }
    for part, change in changes.items():
        folder = altered(place, tmp_path, change)
        with pytest.raises(
            CertificateRejected, match=f"{part} in model.json and in weights.safetensors differ"
        ):
            FittedModel.read(folder)


def test_a_folder_without_a_certificate_or_with_a_broken_one(place, tmp_path):
    folder = altered(place, tmp_path)
    (folder / "certificate.json").unlink()
    result = run("predict", folder, "-", input=TABLE)
    assert (result.exit_code, len(result.stdout.splitlines())) == (0, 7)
    assert result.stderr.startswith(f"note: there is no certificate.json in {folder}")
    assert run("verify", folder).exit_code == 1
    (folder / "certificate.json").write_text("{}")
    result = run("predict", folder, "-", input=TABLE)
    assert (result.exit_code, result.stderr.startswith("error[certificate-rejected]: ")) == (1, True)
    folder = altered(place, tmp_path)
    (folder / "model.json").unlink()
    assert "is rejected: model.json, which the certificate is for, is missing" in run("verify", folder).stderr


def test_a_model_of_several_parties_is_known_by_its_study():
    procedure = Plan.adaptive("sgd party", GaussianFilter(Budget(1.0, 1e-6)), {"digest": "a" * 64})
    certificate = SimpleNamespace(plan=procedure, files=())
    insist_belonging("m", {"study": {}, "digest": "a" * 64}, None, certificate)
    with pytest.raises(CertificateRejected, match="another study"):
        insist_belonging("m", {"study": {}, "digest": "b" * 64}, None, certificate)
    with pytest.raises(CertificateRejected, match="another study"):
        insist_belonging("m", {"study": {}}, None, certificate)


def test_what_fit_says_of_columns_delta_and_a_single_class(place):
    result = run(*fit(place, "spend", "loud", "--delta", "9e-4"))
    assert "on 5 features, encoded as 7 columns" in result.stdout
    assert result.stderr.startswith(
        "note: delta 0.0009 is more than a tenth of 1 / number of records, a noisy"
    )
    assert result.exit_code == 0
    result = run(*fit(place, "spend", "one", "--target", "only"))
    assert (result.exit_code, (place / "one").exists()) == (2, False)
    assert "--target=only: 'only' must have two or more categories in the schema" in result.stderr


def test_predictions_go_into_files_of_two_kinds(place):
    result = run("predict", place / "numbers", place / "table.csv", "--out", place / "p.txt")
    assert (result.exit_code, (place / "p.txt").exists()) == (2, False)
    assert "must end in .csv or .parquet" in result.stderr


def test_a_ledger_that_is_full_says_so(place):
    done("ledger", "new", place / "l.sqlite", "--epsilon", "1", "--delta", "1e-6")
    done(*fit(place, "spend", "charged", "--ledger", place / "l.sqlite"))
    assert "spent 100.0% of the budget" in run("ledger", "show", place / "l.sqlite").stdout
    # Floats spare nothing of delta, so not even a fit of a two-thousandth is left.
    done("ledger", "new", place / "f.sqlite", "--epsilon", "1", "--delta", "1e-6")
    done(*fit(place, "spend", "charged floats", "--ledger", place / "f.sqlite", "--arithmetic", "float"))
    assert "; nothing more fits\n" in run("ledger", "show", place / "f.sqlite").stdout
