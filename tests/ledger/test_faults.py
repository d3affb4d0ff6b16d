"""Kills, races, refusing disks and altered ledgers: bounded here, in numbers by ``make torture``."""

import json
import os
import sqlite3
import subprocess
import sys

import psycopg
import pytest

from discreet.ledger.ledger_log import next_row
from discreet.ledger.ledger_state import LedgerState
from support import ledger_faults
from support.ledger_faults import KEY, alter_log, alterations, rollbacks
from support.postgres_server import postgres_server


def inflict(**wish):
    """What happens to ledgers in a process of its own, which forks its victims."""
    command = [
        sys.executable,
        ledger_faults.__file__,
        json.dumps({k.replace("_", " "): v for k, v in wish.items()}),
    ]
    single = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    return json.loads(
        subprocess.run(command, check=True, capture_output=True, env=single, timeout=600).stdout
    )


@pytest.fixture(scope="module")
def suffered():
    disk = list(ledger_faults.REFUSING)
    return inflict(kills=60, late_kills=11, interrupts=66, processes=[2, 8], disk=disk)


@pytest.fixture(scope="module")
def suffered_in_postgres():
    with postgres_server() as server:
        places = []
        with psycopg.connect(server, autocommit=True) as connection:
            for index in range(2):
                connection.execute(f"CREATE SCHEMA s{index}")
                places.append(f"{server}&options=-csearch_path%3Ds{index}")
        return inflict(kills=12, processes=[8], places=places)


def nothing_was_lost(result, kills):
    assert result["kills"] == kills
    assert result["failed"] == 0
    assert result["attempts"] > kills / 4
    assert result["released"] <= result["reserved"]
    assert (result["under-counted"], result["noise used twice"], result["left"]) == (0, 0, 0)


def test_kills_lose_nothing(suffered):
    nothing_was_lost(suffered["kills"], 60)
    assert suffered["kills"]["reserved"] == 60 * 100  # to the last step of the budget, by four runs at once


def test_interrupts_lose_nothing_and_who_survives_goes_on(suffered):
    """SIGTERM, SIGINT and exceptions, twice at each of eleven points; after the latter two the run continues."""
    result = suffered["interrupts"]
    # Three points, those of a commit, are not passed when steps are given out one by one.
    assert result["codes"] == {"SIGTERM -15": 19, "SIGTERM 0": 3, "SIGINT 0": 22, "exception 0": 22}
    assert (result["failed"], result["under-counted"], result["noise used twice"]) == (0, 0, 0)
    assert result["released"] <= result["reserved"] == 66 * 30
    assert result["left"] == 0


def test_a_run_that_reserves_too_late_is_caught(suffered):
    assert suffered["late kills"]["under-counted"] > 0


@pytest.mark.parametrize("processes", [2, 8])
def test_processes_on_one_budget_spend_exactly_it(suffered, processes):
    assert suffered[f"{processes} processes"] == {"failed": 0, "granted": 28, "reserved": 28, "left": 0}


def test_postgres_loses_nothing_either(suffered_in_postgres):
    nothing_was_lost(suffered_in_postgres["kills"], 12)
    assert suffered_in_postgres["8 processes"] == {"failed": 0, "granted": 28, "reserved": 28, "left": 0}


@pytest.mark.parametrize("fault", list(ledger_faults.REFUSING))
def test_a_refusing_disk_grants_nothing_and_loses_nothing(suffered, fault):
    result = suffered[fault]
    assert result["code"] == 0
    assert (
        result["errors"] == ["LedgerUnavailable"] * 2
    )  # the handle stays shut until the ledger is opened again
    assert result["granted"] <= result["reserved"] <= result["granted"] + 5
    assert result["goes on"]


def test_altered_ledgers_are_refused_or_harmless(tmp_path):
    verdicts = alterations(tmp_path, 300)
    assert verdicts["believed"] == 0
    assert verdicts["refused"] > 150
    assert sum(verdicts.values()) == 300


def test_damaged_logs_are_refused_or_harmless_given_an_anchor(tmp_path):
    verdicts = alterations(tmp_path, 60, change=alter_log, anchored=True)
    assert verdicts["believed"] == 0
    assert verdicts["refused"] > 30


def test_older_ledgers_and_checkpoints_are_refused_or_fresh(tmp_path):
    """Without a witness outside of both, nobody can tell: the twin shows that the cases above are real."""
    assert rollbacks(tmp_path, 5) == {"ledger": 5, "checkpoint": 5, "both": 5, "both, no witness": 5}


def forge(path, key, change):
    """What whoever holds ``key`` could do: write entries as they please, and seal them."""
    database = sqlite3.connect(path)
    select = "SELECT coalesce(slot, '') || entry FROM ledger_entries ORDER BY sequence"
    texts = [text for (text,) in database.execute(select)]
    database.execute("DELETE FROM ledger_entries")
    ledger_state = LedgerState()
    for entry in change([json.loads(text) for text in texts]):
        row, head = next_row(ledger_state, entry, key)
        database.execute("INSERT INTO ledger_entries VALUES (?, ?, ?)", row)
    database.execute("UPDATE ledger_head SET sequence = ?, hash = ?, seal = ?", head)
    database.commit()
    database.close()


def cut_off_the_end(entries):
    return entries[:-3]


def rewrite_history(entries):
    """Halve the last reservation."""
    entries[-1][4] = 10
    return entries


@pytest.mark.parametrize("change", [cut_off_the_end, rewrite_history])
@pytest.mark.parametrize(("key", "outcome"), [(bytes(32), "refused"), (KEY, "believed")])
def test_forging_takes_the_key(tmp_path, change, key, outcome):
    """With the key it is believed, which shows that a believed forgery would be noticed above."""
    verdicts = alterations(tmp_path, 1, change=lambda path, _: forge(path, key, change))
    assert verdicts[outcome] == 1


def test_even_the_key_does_not_help_against_an_anchor(tmp_path):
    verdicts = alterations(
        tmp_path, 1, change=lambda path, _: forge(path, KEY, cut_off_the_end), anchored=True
    )
    assert verdicts == {"believed": 0, "refused": 1}


@pytest.mark.parametrize("statement", ledger_faults.ALTER_ROWS)
def test_every_way_to_alter_rows_is_noticed(tmp_path, statement):
    def change(path, _):
        database = sqlite3.connect(path)
        assert database.execute(statement, {"some": 11}).rowcount != 0  # a reservation of the second attempt
        database.commit()
        database.close()

    assert alterations(tmp_path, 1, change=change) == {"believed": 0, "refused": 1}
