"""Tables of any size, as ratios in one run: rows that are kept, not kept, mapped, in files, and on a cluster.

Every line runs in a process of its own, so that its memory is its own. CPU time counts, not the clock. ``--small``
takes a tenth of the rows. Run with ``make bench-scale``.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from timing import Targets, table

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("NUMBA_NUM_THREADS", "1")


def made(rows, columns, seed=0):
    """Correlated columns in [0, 10], and a label that depends on all of them."""
    rng = np.random.default_rng(seed)
    x = rng.random((rows, columns), np.float32)
    x[:, 1:] += x[:, :-1] * np.float32(0.5)
    x *= np.float32(10 / 1.5)
    score = (x - x.mean(0)) @ np.linspace(-1, 1, columns).astype(np.float32)
    return x, (score + 3 * rng.logistic(size=rows) > 0).astype(np.int8)


def resident(kind="VmHWM"):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(kind)) / 1024


def model(**more):
    from discreet.linear import PrivateLogisticRegression

    return PrivateLogisticRegression(1.0, 1e-9, bounds=(0, 10), **more)


def warm(columns):
    model().fit(*made(5000, columns))


def cpu(run):
    start = time.process_time()
    run()
    return time.process_time() - start


# ---- one line each ----


def kept(rows, columns):
    """CPU of a fit whose rows stay in memory, and of one with a scratch file; in turns, the better of 3."""
    x, y = made(rows, columns)
    warm(columns)
    seconds = [
        (cpu(lambda: model(memory=2**34).fit(x, y)), cpu(lambda: model(memory=0).fit(x, y))) for _ in range(3)
    ]
    return {"kept": min(a for a, _ in seconds), "not kept": min(b for _, b in seconds)}


def against_sklearn(rows, columns):
    """CPU of a whole fit beside that of scikit-learn's pipeline, which has to scale its columns too."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x, y = made(rows, columns)
    warm(columns)
    peer = make_pipeline(StandardScaler(), LogisticRegression())
    bare = LogisticRegression(max_iter=1000)
    turns = [
        (cpu(lambda: model().fit(x, y)), cpu(lambda: peer.fit(x, y)), cpu(lambda: bare.fit(x, y)))
        for _ in range(3)
    ]
    ours, theirs, plain = (min(turn[k] for turn in turns) for k in range(3))
    grid = model().fit(x[:5000], y[:5000])
    predicted = [(cpu(lambda: grid.predict(x)), cpu(lambda: bare.predict(x))) for _ in range(3)]
    return {
        "ours": ours,
        "pipeline": theirs,
        "bare": plain,
        "predict": min(a for a, _ in predicted) / min(b for _, b in predicted),
    }


def mapped(rows, columns):
    """Memory beyond the input, of a memory map."""
    folder = Path(tempfile.mkdtemp())
    x = np.lib.format.open_memmap(folder / "x.npy", "w+", np.float32, (rows, columns))
    y = np.lib.format.open_memmap(folder / "y.npy", "w+", np.int8, (rows,))
    for start in range(0, rows, 10**6):
        x[start : start + 10**6], y[start : start + 10**6] = made(min(10**6, rows - start), columns, start)
    x.flush()
    del x, y
    x, y = np.load(folder / "x.npy", mmap_mode="r"), np.load(folder / "y.npy", mmap_mode="r")
    warm(columns)
    before = resident("RssAnon")
    most = Peak()
    seconds = cpu(lambda: model(verbose=most).fit(x, y))
    return {"MB": most.anonymous - before, "CPU s": seconds}


class Peak:
    """The largest anonymous memory seen at any stage or release."""

    anonymous = 0.0

    def __call__(self, *_):
        self.anonymous = max(self.anonymous, resident("RssAnon"))


def from_file(kind, rows, columns):
    """Everything a process takes that fits a file."""

    folder = Path(tempfile.mkdtemp())
    path = folder / f"table.{kind}"
    maker = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
import scale; scale.write({str(path)!r}, {rows}, {columns})"""
    subprocess.run([sys.executable, "-c", maker], check=True)
    warm(columns)
    seconds = cpu(lambda: model().fit(path, y="label"))
    return {"MB": resident(), "CPU s": seconds, "file MB": path.stat().st_size / 2**20}


def write(path, rows, columns):
    import pyarrow
    import pyarrow.csv
    import pyarrow.parquet

    names = [f"x{j}" for j in range(columns)]
    writer = None
    for start in range(0, rows, 250_000):
        x, y = made(min(250_000, rows - start), columns, start)
        batch = pyarrow.table({**dict(zip(names, x.T, strict=True)), "label": y})
        if writer is None:
            kind = pyarrow.parquet.ParquetWriter if path.endswith("parquet") else pyarrow.csv.CSVWriter
            writer = kind(path, batch.schema)
        writer.write_table(batch)
    writer.close()


def on_a_cluster(rows, columns, workers):
    """CPU of all processes for a fit on a local cluster, beside that of a fit here."""
    import logging

    from distributed import Client, LocalCluster

    from discreet.adapters import DaskEngine
    from discreet.linear import Partitions

    folder = Path(tempfile.mkdtemp())
    for part in range(2 * workers):
        write(str(folder / f"part-{part}.parquet"), rows // (2 * workers), columns)
    files = Partitions(folder / "part-*.parquet")
    warm(columns)
    here = cpu(lambda: model(unsafe_seed=1).fit(files, y="label"))
    options = {"dashboard_address": None, "silence_logs": logging.CRITICAL, "threads_per_worker": 1}
    with LocalCluster(n_workers=workers, **options) as cluster, Client(cluster) as client:
        engine = DaskEngine(client, memory=2**28)
        model().fit(files, y="label", engine=engine)  # compiled everywhere

        def spent():
            return time.process_time() + sum(client.run(time.process_time).values())

        before, begun = spent(), time.time()
        found = model(unsafe_seed=1).fit(files, y="label", engine=engine)
        after, took = spent(), time.time() - begun
    local = model(unsafe_seed=1).fit(files, y="label")
    return {
        "here": here,
        "cluster": after - before,
        "same bits": bool(np.array_equal(local.coef_, found.coef_)),
        "s a release": took / 56,
    }


LINES = {
    "kept": kept,
    "sklearn": against_sklearn,
    "mapped": mapped,
    "file": from_file,
    "cluster": on_a_cluster,
}


def apart(name, *known):
    """A line in a process of its own."""
    command = [sys.executable, __file__, "--line", json.dumps([name, *known])]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode:
        return {"failed": found.stderr.strip().splitlines()[-1]}
    return json.loads(found.stdout.strip().splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="a tenth of the rows")
    parser.add_argument("--line", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.line:
        name, *known = json.loads(options.line)
        print(json.dumps(LINES[name](*known)))
        return
    few = 10 if options.small else 1
    cases = {
        "1e6 x 20, not kept / kept": ("kept", 10**6 // few, 20),
        "1e6 x 50, not kept / kept": ("kept", 10**6 // few, 50),
        "1e6 x 20 beside scikit-learn": ("sklearn", 10**6 // few, 20),
        "memory map 1e8 x 2": ("mapped", 10**8 // few, 2),
        "CSV 5e6 x 20": ("file", "csv", 5 * 10**6 // few, 20),
        "Parquet 5e6 x 20": ("file", "parquet", 5 * 10**6 // few, 20),
        "cluster 4e6 x 20, 2 workers": ("cluster", 4 * 10**6 // few, 20, 2),
    }
    rows, targets = [], Targets()
    for title, case in cases.items():
        found = apart(*case)
        shown = ", ".join(
            f"{key} {value:.3g}" if isinstance(value, float) else f"{key} {value}"
            for key, value in found.items()
        )
        rows.append([title, shown])
        print(title, shown, flush=True)
        if "failed" in found:
            continue
        if case[0] == "kept":
            targets.limit("CPU, not kept over kept", 1.3, {title: found["not kept"] / found["kept"]})
        if case[0] == "sklearn":
            targets.limit("CPU, ours over pipeline", 1.2, {title: found["ours"] / found["pipeline"]})
            targets.limit("CPU of predict over scikit-learn", 2, {title: found["predict"]})
        if case[0] == "mapped":
            targets.limit("MB beyond the input", 512, {title: found["MB"]})
        if case[0] == "file":
            targets.limit("MB resident", 717, {title: found["MB"]})
        if case[0] == "cluster":
            targets.limit("CPU, cluster over here", 1.3, {title: found["cluster"] / found["here"]})
            targets.limit("seconds a release", 0.1, {title: found["s a release"]})
    table(
        "Tables of any size" + (", a tenth of the rows" if options.small else ""), ("case", "measured"), rows
    )
    targets.print()


if __name__ == "__main__":
    main()
