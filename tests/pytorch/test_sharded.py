"""Models sharded by fully_shard: the sums of one process, noise on the own shard, checkpoints, refusals."""

import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from discreet import Recipe
from discreet.certificate import Certificate
from discreet.errors import CheckFailed, InvalidParameter
from discreet.pytorch import PrivateRun, check
from discreet.pytorch.distributed import Processes

HELPERS = """
import collections, copy, json, os, sys, warnings
warnings.filterwarnings("ignore")
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from discreet import Recipe
from discreet.core.clipping import AdaptiveClip, Flat
from discreet.core.randomness import RandomStream
from discreet.errors import CheckFailed, PlanViolation
from discreet.events import Gaussian
from discreet.pytorch import PrivateRun
from discreet.pytorch.checks.spot_check import SpotCheck
from discreet.pytorch.checks import model_guard
from discreet.trusted import permits as running
from discreet.pytorch import sharded as sharding
from discreet.pytorch.clipped_sum import ClippedSum
from discreet.pytorch.mapped_gradients import per_example_gradients

torch.set_num_threads(1)
place = sys.argv[1]
dist.init_process_group("gloo")
rank, found = dist.get_rank(), {}
SpotCheck.is_due = lambda self: False  # checks by chance would gather the model once more
model_guard.ONE_IN = 10**12

# ---- models whose dimensions do not divide by two, one with a weight of a single row ----

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 9), nn.Linear(9, width)

    def forward(self, x):
        return x + self.down(functional.gelu(self.up(self.norm(x))))

class Reader(nn.Module):
    def __init__(self, width=6, words=11, blocks=2):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.score, self.head = nn.Linear(width, 1), nn.Linear(width, words, bias=False)

    def forward(self, tokens):
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x * torch.sigmoid(self.score(x)))

def losses(model, tokens):
    scores = model(tokens[:, :-1])
    each = functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
    return each.view(len(tokens), -1).sum(1)

def sharded(plain):
    model = copy.deepcopy(plain)
    for part in getattr(model, "blocks", ()):
        fully_shard(part)
    return fully_shard(model)

def read(seed=0):
    torch.manual_seed(seed)
    return Reader()

def gradient(model, plan):
    return {name: value.grad.full_tensor() * plan.divisor for name, value in model.named_parameters()}

def difference(one, other):
    longest = max(float(value.norm()) for value in other.values())
    return max(float((one[name] - other[name]).norm()) for name in other) / longest

def begun(plan, model, losses=losses, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = PrivateRun(plan, model, optimizer, losses, **options)
    if plan.clip_norm == QUIET.clip_norm:
        run._noises[0].draws = {"sum": running.Draw(Gaussian(1e-9))}  # less than any plan may have
    return run

DATA = torch.randint(0, 11, (7, 6), generator=torch.Generator().manual_seed(1))
QUIET = Recipe(7, sampling="full-batch", steps=3, clip_norm=4.0).with_noise(1.0, delta=1e-3)

def ended():
    with open(f"{place}/{rank}.json", "w") as file:
        json.dump(found, file)
    dist.barrier()
    os._exit(0)  # gloo's threads may abort the interpreter on its way out
"""

TOGETHER = (
    HELPERS
    + """
# ---- sums: four records here, three there, in parts of three and as one ----

import torch.distributed.fsdp._fully_shard._fsdp_param_group as groups
counts = collections.Counter()
def counted(owner, name):
    function = getattr(owner, name)
    def counting(*args, **kwargs):
        counts[name] += 1
        return function(*args, **kwargs)
    setattr(owner, name, counting)
for owner, name in ((groups, "foreach_all_gather"), (groups, "foreach_reduce"), (sharding, "reduce_scatter")):
    counted(owner, name)

for size in (None, 3):
    plain = read()
    model, apart = sharded(plain), []
    norms = ClippedSum(plain, losses, Flat(4.0)).norms(DATA)
    run = begun(QUIET, model, physical_batch_size=size)
    for batch in run.batches(DATA):
        expected = ClippedSum(plain, losses, Flat(4.0))(DATA)
        counts.clear()
        run.step(batch)
        found[f"counts {size}"] = dict(counts)
        apart.append(difference(gradient(model, QUIET), expected))
        with torch.no_grad():
            for name, value in plain.named_parameters():
                value -= 0.1 * expected[name] / QUIET.divisor
            model(DATA)  # an evaluation in between leaves some layers whole
    found[f"apart {size}"] = apart
    found["clipped"] = [float(norms.min()), float(norms.max())]
found["gathers"] = run._sharded._gathers_all
counts.clear()
losses(sharded(read()), DATA).sum().backward()
found["counts of a plain step"] = dict(counts)

# ---- the broken twin measures its own shard of a gradient only ----

plain, model = read(), sharded(read())
run = begun(QUIET, model)
def of_own_shard(gradients, blocks):
    rows = per_example_gradients(plain, losses, DATA[rank::2]).values()
    parts = [row[:, run._processes.part(row.shape[1])].flatten(1) for row in rows]
    norms = torch.cat(parts, 1).double().norm(dim=1, keepdim=True)
    return torch.from_numpy(run._sum.rule.factors(norms.numpy()))
run._sum.weights_of = of_own_shard
run.step(next(run.batches(DATA)))
found["own norms"] = difference(gradient(model, QUIET), ClippedSum(plain, losses, Flat(4.0))(DATA))

# ---- Poisson batches, some of them empty in one process ----

plan = Recipe(7, batch_size=1, steps=6, clip_norm=4.0).with_noise(1.0, delta=1e-3)
plain, apart, sizes = read(), [], []
model = sharded(plain)
run = begun(plan, model, physical_batch_size=1, unsafe_seed=0)
for batch in run.batches(DATA):
    here = run._turns.drawn_for(batch, batch.step).batch
    everywhere = [None, None]
    dist.all_gather_object(everywhere, here)
    sizes.append([0 if part is None else len(part) for part in everywhere])
    run.step(batch)
    together = torch.cat([DATA[:0], *(part for part in everywhere if part is not None)])
    expected = ClippedSum(plain, losses, Flat(4.0))(together)
    if sum(sizes[-1]):
        apart.append(difference(gradient(model, plan), expected))
    with torch.no_grad():
        for name, value in plain.named_parameters():
            value -= 0.1 * expected[name] / plan.divisor
found["poisson"], found["sizes"] = apart, sizes

# ---- what has no rule is worked out with the whole model ----

class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.norm = nn.Parameter(torch.randn(5, 4)), nn.LayerNorm(4)

    def forward(self, x):
        return self.norm(x) @ (self.weight / self.weight.norm()).T

torch.manual_seed(3)
plain, rows = Scaled(), torch.randn(7, 4, generator=torch.Generator().manual_seed(2))
model = sharded(plain)
run = begun(QUIET, model, lambda model, x: model(x).square().sum(1))
run.step(next(run.batches(rows)))
expected = ClippedSum(plain, lambda model, x: model(x).square().sum(1), Flat(4.0))(rows)
found["no rule"] = [difference(gradient(model, QUIET), expected), run._sharded._gathers_all]

# ---- a clip norm that follows, correlated noise ----

adaptive = AdaptiveClip(1.0, batch_size=3.0, count_noise=5.0)
plan = Recipe(8, batch_size=2, steps=2).with_noise(2.0, delta=1e-3)
run = begun(plan, sharded(read()), clipping=adaptive)
for batch in run.batches(DATA):
    run.step(batch)
found["adapted"] = run._clipping[0].clip_norm
plan = Recipe(8, batch_size=2, epochs=1, sampling="random-allocation", bands=2).with_noise(2.0, delta=1e-3)
run = begun(plan, sharded(read()))
for batch in run.batches(DATA):
    run.step(batch)
found["remembered"] = run._correlated[0]._past[0].numel()
found["own"] = sum(value.to_local().numel() for value in run._parameters.values())
found["weights"] = sum(value.numel() for value in run._parameters.values())

# ---- noise: one draw for each number ----

drawn, add_noise = [], running.add_noise
def counted_noise(total, *rest, **more):
    drawn.append(total.value.numel())
    return add_noise(total, *rest, **more)

def noise_of(change):
    plan = Recipe(7, sampling="full-batch", steps=1).with_noise(2.0, delta=1e-3)
    model = fully_shard(nn.Linear(200, 200, bias=False))
    run = begun(plan, model, lambda model, x: 0 * model(x).sum(1))
    change(run)
    run.step(next(run.batches(torch.ones(7, 200))))
    return gradient(model, plan)["weight"].flatten().numpy()

running.add_noise = counted_noise
np.save(f"{place}/honest-{rank}.npy", noise_of(lambda run: None))
found["drawn"] = list(drawn)

def for_everybody(run):
    plain = run._sharded.__class__.__call__
    def noisy(examples, count, leg):  # each adds to the sums of all shards before they meet
        sums = plain(run._sharded, examples, count)
        other = torch.zeros(40_000)
        add_noise(running.BoundedSum(other, 1.0), run._noises[0].draws["sum"].noise, run._stream, out=other)
        dist.all_reduce(other)
        sums.vector += other.view(2, -1)[rank]
        return sums, None
    run._sum_up = noisy
    run._add_noise = lambda *of_step: None

np.save(f"{place}/for_everybody-{rank}.npy", noise_of(for_everybody))
the_same = lambda run: setattr(run, "_stream", RandomStream(unsafe_seed=1))
np.save(f"{place}/the_same-{rank}.npy", noise_of(the_same))
running.add_noise = add_noise

# ---- stopping and going on ----

plan = Recipe(7, batch_size=3, steps=4).with_noise(2.0, delta=1e-3)

def with_adam(**options):
    model = sharded(read())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return model, optimizer, PrivateRun(plan, model, optimizer, losses, ledger=f"{place}/ledger", **options)

model, optimizer, run = with_adam()
batches = run.batches(DATA)
for _ in range(2):
    run.step(next(batches))
run.save(f"{place}/checkpoint")
kept = {name: value.full_tensor() for name, value in model.named_parameters()}
moments = [optimizer.state[value]["exp_avg"].full_tensor() for value in model.parameters()]
if rank == 0:
    np.savez(f"{place}/kept.npz", **{name: value.detach().numpy() for name, value in kept.items()})
    run._till.ledger.close()
dist.barrier()
model, optimizer, run = with_adam()
model(DATA)  # which leaves some layers whole
run.resume(f"{place}/checkpoint")
found["resumed"] = [
    run.steps_taken,
    all(torch.equal(kept[name], value.full_tensor()) for name, value in model.named_parameters()),
    all(
        torch.equal(before, optimizer.state[value]["exp_avg"].full_tensor())
        for before, value in zip(moments, model.parameters(), strict=True)
    ),
]
for batch in run.batches(DATA):
    run.step(batch)
found["after"] = run.steps_taken
found["certificate"] = run.certificate().to_json()
if rank == 0:
    run._till.ledger.close()

# ---- refusals ----

from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy
from torch.distributed.tensor import Shard

def half_sharded():
    model = read()
    fully_shard(model, ignored_params={model.head.weight})
    return model

makers = {
    "replicas": lambda: fully_shard(read(), mesh=init_device_mesh("cpu", (1, 2), mesh_dim_names=("a", "b"))),
    "rounding": lambda: fully_shard(read(), mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16)),
    "half": half_sharded,
    "columns": lambda: fully_shard(nn.Linear(6, 11, bias=False), shard_placement_fn=lambda p: Shard(1)),
    "offload": lambda: fully_shard(read(), offload_policy=CPUOffloadPolicy(pin_memory=False)),
}
for name, make in makers.items():
    try:
        begun(QUIET, make())
        found[name] = "begun"
    except CheckFailed as refusal:
        found[name] = str(refusal)

def mixing(model, tokens):
    values = losses(model, tokens)
    return values - values.mean() / 2 if rank else values

run = begun(QUIET, sharded(read()), mixing)
try:
    run.step(next(run.batches(DATA)))
except (CheckFailed, PlanViolation) as refusal:
    found["mixing"] = [type(refusal).__name__, str(refusal)]
found["mixing steps"] = run.steps_taken
ended()
"""
)


def started(place, script, processes=2):
    """The script under torchrun; what each process found."""
    Path(place, "train.py").write_text(script)
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        f"--nproc-per-node={processes}",
        "--max-restarts=0",
    ]
    meeting = ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1"]
    done = subprocess.run(
        [*torchrun, *meeting, str(place / "train.py"), str(place)],
        env=os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": ""},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(Path(place, f"{rank}.json").read_text()) for rank in range(processes)]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("sharded")


@pytest.fixture(scope="module")
def both(place):
    return started(place, TOGETHER)


pytestmark = pytest.mark.network

CLOSE = 2e-6
"""Relative, in float32."""


def test_sums_are_those_of_one_process_whatever_the_parts(both):
    for found in both:
        assert max(found["apart None"] + found["apart 3"]) < CLOSE
        assert found["clipped"][0] < 4.0 < found["clipped"][1]
        assert not found["gathers"]


def test_a_step_gathers_as_often_as_a_plain_one_and_adds_up_each_bucket_once(both):
    plain = both[0]["counts of a plain step"]
    assert both[0]["counts None"] == {
        "foreach_all_gather": plain["foreach_all_gather"],
        "reduce_scatter": plain["foreach_reduce"],
    }


def test_norms_of_the_own_shard_are_noticed(both):
    assert min(found["own norms"] for found in both) > 1000 * CLOSE


def test_empty_batches_keep_step(both):
    sizes = both[0]["sizes"]
    assert any(0 in pair and sum(pair) for pair in sizes)
    assert max(both[0]["poisson"]) < CLOSE


def test_models_without_rules_are_right_too(both):
    apart, gathered = both[0]["no rule"]
    assert apart < CLOSE
    assert gathered


def test_clip_norms_follow_alike_and_noise_is_remembered_for_the_own_shard(both):
    assert both[0]["adapted"] == both[1]["adapted"] != 1.0
    for found in both:
        assert found["remembered"] == found["own"]
    assert sum(found["own"] for found in both) == both[0]["weights"]


def is_noise_of_the_plan(noise, std=2.0):
    """Whether 40 000 numbers are independent noise of this standard deviation, by six standard errors.

    A false alarm in a hundred million runs.
    """
    noise = noise.astype(float) / std
    spread = abs(np.square(noise).mean() - 1) < 6 * np.sqrt(2 / noise.size)
    return bool(spread and abs((noise[:20_000] * noise[20_000:]).mean()) < 6 / np.sqrt(20_000))


def test_every_number_gets_the_noise_of_the_plan_once_from_one_process(both, place):
    assert is_noise_of_the_plan(np.load(place / "honest-0.npy"))
    assert both[0]["drawn"] == both[1]["drawn"] == [20_000]


@pytest.mark.parametrize("name", ["for_everybody", "the_same"])
def test_other_noise_is_noticed(both, place, name):
    assert not is_noise_of_the_plan(np.load(place / f"{name}-0.npy"))


def test_a_checkpoint_goes_on_where_it_was(both):
    for found in both:
        assert found["resumed"] == [2, True, True]
        assert found["after"] == 4
    certificate = Certificate.from_json(both[1]["certificate"])
    assert list(certificate.ledger.spent().values()) == [4]
    certificate.verify()


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 9), nn.Linear(9, width)


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(11, 6)
        self.blocks = nn.ModuleList(Block(6) for _ in range(2))
        self.score, self.head = nn.Linear(6, 1), nn.Linear(6, 11, bias=False)


@pytest.mark.usefixtures("both")
def test_a_sharded_checkpoint_is_read_by_one_process_and_not_when_altered(place):
    plan = Recipe(7, batch_size=3, steps=4).with_noise(2.0, delta=1e-3)
    model = Reader()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    run = PrivateRun(plan, model, optimizer, lambda model, batch: batch.sum(1), ledger=place / "ledger")
    run.resume(place / "checkpoint")
    kept = np.load(place / "kept.npz")
    for name, value in model.named_parameters():
        assert np.array_equal(kept[name], value.detach().numpy())
    assert run.steps_taken == 4
    run._till.ledger.close()
    files = sorted((place / "checkpoint").glob("tensors-*.safetensors"))
    assert len(files) == 2
    content = files[1].read_bytes()
    files[1].write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    run = PrivateRun(plan, model, optimizer, lambda model, batch: batch.sum(1), ledger=place / "ledger")
    with pytest.raises(InvalidParameter, match="altered"):
        run.resume(place / "checkpoint")
    run._till.ledger.close()
    files[1].write_bytes(content)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("replicas", "sharded in another way"),
        ("columns", "sharded in another way"),
        ("rounding", "mp_policy"),
        ("offload", "offload_policy"),
        ("half", "'head.weight' is not sharded while others are"),
    ],
)
def test_other_kinds_of_sharding_are_refused(both, name, message):
    assert message in both[0][name]
    assert message in both[1][name]


def test_a_refusal_of_one_process_is_a_refusal_of_all(both):
    assert both[1]["mixing"][0] == "CheckFailed"
    assert both[0]["mixing"][0] == "PlanViolation"
    assert "Another process refused" in both[0]["mixing"][1]
    assert both[0]["mixing steps"] == both[1]["mixing steps"] == 0


@pytest.fixture
def process_group():
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def sum_of_outputs(model, batch):
    return functional.relu(model(batch)).sum(1)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("process_group")
def test_tensors_that_are_distributed_otherwise_are_refused_by_the_name_of_a_parameter():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import distribute_tensor

    model = nn.Linear(3, 2)
    mesh = init_device_mesh("cpu", (1,))
    model.weight = nn.Parameter(distribute_tensor(model.weight.detach(), mesh))
    plan = Recipe(records=100, batch_size=10, epochs=1).with_noise(2.0, delta=1e-3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(CheckFailed, match="'weight' is sharded over processes"):
        PrivateRun(plan, model, optimizer, sum_of_outputs)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("process_group")
def test_one_process_may_shard_too_and_is_told_to_check_before():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard

    from discreet.pytorch.sharded import Shards

    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    model.load_state_dict(plain.state_dict())
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    with pytest.raises(CheckFailed, match="check it before fully_shard"):
        check(model, sum_of_outputs, torch.ones(4, 3))
    with Shards(model, Processes()).whole():  # a plain model, of which a twin in float64 can be made
        twin = copy.deepcopy(model)
        assert type(twin) is type(model) is nn.Sequential
        assert torch.equal(twin(torch.ones(4, 3)), plain(torch.ones(4, 3)))
    assert isinstance(model, FSDPModule)
    plan = Recipe(records=20, batch_size=10, steps=3).with_noise(2.0, delta=1e-3)
    for net in (plain, model):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        run = PrivateRun(plan, net, optimizer, sum_of_outputs, unsafe_seed=1)
        for batch in run.batches(torch.ones(20, 3)):
            run.step(batch)
    for one, other in zip(plain.parameters(), model.parameters(), strict=True):
        assert torch.allclose(one, other.full_tensor(), atol=1e-5)
