"""How fast and how resilient is a study over a real network? One table against the targets.

    python benchmarks/parties.py [--quick]

NVFlare's server and clients on the loopback, mutual TLS, signed messages, a durable ledger (leased) at every party.
``contention`` is wall time over CPU time of a fixed loop, around each measurement: 1 on a quiet machine. Rates are
those of the whole protocol, gradients and noise included.
"""

from __future__ import annotations

import argparse
import signal
import tempfile
import time
from pathlib import Path

from discreet.parties import Study, rehearse
from party_network import Network, free_port, holder_of, study_of

PARTS = ("rehearsal", "crowd", "three", "ten", "thirty", "recovery")


class Table:
    def __init__(self) -> None:
        self.rows: list[tuple[str, str, str, str, float]] = []

    def add(self, what: str, got: float, unit: str, *, least: float = 0.0, most: float = 0.0) -> None:
        target = f">= {least:g}" if least else f"<= {most:g}"
        reached = got >= least if least else got <= most
        self.rows.append((what, f"{got:.1f} {unit}", target, "yes" if reached else "no", contention()))
        print(f"  {what}: {got:.1f} {unit} (target {target}; contention {self.rows[-1][-1]:.1f})", flush=True)

    def __str__(self) -> str:
        lines = [f"{'measured':<44} {'got':>18} {'target':>10}  reached  contention"]
        return "\n".join(lines + [f"{a:<44} {b:>18} {c:>10}  {d:<7}  {e:.1f}" for a, b, c, d, e in self.rows])


def contention() -> float:
    wall, cpu = time.perf_counter(), time.process_time()
    sum(range(3_000_000))
    return (time.perf_counter() - wall) / (time.process_time() - cpu)


def rate(network: Network, study: str) -> tuple[float, float]:
    """Updates per second between the first and the last, and when the first was."""
    asked = time.time()
    network.run(study)
    first = network.wait(lambda e: e["what"] == "update" and e["study"] == study, asked, 900.0)
    last = network.wait(lambda e: e["what"] in ("end", "stopped") and e["study"] == study, asked, 600.0)
    assert last["what"] == "end", last
    return (last["updates"] - first["update"]) / (last["at"] - first["at"]), first["at"]


def speeds(table: Table, parties: int, scale: float, least: dict[str, float]) -> None:
    port = free_port()
    studies = [study_of("small", parties, port, 20, rounds=int(600 * scale))]
    if parties == 3:
        studies.append(study_of("wide", parties, port, 10_000, rounds=int(240 * scale)))
    studies.append(study_of("tokens", parties, port, 20, tokens=int(3000 * scale)))
    with tempfile.TemporaryDirectory() as folder:
        network = Network(Path(folder), studies)
        try:
            begun = network.start_all()
            for study in studies:
                got, first = rate(network, study.name)
                if study.name == "small" and parties == 3:
                    table.add("start-up to the first round, 3 parties", first - begun, "s", most=20)
                unit = "tokens/s" if study.algorithm == "sgd1" else "rounds/s"
                what = f"{study.algorithm.upper()}, {parties} parties, d = {study.dimension}"
                table.add(what, got, unit, least=least[study.name])
        finally:
            network.close()


def secured(study: Study, dropouts: int) -> Study:
    return Study.from_dict(study.to_dict() | {"aggregation": {"kind": "secure", "dropouts": dropouts}})


def thirty(table: Table, scale: float) -> None:
    """Thirty parties and a coordinator, each a process on this machine: plain rounds, tokens, secure sums."""
    port = free_port()
    studies = [
        study_of("small", 30, port, 20, rounds=int(200 * scale), timeout=60.0),
        study_of("tokens", 30, port, 20, tokens=int(2000 * scale), timeout=60.0),
        secured(study_of("secure", 30, port, 20, rounds=int(40 * scale), timeout=60.0), 2),
    ]
    with tempfile.TemporaryDirectory() as folder:
        network = Network(Path(folder), studies)
        try:
            begun = network.start_all()
            for study in studies:
                got, first = rate(network, study.name)
                if study.name == "small":
                    table.add("start-up to the first round, 30 parties", first - begun, "s", most=120)
                unit = "tokens/s" if study.algorithm == "sgd1" else "rounds/s"
                kind = " with secure sums" if study.name == "secure" else ""
                table.add(f"{study.algorithm.upper()}{kind}, 30 parties, d = 20", got, unit, least=1)
        finally:
            network.close()


def crowd(table: Table) -> None:
    """Two hundred parties in one process, with plain sums, and with secure sums in seven groups."""
    for study in (
        study_of("plain", 200, 1, 20, rounds=20),
        secured(study_of("secure", 200, 1, 20, rounds=3), 2),
    ):
        holders = {name: holder_of(study, name) for name in study.names}
        begun = time.process_time()
        rehearse(study, holders)
        got = (time.process_time() - begun) / study.updates
        kind = study.aggregation.kind
        table.add(f"rehearsal, 200 parties, {kind}: CPU of a round", got, "s", most=60)


def recoveries(table: Table) -> None:
    port = free_port()
    long = study_of("paced", 3, port, 20, rounds=1500)
    large = study_of("large", 1, port, 12_500_000, rounds=2, timeout=120.0)
    with tempfile.TemporaryDirectory() as folder:
        network = Network(Path(folder), [long, large])
        try:
            begun = network.start_all()
            network.run("large")
            sent = network.wait(lambda e: e["what"] == "begin" and e["study"] == "large", begun)
            done = network.wait(
                lambda e: e["what"] in ("end", "stopped") and e["study"] == "large", begun, 300.0
            )
            assert done.get("missed") == {}, done
            table.add(
                "a model of 100 MB, one round there and back", (done["at"] - sent["at"]) / 2, "s", most=30
            )

            network.run("paced")
            network.wait(
                lambda e: e["what"] == "update" and e["study"] == "paced" and e["update"] >= 15, begun
            )
            killed = time.time()
            network.signal("party-1", signal.SIGKILL)
            gone = network.wait(lambda e: e["what"] == "update" and e["missing"] == ["party-1"], killed)
            table.add("a killed party is missed (timeout 10 s)", gone["at"] - killed, "s", most=11)
            again = network.start("party-1")
            back = network.wait(lambda e: e["what"] == "update" and e["missing"] == [], again)
            table.add("a killed party is back after its restart", back["at"] - again, "s", most=5)

            network.signal("coordinator", signal.SIGKILL)
            again = network.start("coordinator")
            network.run("paced")
            back = network.wait(lambda e: e["what"] == "update" and e["study"] == "paced", again)
            table.add("a killed coordinator resumes after its restart", back["at"] - again, "s", most=15)
        finally:
            network.close()


def rehearsals(table: Table, scale: float) -> None:
    for study, unit, least in (  # by CPU time: there is nobody to wait for
        (study_of("rounds", 3, 1, 20, rounds=int(2000 * scale)), "rounds/s", 500),
        (study_of("tokens", 3, 1, 20, tokens=int(20_000 * scale)), "tokens/s", 5000),
    ):
        holders = {name: holder_of(study, name) for name in study.names}
        rehearse(study, holders)
        begun = time.process_time()
        rehearse(study, holders)
        got = study.updates / (time.process_time() - begun)
        table.add(f"rehearsal, {study.algorithm.upper()}, d = 20", got, unit, least=least)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="A quarter of the rounds.")
    parser.add_argument("--only", choices=PARTS, help="One part of it.")
    chosen = parser.parse_args()
    scale, table = 0.25 if chosen.quick else 1.0, Table()
    parts = {
        "rehearsal": lambda: rehearsals(table, scale),
        "three": lambda: speeds(table, 3, scale, {"small": 150, "wide": 80, "tokens": 350}),
        "crowd": lambda: crowd(table),
        "ten": lambda: speeds(table, 10, scale, {"small": 35, "tokens": 200}),
        "thirty": lambda: thirty(table, scale),
        "recovery": lambda: recoveries(table),
    }
    for name, part in parts.items():
        if chosen.only in (None, name):
            part()
    print(f"\n{table}")


if __name__ == "__main__":
    main()
