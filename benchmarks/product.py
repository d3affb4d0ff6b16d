"""What people meet: how long the command line, the studio, the report and the demo let them wait.

Prints one table against the targets. Times are the best of several tries: the machine is shared. Run with
``make bench-product``.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from starlette.testclient import TestClient

import discreet as dp
from discreet.ledger import FixedPlan, Ledger
from discreet.report import Report
from discreet.studio.application import application

BUDGET = dp.Budget(2.0, 1e-6)


def best(action, tries=7):
    """The shortest of some tries, in seconds."""
    times = []
    for _ in range(tries):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)


def command(*words):
    return lambda: subprocess.run([sys.executable, "-m", "discreet", *words], check=True, capture_output=True)


def studio_moves():
    """The times of forty positions of a slider that was never there before, worst but two."""
    client = TestClient(application(), base_url="http://127.0.0.1")
    wish = {"records": 60_000, "batch_size": 600, "epochs": 10, "delta": 1e-6}
    times = []
    for position in range(40):
        start = time.perf_counter()
        answer = client.post("/api/price", json=wish | {"noise_multiplier": 0.7 + 0.037 * position})
        times.append(time.perf_counter() - start)
        answer.raise_for_status()
    return sorted(times)[-3]


def report_page():
    plan = dp.Recipe(records=60_000, batch_size=600, epochs=10).calibrate(BUDGET)
    with Ledger.in_memory(FixedPlan(plan.event, BUDGET)) as ledger:
        ledger.run(plan.event, plan.digest()).reserve(plan.steps)
        return Report(dp.Certificate.of(ledger, plan))


def demo():
    with tempfile.TemporaryDirectory() as folder:
        script = Path(__file__).parent.parent / "examples" / "demo.py"
        subprocess.run([sys.executable, script, folder], check=True, capture_output=True)


def main():
    page = report_page()
    rows = [
        ("discreet --help, seconds", 0.4, best(command("--help"))),
        ("discreet --version, seconds", 0.4, best(command("--version"))),
        ("studio: one move of a slider, milliseconds", 50, 1e3 * studio_moves()),
        ("report: bytes", 1e6, float(len(page.to_html().encode()))),
        ("report: seconds to make", 10, best(lambda: report_page().to_html(), 2)),
        ("demo: seconds after installation", 120, best(demo, 1)),
    ]
    print(f"{'what':44}  {'goal':>9}  {'measured':>9}")
    for name, goal, measured in rows:
        print(f"{name:44}  {goal:>9,g}  {measured:>9.4g}  {'ok' if measured <= goal else 'MISSED'}")


if __name__ == "__main__":
    main()
