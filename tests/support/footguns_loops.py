"""Foot-guns of training loops: what a run cannot see in the losses, and must refuse, forbid or name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from discreet import Recipe
from discreet.pytorch import PrivateRun
from support import footguns_batches, footguns_losses
from support.clip_judge import REFUSALS, Footgun, Verdict, names
from support.footguns_rows import CLASSES, FOOTGUNS, ROWS, WIDTH, losses

__all__ = ["FOOTGUNS", "footguns_batches", "footguns_losses"]  # importing those registers theirs

RECORDS = ROWS + 1


def data(rows: int = RECORDS, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(rows, WIDTH, generator=generator), torch.randint(CLASSES, (rows,), generator=generator)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, CLASSES))


class Loop:
    """A run with everything that a loop has at hand."""

    def __init__(self, loss: Any = losses, model: nn.Module | None = None, **options: Any) -> None:
        self.model = model or network()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        recipe = Recipe(records=RECORDS, steps=options.pop("steps", 4), batch_size=8)
        self.run = PrivateRun(
            recipe.with_noise(1.0, delta=1e-3), self.model, self.optimizer, loss, unsafe_seed=5, **options
        )

    def steps(self, dataset: Any = None) -> Iterator[None]:
        """Takes a step after each turn of the loop's body."""
        for batch in self.run.batches(data() if dataset is None else dataset):
            yield
            self.run.step(batch)


def loop(name: str, named: str = "") -> Callable[[Callable[[], PrivateRun | None]], Callable[..., Any]]:
    """Register a loop. It passes if it is refused, or named, or returns None because nothing could leak."""

    def register(body: Callable[[], PrivateRun | None]) -> Callable[..., Any]:
        def attempt() -> Verdict:
            try:
                run = body()
            except REFUSALS as refusal:
                return Verdict("refused", str(refusal))
            except Exception as error:
                return Verdict("CRASHED", f"{type(error).__name__}: {error}")
            if run is None:
                return Verdict("harmless")
            if named and names(run, named):
                return Verdict("named", named)
            return Verdict("BROKEN", "neither refused nor named", float("inf"))

        FOOTGUNS[name] = Footgun(name, 0, attempt)
        return body

    return register


def plain_gradients(model: nn.Module) -> None:
    losses(model, data()).mean().backward()


@loop("a second optimizer with plain gradients")
def _() -> PrivateRun:
    made = Loop()
    second = torch.optim.SGD(made.model.parameters(), lr=0.1)
    for _ in made.steps():
        plain_gradients(made.model)
        second.step()
        second.zero_grad()
    return made.run


@loop("a second optimizer after the last step", named=r"after the run|after training|edit|anything else")
def _() -> PrivateRun:
    made = Loop()
    for _ in made.steps():
        pass
    plain_gradients(made.model)
    torch.optim.SGD(made.model.parameters(), lr=0.1).step()
    return made.run


@loop("weights edited from private data between steps")
def _() -> PrivateRun:
    made = Loop()
    for _ in made.steps():
        with torch.no_grad():
            made.model[0].weight += data()[0].mean(0)
    return made.run


@loop("weights edited through .data between steps")
def _() -> PrivateRun:
    made = Loop()
    for _ in made.steps():
        made.model[0].weight.data += data()[0].mean(0)
    return made.run


@loop("a bias set to the class frequencies between steps")
def _() -> PrivateRun:
    made = Loop()
    for _ in made.steps():
        made.model[2].bias.data.copy_(data()[1].bincount(minlength=CLASSES).float().log())
    return made.run


@loop("own gradients left in place before a step")
def _() -> PrivateRun | None:
    made = Loop(steps=1)
    other = Loop(steps=1)
    for _ in made.steps():
        plain_gradients(made.model)
    for _ in other.steps():
        pass
    same = zip(made.model.parameters(), other.model.parameters(), strict=True)
    return None if all(torch.equal(a, b) for a, b in same) else made.run


@loop("a hook on a parameter reads its gradients", named="hook")
def _() -> PrivateRun | None:
    made, seen = Loop(), []
    made.model[0].weight.register_hook(lambda grad: seen.append(grad.clone()))
    for _ in made.steps():
        pass
    return made.run if seen else None


@loop("a hook after accumulation reads gradients", named="hook")
def _() -> PrivateRun | None:
    made, seen = Loop(), []
    made.model[0].weight.register_post_accumulate_grad_hook(lambda value: seen.append(value.grad.clone()))
    for _ in made.steps():
        pass
    return made.run if seen else None


@loop("a backward hook of a module reads gradients", named="hook")
def _() -> PrivateRun | None:
    made, seen = Loop(), []
    made.model[2].register_full_backward_hook(lambda module, into, out: seen.append(out[0].clone()))
    for _ in made.steps():
        pass
    return made.run if seen else None


@loop("a forward hook of a module keeps activations", named="hook")
def _() -> PrivateRun | None:
    made, seen = Loop(), []
    made.model[0].register_forward_hook(lambda module, args, out: seen.append(out.detach().clone()))
    for _ in made.steps():
        pass
    return made.run if seen else None


class Remembering(nn.Module):
    """Keeps what it has seen in a list, and is pulled towards it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.memory = network(), []

    def forward(self, x: Tensor) -> Tensor:
        out = self.inner(x)
        if self.memory:
            out = out - self.memory[-1]
        self.memory.append(out.detach().mean(0))
        return out


MEMORY = r"(model|losses).*(remember|keep|memor)"


@loop("a memory on the model", named=MEMORY)
def _() -> PrivateRun:
    made = Loop(model=Remembering())
    for _ in made.steps():
        pass
    return made.run


class Attribute(nn.Module):
    """Keeps a running mean as a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.mean = network(), torch.zeros(CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out = self.inner(x)
        self.mean = 0.9 * self.mean + 0.1 * out.detach().mean(0)
        return out


@loop("a running mean as an attribute", named=MEMORY)
def _() -> PrivateRun:
    made = Loop(model=Attribute())
    for _ in made.steps():
        pass
    return made.run


@loop("a queue of earlier records in the losses", named=MEMORY)
def _() -> PrivateRun:
    queue: list[Tensor] = []

    def contrast(model: Any, batch: Any) -> Tensor:
        z = model(batch[0])
        values = losses(model, batch)
        if queue:
            values = values + (z @ torch.cat(queue[-4:]).T).mean(1)
        queue.append(z.detach())
        return values

    made = Loop(contrast)
    for _ in made.steps():
        pass
    return made.run


@loop("losses kept by the losses function", named=MEMORY + r"|losses, accuracies")
def _() -> PrivateRun:
    kept: list[float] = []

    def noted(model: Any, batch: Any) -> Tensor:
        values = losses(model, batch)
        kept.append(float(values.detach().mean()))
        return values

    made = Loop(noted)
    for _ in made.steps():
        pass
    return made.run


@loop("three times as many rows as the plan says")
def _() -> PrivateRun:
    made = Loop()
    for _ in made.steps(data(3 * RECORDS)):
        pass
    return made.run


@loop("every record three times in the data set", named=r"more than one|several rows|group|once|person|rows")
def _() -> PrivateRun:
    x, y = data(5)
    made = Loop()
    for _ in made.steps((torch.cat([x] * 3), torch.cat([y] * 3))):
        pass
    return made.run


@loop("batches drawn again until they please")
def _() -> PrivateRun:
    made = Loop()
    for _ in range(4):
        for _ in range(5):
            batch = next(iter(made.run.batches(data())))
        made.run.step(batch)
    return made.run


@loop("another data set in the middle of the run")
def _() -> PrivateRun:
    made = Loop()
    for seed in range(4):
        made.run.step(next(iter(made.run.batches(data(seed=seed)))))
    return made.run


@loop("the data set changes while it is read", named=r"data ?set")
def _() -> PrivateRun:
    made, (x, y) = Loop(), data()
    for _ in made.steps((x, y)):
        x.mul_(0).add_(9.0)
    return made.run


@loop(
    "update_bn of a moving average after the run", named=r"after the run|batch norm|statistic|anything else"
)
def _() -> PrivateRun:
    net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, CLASSES)).eval()
    made = Loop(model=net)
    average = torch.optim.swa_utils.AveragedModel(net)
    for _ in made.steps():
        average.update_parameters(net)
    torch.optim.swa_utils.update_bn([data()[0]], average)
    return made.run


LOOKING = r"losses, accuracies|choices made by looking"


@loop("a learning rate from the private loss", named=LOOKING)
def _() -> PrivateRun:
    made = Loop()
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(made.optimizer, patience=0)
    for _ in made.steps():
        schedule.step(losses(made.model, data()).mean().detach())
    return made.run


@loop("stopping early by the private loss", named=LOOKING)
def _() -> PrivateRun:
    made = Loop()
    for _ in made.steps():
        if float(losses(made.model, data()).mean().detach()) < 1.2:
            break
    return made.run


@loop("a batch is used twice")
def _() -> PrivateRun:
    made = Loop()
    for batch in made.run.batches(data()):
        made.run.step(batch)
        made.run.step(batch)
    return made.run


@loop("a batch is left out")
def _() -> PrivateRun:
    made = Loop()
    for number, batch in enumerate(made.run.batches(data())):
        if number != 1:
            made.run.step(batch)
    return made.run


@loop("a batch of one's own")
def _() -> PrivateRun:
    made = Loop()
    made.run.step(data())
    return made.run


@loop("a loader that shuffles")
def _() -> PrivateRun:
    made = Loop()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data()), batch_size=4, shuffle=True)
    made.run.batches(loader)  # which takes its records, and draws by itself
    for batch in loader:
        made.run.step(batch)
    return made.run


@loop("more steps than planned")
def _() -> PrivateRun:
    made = Loop()
    for batch in made.run.batches(data()):
        made.run.step(batch)
    made.run.step(batch)
    return made.run


@loop("a layer is unfrozen in the middle")
def _() -> PrivateRun:
    net = network()
    net[0].requires_grad_(False)
    made = Loop(model=net)
    for number, _ in enumerate(made.steps()):
        net[0].requires_grad_(number >= 1)
    return made.run


@loop("a layer that mixes is put in later")
def _() -> PrivateRun:
    made = Loop()
    for _ in made.steps():
        made.model[1] = nn.BatchNorm1d(WIDTH)
    return made.run


@loop("a forward that is exchanged later")
def _() -> PrivateRun:
    made = Loop(steps=30)
    for number, _ in enumerate(made.steps()):
        if number == 2:
            made.model[1].forward = lambda x: x - x.mean(0)
    return made.run


@loop("an optimizer that evaluates the losses itself")
def _() -> PrivateRun:
    net = network()
    plan = Recipe(records=RECORDS, steps=2, batch_size=8).with_noise(1.0, delta=1e-3)
    run = PrivateRun(plan, net, torch.optim.LBFGS(net.parameters()), losses)
    for batch in run.batches(data()):
        run.step(batch)
    return run


@loop("a parameter that the optimizer trains and the model does not hold")
def _() -> PrivateRun:
    net, extra = network(), nn.Parameter(torch.ones(()))
    plan = Recipe(records=RECORDS, steps=2, batch_size=8).with_noise(1.0, delta=1e-3)

    def scaled(model: Any, batch: Any) -> Tensor:
        return losses(model, batch) * extra

    run = PrivateRun(plan, net, torch.optim.SGD([*net.parameters(), extra], lr=0.1), scaled)
    for batch in run.batches(data()):
        run.step(batch)
    return run


@loop("a codebook that follows the records")
def _() -> PrivateRun:
    class Codebook(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network()
            self.register_buffer("codes", torch.randn(4, WIDTH))

        def forward(self, x: Tensor) -> Tensor:
            nearest = torch.cdist(x, self.codes).argmin(1)
            self.codes = 0.9 * self.codes + 0.1 * x.detach().mean(0)
            return self.inner(x - self.codes[nearest].detach())

    made = Loop(model=Codebook())
    for _ in made.steps():
        pass
    return made.run


@loop("words rescaled in the forward pass")
def _() -> PrivateRun:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.look_up, self.inner = nn.Embedding(9, WIDTH, max_norm=1.0), network()

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(self.look_up((x * 8).long()).mean(1))

    made = Loop(model=Words())
    for _ in made.steps():
        pass
    return made.run


@loop("dropout that is the same for all, from the data", named="")
def _() -> PrivateRun:
    def seeded(model: Any, batch: Any) -> Tensor:
        torch.manual_seed(int(batch[0].sum() * 1000))
        return losses(model, (batch[0] * (torch.rand(WIDTH) < 0.5), batch[1]))

    made = Loop(seeded)
    for _ in made.steps():
        pass
    return made.run
