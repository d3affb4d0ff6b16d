"""Each extension point, used from outside of the package in ten lines or so; and what is unknown is refused."""

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import pytest
from numpy.testing import assert_allclose

import discreet as dp
from discreet.accounting.pairs import DiscretePair
from discreet.core.clipping import ClipRule, Flat
from discreet.core.sampling import PoissonSampler
from discreet.errors import InvalidParameter, UnsupportedEvent
from discreet.events import Event, registered
from discreet.ledger import FixedPlan, Ledger
from discreet.linear import PrivateLinearRegression
from discreet.linear.losses import Loss
from discreet.parties import Coordinator, Transport
from discreet.parties.messages import Roster
from discreet.plan import Plan, add_sampling
from discreet.plan.stage import SAMPLERS
from support.parties_bank import ROSTER, SIZES, holders, party_of, study


@registered
@dataclass(frozen=True)
class Alarm(Event):
    """It rings with probability ``here`` if the record is there, else with probability ``gone``."""

    here: float
    gone: float
    kind: ClassVar[str] = "test-alarm"

    def dominating_pair(self, neighbours, group_size):
        p, q = np.array([1 - self.here, self.here]), np.array([1 - self.gone, self.gone])
        return DiscretePair(np.log(p / q), p, q) if (neighbours, group_size) == ("add-remove", 1) else None

    def to_dict(self):
        return {"event": self.kind, "here": self.here, "gone": self.gone}


def ringing(event, times, epsilon):
    """The oracle: the divergence of two binomials, in both directions."""
    counts = np.arange(times + 1)
    ways = np.array([math.comb(times, k) for k in counts])
    p, q = (ways * rate**counts * (1 - rate) ** (times - counts) for rate in (event.here, event.gone))
    return max(np.maximum(a - math.exp(epsilon) * b, 0).sum() for a, b in ((p, q), (q, p)))


def test_an_event():
    alarm = Alarm(0.6, 0.4)
    curve = dp.account(alarm * 7)
    for epsilon in (0.0, 0.5, 2.0):
        lower, upper = curve.delta_bounds(epsilon)
        assert lower <= ringing(alarm, 7, epsilon) * (1 + 1e-9)
        assert ringing(alarm, 7, epsilon) <= upper * (1 + 1e-9)
        assert upper - lower < 1e-3
    assert Event.from_json((alarm * 7).to_json()) == alarm * 7
    budget = dp.Budget(3.0, 1e-3)
    with Ledger.in_memory(FixedPlan(alarm * 7, budget)) as ledger:
        plan = Plan.adaptive("alarms", FixedPlan(alarm * 7, budget))
        ledger.run(alarm * 7, plan.digest()).reserve(7)
        assert dp.Certificate.of(ledger, plan).verify().guarantee.within(budget)


def test_an_event_without_a_theorem_is_refused():
    for options in ({"neighbours": "replace-one"}, {"group_size": 2}):
        with pytest.raises(UnsupportedEvent, match="brings no dominating_pair"):
            dp.account(Alarm(0.6, 0.4), **options)

    @dataclass(frozen=True)
    class Unknown(Event):
        kind: ClassVar[str] = "test-unknown"

    with pytest.raises(UnsupportedEvent, match="not an event that the accountant knows"):
        dp.account(Unknown())
    with pytest.raises(InvalidParameter, match="is not an event"):
        Event.from_dict({"event": "test-unknown"})
    with pytest.raises(InvalidParameter, match="kind of another event"):
        registered(Alarm)


def test_a_loss_that_does_not_say_its_kind_is_refused():
    @dataclass(frozen=True)
    class Half(Loss):
        def accepts(self, y):
            return np.isfinite(y)

        def residual(self, u, y):
            return u - y

        def value(self, u, y):
            return (u - y) ** 2 / 2

        def mean(self, u):
            return u

    x = np.linspace(0, 1, 50)[:, None]
    for loss in (Half, "hinge", 5):
        with pytest.raises(InvalidParameter, match="loss="):
            PrivateLinearRegression(
                epsilon=1.0, bounds=(0, 1), target_bounds=(0, 1), loss=loss() if loss is Half else loss
            ).fit(x, x[:, 0])


@dataclass(frozen=True)
class Soft(ClipRule):
    """Shorter all along, instead of cut at once."""

    clip_norm: float

    def wanted(self, norms):
        return self.clip_norm / np.hypot(norms, self.clip_norm)


@dataclass(frozen=True)
class Greedy(ClipRule):
    """A broken twin: it wants to keep everything, and more."""

    clip_norm: float
    wish: object = 1e9

    def wanted(self, norms):
        return np.broadcast_to(self.wish, norms.shape) if np.ndim(self.wish) == 0 else self.wish


def test_a_clip_rule():
    norms = np.array([[0.0], [1e-30], [0.5], [2.0], [1e300], [np.inf], [np.nan]])
    assert_allclose(Soft(2.0).factors(norms[:4])[:, 0], 2 / np.hypot(norms[:4, 0], 2.0), rtol=1e-9)
    for rule in (Soft(2.0), Greedy(2.0)):
        factors = rule.factors(norms)
        assert np.all(factors[:5, 0] * norms[:5, 0] <= 2.0)
        assert np.all(factors[5:] == Flat(2.0).factors(norms[5:]))
    for wish in (-1.0, np.nan, np.inf, np.ones(3)):
        with pytest.raises(InvalidParameter, match="must want one factor"):
            Greedy(2.0, wish).factors(norms)
    with pytest.raises(NotImplementedError, match="wants"):
        type("Empty", (ClipRule,), {"clip_norm": 1.0})().factors(norms)


def test_a_clip_rule_of_a_run():
    torch = pytest.importorskip("torch")
    from discreet.pytorch import PrivateRun

    def moved(rule, records):
        model = torch.nn.Linear(2, 1, bias=False)
        torch.nn.init.zeros_(model.weight)
        plan = dp.Recipe(4, steps=1, sampling="full-batch", clip_norm=2.0).with_noise(1e-3, delta=1e-3)
        run = PrivateRun(
            plan, model, torch.optim.SGD(model.parameters(), 1.0), losses, clipping=rule, unsafe_seed=1
        )
        for batch in run.batches(records):
            run.step(batch)
        return model.weight.detach().numpy()[0] * -4

    def losses(model, batch):
        return (model(batch) * 1.0).squeeze(1)

    records = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0], [0.0, 0.0]])
    expected = sum(row * 2 / np.hypot(np.linalg.norm(row), 2) for row in records.numpy())
    assert_allclose(moved(Soft(2.0), records), expected, atol=0.02)
    assert np.linalg.norm(moved(Greedy(2.0), records)) <= 2 * 2.0 + 0.02  # two records that are not zero
    for rule in (Soft(1.0), lambda norms: 1.0, "soft"):
        with pytest.raises(InvalidParameter, match="clipping"):
            moved(rule, records)


@dataclass(frozen=True)
class EveryOther(PoissonSampler):
    """Poisson batches of the even records only, to be recognised: the event of all of them covers it."""

    def batches(self, steps, stream=None, *, rows=None):
        return (batch[batch % 2 == 0] for batch in super().batches(steps, stream, rows=rows))


@pytest.fixture
def every_other():
    add_sampling("every-other", lambda records, size: EveryOther(records, size / records))
    yield
    del SAMPLERS["every-other"]


def test_a_sampler(every_other):
    plan = dp.Recipe(1000, 100, steps=20, sampling="every-other").calibrate(dp.Budget(2.0, 1e-5))
    assert plan.event == (dp.Recipe(1000, 100, steps=20).with_noise(plan.noise_multiplier, delta=1e-5).event)
    assert Plan.from_json(plan.to_json()) == plan
    assert "drawn by EveryOther (every-other)" in plan.explain()
    batches = list(plan.stage().batches())
    assert len(batches) == 20
    assert all(np.all(batch % 2 == 0) for batch in batches)


def test_an_unknown_sampler_is_refused():
    with pytest.raises(InvalidParameter, match="sampling='every-other': must be one of"):
        dp.Recipe(1000, 100, steps=20, sampling="every-other")
    text = dp.Recipe(1000, 100, steps=20).with_noise(2.0, delta=1e-5).to_dict()
    text["stages"][0]["sampling"] = "every-other"
    with pytest.raises(InvalidParameter, match="sampling"):
        Plan.from_dict(text)
    for name in ("poisson", "Every Other", "", 5):
        with pytest.raises(InvalidParameter, match="name"):
            add_sampling(name, PoissonSampler)


@dataclass
class Posted:
    """Letters, all kept."""

    parties: dict
    letters: list = field(default_factory=list)

    def ask(self, party, message, timeout):
        self.letters.append((party, message, self.parties[party].answer(message)))
        return self.letters[-1][2]

    def broadcast(self, parties, message, timeout):
        return {party: self.ask(party, message, timeout) for party in parties}


def test_a_transport():
    plan, rows = study(rounds=3), holders()
    post = Posted({name: party_of(plan, name, holder=rows[name]) for name in SIZES})
    assert isinstance(post, Transport)
    result = Coordinator(plan, post, ROSTER).run()
    assert np.isfinite(result.theta).all()
    assert {party for party, _, _ in post.letters} == set(SIZES)


def test_what_is_no_transport_is_refused():
    for transport in (None, "nvflare", object()):
        with pytest.raises(InvalidParameter, match="transport"):
            Coordinator(study(), transport, ROSTER)
    with pytest.raises(InvalidParameter, match="roster"):  # only within this process there is nothing to sign
        Coordinator(study(), Posted({}), Roster.without_wire())


def slope_rule(factor):
    """A rule for the learned slope of ``prelu``; right if ``factor`` is 1."""
    from discreet.pytorch.layer_rules.use import KeptRows, wide

    class Slope(KeptRows):
        def prepare(self, x, grad, layout):
            self.held = factor * (wide(grad) * wide(x).clamp(max=0)).flatten(1).sum(1, keepdim=True)

    def rule(record, func, args, kwargs):
        source = record.source_of(args[1])
        return func(args[0], source.value), [Slope(source, args[0])]

    return rule


@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_a_layer(factor, monkeypatch):
    torch = pytest.importorskip("torch")
    from discreet.pytorch import CheckFailed, check
    from discreet.pytorch.clipped_sum import ClippedSum
    from discreet.pytorch.layer_rules import RULES

    called = []
    rule = slope_rule(factor)
    monkeypatch.setitem(RULES, torch.prelu, lambda *call: called.append(1) or rule(*call))
    torch.manual_seed(0)
    model, batch = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.PReLU()), torch.randn(6, 3)

    def losses(model, batch):
        return model(batch).square().sum(1)

    if factor != 1.0:  # a wrong rule is caught on the user's own model
        with pytest.raises(CheckFailed, match=r"1\.weight"):
            check(model, losses, batch)
        return
    check(model, losses, batch)
    norms = ClippedSum(model, losses, Flat(1.0)).norms(batch)
    assert called
    for record, norm in zip(batch, norms, strict=True):
        model.zero_grad()
        losses(model, record[None]).sum().backward()
        alone = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
        assert_allclose(float(norm), float(alone), rtol=1e-5)
