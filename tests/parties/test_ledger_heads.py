"""The head of a party's ledger, kept outside of it: old copies are refused, by whatever memory is left."""

import shutil

import numpy as np
import pytest

from discreet.errors import LedgerCorrupted, LedgerUnavailable
from discreet.ledger import Ledger
from discreet.parties import Party, sgd2
from discreet.parties.ledger_heads import LedgerHeads
from discreet.parties.messages import Roster
from discreet.parties.party_plan import PartyPlan
from support.parties_bank import DIMENSION, hello, holders, read, study

PLAN = study(rounds=60)


class Joined:
    """A party that answers from a ledger on disk, with heads in two folders."""

    def __init__(self, tmp_path, **given):
        self.place = tmp_path / "a.ledger"
        self.folders = tmp_path / "kit", tmp_path / "tables"
        self.heads = LedgerHeads(self.place, *self.folders, **given)
        self.heads.insist_on_newest()
        rule = PartyPlan(PLAN, "ann").rule
        self.ledger = Ledger.open_or_create(self.place, rule)
        self.heads.check(self.ledger)
        words = ("ann", PLAN, holders()["ann"], self.ledger, None, Roster.without_wire())
        self.party = Party(*words, keep_head=self.heads.keep)
        assert read(self.party.answer(hello(PLAN, "ann"))).kind == "ready"

    def answers(self, *rounds):
        requests = [sgd2.request(PLAN, round, np.zeros(DIMENSION)).encode() for round in rounds]
        return [read(self.party.answer(request)).kind for request in requests]

    def close(self):
        self.ledger.close()


def copy(place, target):
    target.mkdir(exist_ok=True)
    for file in place.parent.glob(f"{place.name}*"):
        shutil.copy(file, target / file.name)


def after_a_restore(tmp_path):
    """A ledger of 40 rounds that was replaced by its copy of 20 rounds ago."""
    first = Joined(tmp_path)
    assert first.answers(*range(1, 21)) == ["noisy"] * 20
    first.close()
    copy(first.place, tmp_path / "backup")
    second = Joined(tmp_path)
    assert second.answers(*range(21, 41)) == ["noisy"] * 20
    second.close()
    for file in tmp_path.glob("a.ledger*"):
        file.unlink()
    copy(tmp_path / "backup" / "a.ledger", tmp_path)
    return second


def test_an_old_copy_is_refused_and_the_newest_goes_on(tmp_path):
    """In 0.1.0 a party with a restored ledger answered 117 rounds on a plan of 60."""
    lost = after_a_restore(tmp_path)
    with pytest.raises(LedgerCorrupted, match="was rolled back"):
        Joined(tmp_path)
    shutil.rmtree(lost.folders[0])  # one of the two memories does
    with pytest.raises(LedgerCorrupted, match="was rolled back"):
        Joined(tmp_path)


def test_without_any_memory_an_old_copy_passes_and_an_anchor_tells(tmp_path):
    """The broken twin, and why an anchor should be kept elsewhere."""
    lost = after_a_restore(tmp_path)
    (_, _, newest), _ = lost.heads._known()
    for folder in lost.folders:
        shutil.rmtree(folder)
    with pytest.raises(LedgerCorrupted, match="was rolled back"):
        Joined(tmp_path, given=newest)
    Joined(tmp_path).close()


def test_a_copy_at_another_place_is_refused_too(tmp_path):
    lost = after_a_restore(tmp_path)
    heads = LedgerHeads(tmp_path / "backup" / "a.ledger", *lost.folders)
    with pytest.raises(LedgerCorrupted, match="was rolled back"):
        heads.insist_on_newest()


def test_a_ledger_that_is_gone_or_was_begun_anew_is_refused(tmp_path):
    first = Joined(tmp_path)
    first.answers(1)
    first.close()
    for file in tmp_path.glob("a.ledger*"):
        file.unlink()
    with pytest.raises(LedgerUnavailable, match="is gone"):
        Joined(tmp_path)
    Ledger.create(first.place, PartyPlan(PLAN, "ann").rule).close()
    with pytest.raises(LedgerCorrupted, match="not the one that paid"):
        Joined(tmp_path)


def test_no_answer_leaves_before_the_head_is_kept(tmp_path):
    joined = Joined(tmp_path)
    shutil.rmtree(joined.folders[1])
    joined.folders[1].write_text("no folder")
    assert joined.answers(1, 2) == ["refused", "refused"]
    assert "cannot be kept" in joined.party.stopped
    joined.close()


def test_a_head_that_makes_no_sense_is_not_ignored(tmp_path):
    joined = Joined(tmp_path)
    joined.answers(1)
    joined.close()
    (page,) = joined.folders[0].iterdir()
    page.write_text("{}")
    with pytest.raises(LedgerCorrupted, match="does not hold the head"):
        Joined(tmp_path)


def test_other_ledgers_in_the_same_folders_do_not_matter(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    for place in (one, other):
        place.mkdir()
        joined = Joined(place)
        joined.answers(1, 2)
        joined.close()
    for folder in ("kit", "tables"):
        for page in (other / folder).iterdir():
            shutil.copy(page, one / folder)
    Joined(one).close()
