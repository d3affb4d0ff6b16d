"""Tables of any size, as ratios in one run: rows that are kept, not kept, mapped, in files, and on a cluster.

And networks in shards: a private step of a model that is spread over two processes by FSDP2, over a plain step of it.

Every line runs in a process of its own, so that its memory is its own. CPU time counts, not the clock. ``--small``
takes a tenth of the rows, ``--only sharded`` (or another line) some of the cases. Run with ``make bench-scale``.
"""

import argparse
import atexit
import json
import os
import shutil
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


def new_folder():
    """A folder that is gone when the process ends."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


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
    folder = new_folder()
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


def sparse(rows, columns):
    """Memory beyond the input over its size, and CPU, of a sparse table with 38 entries in a row."""
    import scipy.sparse as sp

    rng = np.random.default_rng(0)
    common = np.cumsum(np.arange(1.0, columns + 1) ** -0.7)
    places = np.searchsorted(common / common[-1], rng.random(38 * rows)).astype(np.int32)
    starts = np.arange(0, 38 * rows + 1, 38, dtype=np.int32)
    x = sp.csr_array((10 * rng.random(38 * rows), places, starts), shape=(rows, columns))
    x.sum_duplicates()
    score = x @ rng.standard_normal(columns)
    y = (score > np.median(score)).astype(np.int8)
    model().fit(x[:5000], y[:5000])
    before, most = resident("RssAnon"), Peak()
    seconds = cpu(lambda: model(verbose=most).fit(x, y))
    size = (x.data.nbytes + x.indices.nbytes + x.indptr.nbytes) / 2**20
    return {"over size": (most.anonymous - before) / size, "CPU s": seconds, "size MB": size}


def from_file(kind, rows, columns):
    """Everything a process takes that fits a file."""

    folder = new_folder()
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
    """CPU of all processes for a fit on a local cluster beside a fit here, and what a release costs by itself.

    The latter is measured on small files, where next to nothing is left to be added up. Dask is set as in
    examples/dask.yaml, unless DASK_CONFIG says otherwise.
    """
    import logging

    os.environ.setdefault("DASK_CONFIG", str(Path(__file__).parents[1] / "examples" / "dask.yaml"))

    from distributed import Client, LocalCluster

    from discreet.adapters import DaskEngine
    from discreet.linear import Partitions

    folder = new_folder()
    for part in range(2 * workers):
        write(str(folder / f"part-{part}.parquet"), rows // (2 * workers), columns)
        write(str(folder / f"small-{part}.parquet"), 2000, columns)
    files, small = Partitions(folder / "part-*.parquet"), Partitions(folder / "small-*.parquet")
    warm(columns)
    start = time.process_time()
    local = model(unsafe_seed=1).fit(files, y="label")
    here = time.process_time() - start
    options = {"dashboard_address": None, "silence_logs": logging.CRITICAL, "threads_per_worker": 1}
    with LocalCluster(n_workers=workers, **options) as cluster, Client(cluster) as client:
        engine = DaskEngine(client, memory=2**26)

        def spent():
            return time.process_time() + sum(client.run(time.process_time).values())

        def measured(table):
            before, begun = spent(), time.time()
            found = model(unsafe_seed=1).fit(table, y="label", engine=engine)
            return found, spent() - before, time.time() - begun

        measured(small)  # compiled everywhere
        found, there, _ = measured(files)
        _, overhead, took = min((measured(small) for _ in range(3)), key=lambda one: one[1])
    return {
        "here": here,
        "cluster": there,
        "same bits": bool(np.array_equal(local.coef_, found.coef_)),
        "CPU s a release": overhead / 56,
        "s a release": took / 56,
    }


def sharded(width, batch, rounds):
    """CPU of private steps of a GPT in shards over that of plain ones, in two processes."""
    torchrun = [
        "-m",
        "torch.distributed.run",
        "--nproc-per-node=2",
        "--max-restarts=0",
        "--local-addr=127.0.0.1",
    ]
    meeting = ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"]
    line = [__file__, "--line", json.dumps(["one_of_two", width, batch, rounds])]
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "PYTHONWARNINGS": "ignore"}
    found = subprocess.run(
        [sys.executable, *torchrun, *meeting, *line],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    return json.loads(next(text for text in found.stdout.splitlines() if text.startswith("{")))


def one_of_two(width, batch, rounds):
    """What each process does: plain and private steps in turns, and how often layers are gathered in them."""
    import torch
    import torch.distributed as dist
    import torch.distributed.fsdp._fully_shard._fsdp_param_group as groups
    from torch.distributed.fsdp import fully_shard

    from discreet import Recipe
    from discreet.pytorch import PrivateRun
    from pytorch import GPT, TIME, VOCABULARY

    def losses(net, tokens):
        scores = net(tokens[:, :-1])
        return torch.nn.functional.cross_entropy(
            scores.transpose(1, 2), tokens[:, 1:], reduction="none"
        ).mean(1)

    def model_and_optimizer():
        torch.manual_seed(0)
        net = GPT(width=width)
        for block in net.blocks:
            fully_shard(block)
        return fully_shard(net), torch.optim.AdamW(net.parameters(), 1e-4)

    gathered, gather = [0], groups.foreach_all_gather

    def counted(*args, **kwargs):
        gathered[0] += 1
        return gather(*args, **kwargs)

    groups.foreach_all_gather = counted
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    net, optimizer = model_and_optimizer()
    plan = Recipe(2 * batch, sampling="full-batch", steps=rounds + 3).with_noise(1.0, delta=1e-5)
    run = PrivateRun(plan, *model_and_optimizer(), losses)
    tokens = torch.randint(0, VOCABULARY, (2 * batch, TIME + 1), generator=torch.Generator().manual_seed(0))
    own, batches = tokens[dist.get_rank() :: 2], run.batches(tokens)

    def plain():
        losses(net, own).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    def measured(step):
        dist.barrier()
        gathered[0] = 0
        spent = torch.tensor([cpu(step)], dtype=torch.float64)
        dist.all_reduce(spent)
        return float(spent), gathered[0]

    pairs = [(measured(plain), measured(lambda: run.step(next(batches)))) for _ in range(rounds + 3)][3:]
    if dist.get_rank() == 0:
        ratios = [private[0] / plain[0] for plain, private in pairs]
        found = {
            "CPU, private over plain": float(np.median(ratios)),
            "plain s": float(np.median([plain[0] for plain, _ in pairs])),
            "gathered": min(private[1] for _, private in pairs),
            "gathered by plain": min(plain[1] for plain, _ in pairs),
        }
        print(json.dumps(found), flush=True)
    dist.barrier()
    os._exit(0)  # gloo's threads may abort the interpreter on its way out


LINES = {
    "kept": kept,
    "sklearn": against_sklearn,
    "mapped": mapped,
    "sparse": sparse,
    "file": from_file,
    "cluster": on_a_cluster,
    "sharded": sharded,
    "one_of_two": one_of_two,
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
    parser.add_argument("--only", choices=[*LINES], help="the cases of one line")
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
        "CSR 1e5 x 1000": ("sparse", 10**5 // few, 1000),
        "CSR 3e5 x 5000": ("sparse", 3 * 10**5 // few, 5000),
        "CSV 5e6 x 20": ("file", "csv", 5 * 10**6 // few, 20),
        "Parquet 5e6 x 20": ("file", "parquet", 5 * 10**6 // few, 20),
        "cluster 1e7 x 50, 4 workers": ("cluster", 10**7 // few, 50, 4),
        "GPT of width 256 in shards, 16 examples each": ("sharded", 256, 16, 15),
        "GPT of width 512 in shards, 16 examples each": ("sharded", 512, 16, 9),
    }
    cases = {title: case for title, case in cases.items() if options.only in (None, case[0])}
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
            targets.limit("CPU, ours over LogisticRegression", 1.2, {title: found["ours"] / found["bare"]})
            targets.limit("CPU of predict over scikit-learn", 2, {title: found["predict"]})
        if case[0] == "mapped":
            targets.limit("MB beyond the input", 512, {title: found["MB"]})
        if case[0] == "sparse":
            targets.limit("memory beyond a sparse table over its size", 4, {title: found["over size"]})
            targets.limit("CPU seconds of a sparse table", 120, {title: found["CPU s"]})
        if case[0] == "file":
            targets.limit("MB resident", 717, {title: found["MB"]})
        if case[0] == "sharded":
            targets.limit(
                "CPU of a step, private over plain", 1.25, {title: found["CPU, private over plain"]}
            )
            targets.limit("more all-gathers", 0, {title: found["gathered"] - found["gathered by plain"]})
        if case[0] == "cluster":
            targets.limit("CPU, cluster over here", 1.3, {title: found["cluster"] / found["here"]})
            targets.limit("CPU seconds of a release by itself", 0.1, {title: found["CPU s a release"]})
    table(
        "Tables of any size" + (", a tenth of the rows" if options.small else ""), ("case", "measured"), rows
    )
    targets.print()


if __name__ == "__main__":
    main()
