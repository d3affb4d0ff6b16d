"""The low bits of a message: what they showed of floating-point sums, and that they show nothing of hardened ones.

The attack (Mironov 2012; Haney et al. 2022). A coordinate of the sum that is exactly 0 leaves the noise as it is, and
noise near 0 has bits far below those of any sum of records. So a message with a bit below 2**-54 shows, with
certainty, that the coordinate was 0: that the patient is not of this sex, that nobody has this disease.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from discreet.core.randomness import RandomStream
from discreet.linear.linear_holder import LinearHolder
from discreet.linear.losses import Logistic
from discreet.parties import Coordinator, Study, observers, rehearse, round_sums, sgd1, sgd2
from discreet.parties.messages import DirectTransport, Message, Roster
from discreet.parties.party_plan import PartyPlan
from discreet.parties.study import Privacy, Training
from discreet.pytorch.torch_holder import TorchHolder
from support.paid import paid
from support.parties_bank import unsigned_party

FALSE_ALARM = 1e-6


def study_of(algorithm, arithmetic, records=40, **training):
    privacy = Privacy(30.0, 1e-6, arithmetic=arithmetic)
    parties = {"ann": records, "bob": records}
    model = {"kind": "logistic", "dimension": 3}
    return Study("bits", algorithm, parties, privacy, Training(1.0, **training), model)


def patients(records, marked):
    """Two columns: a measurement, and a mark (a sex, a disease) that the ``marked`` ones have."""
    X = np.random.default_rng(1).uniform(-1, 1, size=(records, 2))
    X[:, 1] = 0.0
    X[list(marked), 1] = 1.0
    return LinearHolder(Logistic(), X, np.arange(records) % 2, clip_norm=1.0)


def shows_zero(values):
    """The attack on one coordinate of messages: a bit below 2**-54 says that the sum was 0 there."""
    scaled = np.ldexp(np.asarray(values), 54)
    return scaled != np.rint(scaled)


def tapped_messages(plan, holders):
    """Everything that leaves the parties in a whole study."""
    tap = []

    def listen(party):
        def answer(frame):
            reply = party.answer(frame)
            message = Message.decode(reply)
            if message.kind == "noisy":
                tap.append((message.party, message.round, message.array))
            return reply

        return answer

    parties = {name: unsigned_party(plan, name, holder=holders[name]) for name in plan.names}
    transport = DirectTransport({name: listen(party) for name, party in parties.items()})
    coordinator = Coordinator(plan, transport, Roster.without_wire())
    coordinator.run()
    return tap, coordinator._state.key


def sexes_shown(arithmetic):
    """How many patients' sex SGD1 shows, of 1500 messages, and whether every claim is true."""
    plan = study_of("sgd1", arithmetic, tokens=1500, learning_rate=1e-6)  # residuals stay near a half
    marked = range(0, 40, 2)
    tap, key = tapped_messages(plan, {name: patients(40, marked) for name in plan.names})
    calls = {name: sgd1.Calls("balanced", 40, sgd1.derived_key(key, f"party {name}")) for name in plan.names}
    truth = [calls[name].take(call)[0] not in marked for name, call, _ in tap]
    shown = shows_zero([array[2] for _, _, array in tap])
    assert not np.any(shown & ~np.array(truth))
    return int(shown.sum())


def test_sgd1_shows_the_sex_of_nobody():
    assert sexes_shown("float") > 5  # the attack works where messages are floats
    assert sexes_shown("hardened") == 0


def category_shown(arithmetic, holders):
    """In how many messages of SGD2 it shows that nobody is marked, if nobody is, and if one patient is."""
    plan = study_of("sgd2", arithmetic, rounds=400)
    terms, stream, theta = PartyPlan(plan, "ann"), RandomStream(unsafe_seed=3), np.array([0.1, -0.2, 0.3])
    hits = []
    for holder in holders:
        permit = paid(terms.step_noise, 1.0, stream, times=400)
        messages = [sgd2.noisy_sum(terms, holder, theta, stream, permit)[2] for _ in range(400)]
        hits.append(int(shows_zero(messages).sum()))
    return hits


class Once:
    """A holder that is asked about one model, and computes its sums once."""

    def __init__(self, holder):
        self.records = holder.records
        self.clipped_sum, self.hardened_sum = once(holder.clipped_sum), once(holder.hardened_sum)


def once(function):
    known = []

    def answer(*arguments):
        known.append(known[0] if known else function(*arguments))
        return known[0]

    return answer


def networks():
    def losses(model, batch):
        return nn.functional.binary_cross_entropy_with_logits(
            model(batch[0])[:, 0], batch[1], reduction="none"
        )

    for marked in (0.0, 1.0):
        x = torch.from_numpy(np.random.default_rng(1).normal(size=(40, 3))).float()
        x[:, 2] = 0.0
        x[0, 2] = marked
        layer = nn.Linear(3, 1, bias=False)
        yield Once(TorchHolder(layer, (x, torch.arange(40).float() % 2), losses, clip_norm=1.0))


@pytest.mark.parametrize("kind", ["linear", "torch"])
def test_sgd2_does_not_show_that_nobody_is_in_a_category(kind):
    holders = [patients(40, []), patients(40, [0])] if kind == "linear" else list(networks())
    nobody, one = category_shown("float", holders)
    assert nobody > 5
    assert one == 0  # so a single hit tells the two apart with certainty
    assert category_shown("hardened", holders) == [0, 0]


@pytest.mark.parametrize("bits", [1, 6])
def test_the_lowest_bits_of_hardened_messages_are_uniform_whoever_is_in_it(bits):
    """Chi-square in both worlds: what attacks on other bits than these would look at."""
    plan = study_of("sgd2", "hardened", rounds=400)
    terms, stream = PartyPlan(plan, "ann"), RandomStream(unsafe_seed=4)
    for marked in ([], [0]):
        holder = patients(40, marked)
        permit = paid(terms.step_noise, 1.0, stream, times=1000)
        sent = [sgd2.noisy_sum(terms, holder, np.ones(3), stream, permit) for _ in range(1000)]
        sums = np.concatenate(sent)
        counts = sums / plan.grid
        assert np.array_equal(counts, np.rint(counts))
        seen = np.bincount(counts.astype(np.int64) % 2**bits, minlength=2**bits)
        assert stats.chisquare(seen).pvalue > FALSE_ALARM


def test_the_sum_of_messages_is_exact_so_that_models_show_no_single_message():
    plan = study_of("sgd2", "hardened", records=500_000, rounds=5)
    rng = np.random.default_rng(0)
    largest = int(500_000 / plan.grid)
    counts = {name: rng.integers(-largest, largest, 3) for name in plan.names}
    gradient = round_sums.gradient(plan, {name: value * plan.grid for name, value in counts.items()})
    exact = sum(counts.values())
    assert all(abs(int(value)) < 2**53 for value in exact)
    assert np.array_equal(gradient, exact * plan.grid / plan.records)


def test_float_arithmetic_is_named_wherever_an_epsilon_is():
    plan = study_of("sgd2", "float", rounds=3)
    hardened = replace(plan, privacy=replace(plan.privacy, arithmetic="hardened"))
    assert plan.digest() != hardened.digest()
    assert "FLOAT ARITHMETIC" in str(observers(plan))
    assert "FLOAT" not in str(observers(hardened))
    assert (plan.arithmetic.kind, hardened.arithmetic.kind) == ("float", "hardened")
    holders = {name: patients(40, []) for name in plan.names}
    result = rehearse(plan, holders)
    assert "FLOAT ARITHMETIC" in str(result.observers)
    for certificate in result.certificates.values():
        assert certificate.arithmetic.kind == "float"
        assert any("low bits" in line for line in certificate.not_covered)
    for certificate in rehearse(hardened, holders).certificates.values():
        assert not any("low bits" in line for line in certificate.not_covered)
