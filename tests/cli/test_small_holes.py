"""Small holes of 0.1.0: passwords on the screen, formulas in tables, damaged files, plans without end."""

import csv
import io
import json
import shutil
import zipfile

import numpy as np
import pytest
from click.testing import CliRunner

from discreet import InvalidParameter, Ledger, Recipe
from discreet.cli import main
from discreet.cli.predict import write_csv
from discreet.errors import without_passwords
from discreet.guarantee import Budget
from discreet.ledger import GaussianFilter
from discreet.linear.schema import Schema
from discreet.parties import Study
from discreet.parties.network.kits import make_kits, open_kit, revoke, revoked_parties
from support.small_study import study

SECRET = "s3cret"


def run(*words, **settings):
    return CliRunner().invoke(main, [str(word) for word in words], **settings)


@pytest.mark.parametrize(
    "address",
    [
        f"postgresql://ann:{SECRET}@127.0.0.1:1/none",
        f"postgresql+psycopg://ann:{SECRET}@127.0.0.1:1/none",
        f"postgresql://127.0.0.1:1/none?user=ann&password={SECRET}",
        f"postgresql://ann:x{SECRET}@y/{SECRET}@127.0.0.1:1/none",
        f"postgresql://ann:{SECRET}/x@127.0.0.1:1/none",
        f"postgres://ann:{SECRET}@127.0.0.1/none",
        f"POSTGRESQL://ann:{SECRET}@127.0.0.1/none",
        f"mysql://ann:'{SECRET}'@127.0.0.1/none",
    ],
)
@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_a_password_is_never_printed(address, as_json, tmp_path):
    (tmp_path / "key").write_text("ab" * 32)
    (tmp_path / "key").chmod(0o600)
    more = ["--json"] if as_json else []
    budget = ("--epsilon", "1", "--delta", "1e-6")
    for words in (
        ("ledger", "show", address, "--key", tmp_path / "key"),
        ("ledger", "show", address),
        ("ledger", "new", address, *budget, "--key", tmp_path / "key"),
        ("ledger", "new", address, *budget),
        ("ledger", "anchor", address, "--key", tmp_path / "none"),
        ("ledger", "show", "a", address),
        ("studio", "--no-browser", "--ledger", address, "--key", tmp_path / "key"),
    ):
        result = run(*words, *more)
        assert result.exit_code in (1, 2)
        assert SECRET not in result.output, words
    with pytest.raises(Exception) as refusal:  # noqa: PT011
        Ledger.create(address, GaussianFilter(Budget(1.0, 1e-6)), key=tmp_path / "key")
    assert SECRET not in str(refusal.value)


def test_what_holds_no_password_is_shown_as_it_is():
    for text in ("postgresql://ann@host:5432/db", "a: b@c", "C:\\ledger", "http://127.0.0.1:80/#token=x"):
        assert without_passwords(text) == text
    assert without_passwords(f"on postgresql://ann:{SECRET}@h/d now") == "on postgresql://ann:***@h/d now"


def test_no_cell_of_a_csv_is_a_formula():
    formulas = ["=1+1", "+cmd|' /C calc'!A0", "-2+3+cmd", "@SUM(A1)", "\t=1", "\r=1", " =1", "\uff1d1+1"]
    numbers = ["-5", "+3.5", "-1e-3", "-", "clerk", "", "a=b", "-inf"]
    texts = np.array(formulas + numbers, object)
    file = io.StringIO(newline="")
    write_csv(file, iter([{"=kept": texts, "prediction": texts, "number": np.full(len(texts), -1.5)}]))
    header, *rows = list(csv.reader(io.StringIO(file.getvalue(), newline="")))
    assert header == ["'=kept", "prediction", "number"]
    for before, (kept, prediction, number) in zip(texts, rows, strict=True):
        expected = f"'{before}".replace("\r", " ") if before in formulas else before
        assert (kept, prediction, number) == (expected, expected, "-1.5")


@pytest.fixture(scope="module")
def kits(tmp_path_factory):
    return make_kits(study(), tmp_path_factory.mktemp("kits") / "kits")


DAMAGED = {
    "roster.json": [
        b"{}",
        b"[]",
        b"\xff",
        b'{"study": 1, "keys": 2}',
        b"KEYS []",
        b'KEYS {"coordinator": 5}',
        b"[" * 10**5,
    ],
    "kit.json": [b"{}", b"null", b"{" * 10**5, b"ABOUT party", b"ABOUT port", b"ABOUT study"],
    "site.crt": [b"", b"-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----"],
}


@pytest.mark.parametrize(
    ("member", "content"), [(name, text) for name, texts in DAMAGED.items() for text in texts]
)
def test_a_damaged_kit_is_refused_by_its_name(kits, tmp_path, member, content):
    broken = tmp_path / "coordinator.zip"
    with zipfile.ZipFile(kits["coordinator"]) as old, zipfile.ZipFile(broken, "w") as new:
        whole = {name: old.read(name) for name in old.namelist()}
        if content.startswith(b"ABOUT"):
            content = json.dumps(json.loads(whole["kit.json"]) | {content.split()[1].decode(): []}).encode()
        elif content.startswith(b"KEYS"):
            content = json.dumps(
                json.loads(whole["roster.json"]) | {"keys": json.loads(content[5:])}
            ).encode()
        for name, text in (whole | {member: content}).items():
            new.writestr(name, text)
    with pytest.raises(InvalidParameter, match=r"coordinator\.zip.*: "):
        open_kit(broken)
    with pytest.raises(InvalidParameter):
        revoke(tmp_path, "hospital-a")


def test_a_damaged_list_of_revocations_is_refused(kits, tmp_path):
    shutil.copy(kits["coordinator"], tmp_path)
    for text in ("{}", "[]", '{"revoked": "a"}', '{"revoked": [1]}', "[" * 10**5):
        (tmp_path / "revoked.json").write_text(text)
        with pytest.raises(InvalidParameter):
            revoked_parties(tmp_path)


DEEP = "x = " + "[" * 50_000 + "]" * 50_000
DEEP_TABLES = "x = " + "{a = " * 5_000 + "1" + "}" * 5_000


@pytest.mark.parametrize(
    "text", [DEEP, DEEP_TABLES, "x = \x00", "=", "study = 1", "columns = []", "[columns]\na = 1"]
)
def test_toml_that_makes_no_sense_is_refused(text, tmp_path):
    for kind in (Schema, Study):
        with pytest.raises(InvalidParameter):
            kind.from_toml(text)
    file = tmp_path / "strange.toml"
    file.write_text(text)
    for words in (
        ("study", "check", file),
        ("study", "kits", file, "--out", tmp_path / "kits"),
        ("study", "new", "s", "--party", "a=1", "--schema", file, "--epsilon", 1, "--delta", 1e-6),
        (
            "fit",
            tmp_path / "t.csv",
            "--schema",
            file,
            "--epsilon",
            1,
            "--delta",
            1e-6,
            "--out",
            tmp_path / "m",
        ),
    ):
        result = run(*words)
        assert result.exit_code == 2, result.output
        assert "mistake of ours" not in result.output


def test_json_that_makes_no_sense_is_refused(tmp_path):
    file = tmp_path / "strange.json"
    for text in ("[" * 10**5, '{"a":' * 10**5, "{}", "[]", "1", "null", '{"format": []}', '{"digest": {}}'):
        file.write_text(text)
        for words in (
            ("verify", file),
            ("report", file),
            ("audit", file),
            ("verify", "--entries", file, file),
        ):
            result = run(*words)
            assert result.exit_code in (1, 2), (words, text[:20], result.output)
            assert "mistake of ours" not in result.output, (words, text[:20])
            assert str(file) in result.stderr or "strange.json" in result.stderr, (
                words,
                text[:20],
                result.stderr,
            )


@pytest.mark.parametrize("steps", [10**9 + 1, 10**12, 10**15])
def test_a_plan_of_too_many_steps_is_refused_at_once(steps, tmp_path):
    """0.1.0 computed for more than a minute; nothing is computed now."""
    with pytest.raises(InvalidParameter, match=r"steps=.*at most 1000000000"):
        Recipe(records=10**6, batch_size=1000, steps=steps)
    words = (
        "--records",
        10**6,
        "--batch-size",
        1000,
        "--epsilon",
        1,
        "--delta",
        1e-8,
        "--out",
        tmp_path / "p.json",
    )
    result = run("plan", "--steps", steps, *words)
    assert (result.exit_code, "--steps" in result.stderr) == (2, True), result.stderr


def test_the_largest_plan_is_answered():
    plan = Recipe(records=10**6, batch_size=1000, steps=10**9).with_noise(200.0, 1e-8)
    assert 0 < plan.guarantee.epsilon.upper < 2
