"""Real architectures with random weights: accepted, and their sums are those of single examples."""

import pytest

from support.clip_judge import exact
from support.real_models import REAL, real_problem
from support.torch_bank import NAMES
from support.vision_models import VISION, vision_problem

# One of each kind; ``make test-all`` and ``make bench-check`` take all.
FEW = {
    "AlbertForMaskedLM",
    "BertForSequenceClassification",
    "BertForMaskedLM under checkpoints",
    "CLIP with its temperature",
    "DebertaV2ForSequenceClassification",
    "FNetForSequenceClassification",
    "GPT2ForSequenceClassification",
    "LlamaForCausalLM",
    "MambaForCausalLM",
    "MixtralForCausalLM",
    "ModernBertForMaskedLM, sparse_prediction",
    "SwinForImageClassification",
    "T5ForConditionalGeneration",
    "Wav2Vec2ForSequenceClassification",
}
ALL = [pytest.param(name, marks=() if name in FEW else pytest.mark.slow) for name in REAL]

pytestmark = pytest.mark.filterwarnings("ignore")  # those of transformers


def test_the_bank_is_large():
    assert set(REAL) >= FEW
    assert len(REAL) + len(NAMES) + len(VISION) >= 150


@pytest.mark.parametrize("name", ALL)
def test_transformers(name):
    verdict = exact(*real_problem(name))
    assert verdict.kind == "harmless", f"{verdict.kind}: {verdict.detail}"


@pytest.mark.parametrize("name", VISION)
def test_networks_for_images(name):
    verdict = exact(*vision_problem(name))
    assert verdict.kind == "harmless", f"{verdict.kind}: {verdict.detail}"
