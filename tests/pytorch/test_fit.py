"""Training in one call, with privacy and without."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from discreet import InvalidParameter, Recipe
from discreet.core.randomness import RandomStream
from discreet.pytorch import fit

RECORDS = 600


def losses(model, batch):
    return functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def data():
    x = torch.randn(RECORDS, 8, generator=torch.Generator().manual_seed(0))
    return x, (x[:, 0] + x[:, 1] > 0).long()


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))


def accuracy(model):
    x, y = data()
    return float((model(x).argmax(1) == y).double().mean())


def test_five_lines_learn_something_private():
    fitted = fit(network(), data(), losses, records=RECORDS, epsilon=3.0, delta=1e-4, epochs=10)
    assert accuracy(fitted.model) > 0.85
    assert 2.9 < fitted.certificate.guarantee.epsilon.upper <= 3.0
    fitted.certificate.verify()


@pytest.mark.parametrize("sampling", ["poisson", "random-allocation", "full-batch"])
@pytest.mark.parametrize("physical", [None, 50])
def test_without_privacy_it_is_stochastic_gradient_descent_bit_for_bit(sampling, physical):
    """Clip norm infinity and noise zero: the same batches through a plain loop give the same bits."""
    size = None if sampling == "full-batch" else 64
    options = {"records": RECORDS, "epochs": 2, "batch_size": size, "sampling": sampling}
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    fitted = fit(
        model,
        data(),
        losses,
        privacy=None,
        optimizer=optimizer,
        unsafe_seed=9,
        physical_batch_size=physical,
        **options,
    )
    assert fitted.certificate is None

    plain = network()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.3, momentum=0.9)
    stage = Recipe(RECORDS, size, epochs=2, sampling=sampling).at(1.0)
    x, y = data()
    for indices in stage.batches(RandomStream(unsafe_seed=9)):
        optimizer.zero_grad(set_to_none=False)
        for part in torch.from_numpy(indices).split(physical or RECORDS):
            losses(plain, (x[part], y[part])).sum().backward()
        for parameter in plain.parameters():
            parameter.grad /= stage.divisor
        optimizer.step()
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, other)


def test_the_twin_without_privacy_learns_more():
    twin = fit(network(), data(), losses, records=RECORDS, privacy=None, epochs=10)
    assert accuracy(twin.model) > 0.95


def test_an_empty_data_set_is_trained_on_noise():
    x, y = data()
    fitted = fit(network(), (x[:0], y[:0]), losses, records=RECORDS, epsilon=1.0, delta=1e-4, epochs=1)
    assert all(p.isfinite().all() for p in fitted.model.parameters())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "epsilon=None: is needed"),
        ({"epsilon": 1.0}, "delta=None: is needed"),
        ({"epsilon": math.nan, "delta": 1e-4}, "epsilon=nan"),
        ({"epsilon": 1.0, "delta": 0.5}, "delta=0.5"),
        ({"epsilon": 1.0, "privacy": None}, "epsilon=1.0: cannot be kept"),
        ({"delta": 1e-4, "privacy": None}, "cannot be kept"),
        ({"epsilon": 1.0, "delta": 1e-4, "privacy": False}, "privacy=False"),
        ({"epsilon": 1.0, "delta": 1e-4, "epochs": math.nan}, "epochs=nan"),
        ({"epsilon": 1.0, "delta": 1e-4, "records": math.nan}, "records=nan"),
        ({"epsilon": 1.0, "delta": 1e-4, "batch_size": RECORDS + 1}, "batch_size=601"),
        ({"epsilon": 1.0, "delta": 1e-4, "clipping": 1.0}, "clipping=1.0"),
        ({"privacy": None, "physical_batch_size": 0}, "physical_batch_size=0"),
    ],
)
def test_parameters_are_checked(options, message):
    with pytest.raises(InvalidParameter, match=message):
        fit(network(), data(), losses, **({"records": RECORDS, "epochs": 1} | options))
