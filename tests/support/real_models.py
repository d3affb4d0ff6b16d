"""Architectures of Hugging Face, a few thousand parameters each: made from a configuration, with random weights.

Each entry is built on demand: the model, its losses, and a batch. Batch norm is repaired as a user would.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from discreet.pytorch import without_batch_norm

EXAMPLES, TIME, WORDS, CLASSES, SIDE = 5, 7, 40, 3, 32

Problem = tuple[nn.Module, Callable[[Any, Any], Tensor], Any]

SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "vocab_size": WORDS,
    "max_position_embeddings": 16,
    "num_labels": CLASSES,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA = SMALL | {"num_key_value_heads": 1, "head_dim": 8}
DROP = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
IMAGE = {"image_size": SIDE, "patch_size": 8, "num_channels": 3, "num_labels": CLASSES, **DROP}
VIT = IMAGE | {
    key: SMALL[key]
    for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
}


def words(seed: int = 1) -> Tensor:
    return torch.randint(3, WORDS, (EXAMPLES, TIME), generator=torch.Generator().manual_seed(seed))


def text() -> dict[str, Tensor]:
    lengths = torch.tensor([7, 5, 3, 7, 4])[:, None]
    mask = torch.arange(TIME) < lengths
    return {
        "input_ids": words() * mask,
        "attention_mask": mask.long(),
        "labels": torch.arange(EXAMPLES) % CLASSES,
    }


def classified(model: Any, batch: Any) -> Tensor:
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    out = model(**inputs)
    scores = out.logits if hasattr(out, "logits") else out
    scores = scores.flatten(1) if scores.ndim > 2 else scores
    return F.cross_entropy(scores, batch["labels"], reduction="none")


def predicted(shift: int) -> Callable[[Any, Any], Tensor]:
    def losses(model: Any, batch: Any) -> Tensor:
        ids, mask = batch["input_ids"], batch["attention_mask"]
        scores = model(input_ids=ids, attention_mask=mask).logits[:, : TIME - shift]
        values = F.cross_entropy(scores.transpose(1, 2), ids[:, shift:], reduction="none")
        kept = mask[:, shift:]
        return (values * kept).sum(1) / kept.sum(1).clamp(min=1)

    return losses


def translated(model: Any, batch: Any) -> Tensor:
    ids, mask = batch["input_ids"], batch["attention_mask"]
    scores = model(input_ids=ids, attention_mask=mask, decoder_input_ids=ids.flip(1)).logits
    return F.cross_entropy(scores.transpose(1, 2), ids, reduction="none").mean(1)


def embedded(model: Any, batch: Any) -> Tensor:
    out = model(**{name: value for name, value in batch.items() if name != "labels"})
    hidden = out.last_hidden_state if hasattr(out, "last_hidden_state") else out[0]
    return hidden.flatten(1).square().mean(1)


def images() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(2)
    pixels = torch.randn(EXAMPLES, 3, SIDE, SIDE, generator=generator)
    return {"pixel_values": pixels, "labels": torch.arange(EXAMPLES) % CLASSES}


def sounds() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {
        "input_values": torch.randn(EXAMPLES, 400, generator=generator),
        "labels": torch.arange(EXAMPLES) % CLASSES,
    }


KINDS: dict[str, tuple[Callable[[], Any], Callable[[Any, Any], Tensor]]] = {
    "class": (text, classified),
    "next": (text, predicted(1)),
    "masked": (text, predicted(0)),
    "translate": (text, translated),
    "hidden": (text, embedded),
    "image": (images, classified),
    "pixels": (images, embedded),
    "sound": (sounds, classified),
}

# name of the family -> (kind, model class, configuration class, settings)
FAMILIES: dict[str, tuple[str, str, str, dict[str, Any]]] = {}


def family(kind: str, model: str, config: str, settings: dict[str, Any], **more: Any) -> None:
    name = f"{model}, {', '.join(map(str, more))}" if more and model in FAMILIES else model
    FAMILIES[name] = (kind, model, config, settings | more)


for _stem in ("Bert", "Roberta", "Electra", "XLMRoberta", "RobertaPreLayerNorm", "Ernie", "MegatronBert"):
    family(
        "class",
        f"{_stem}ForSequenceClassification",
        f"{_stem}Config",
        SMALL | DROP,
        max_position_embeddings=20,
    )
for _stem in (
    "Bert",
    "Roberta",
    "Electra",
    "Camembert",
    "RoFormer",
    "ConvBert",
    "MobileBert",
    "SqueezeBert",
    "Nystromformer",
):
    family(
        "masked",
        f"{_stem}ForMaskedLM",
        f"{_stem}Config",
        SMALL | DROP,
        max_position_embeddings=20,
        embedding_size=16,
    )
family("class", "AlbertForSequenceClassification", "AlbertConfig", SMALL | DROP, embedding_size=8)
family("masked", "AlbertForMaskedLM", "AlbertConfig", SMALL | DROP, embedding_size=8)
family(
    "class",
    "DebertaForSequenceClassification",
    "DebertaConfig",
    SMALL | DROP,
    relative_attention=True,
    pos_att_type=["p2c", "c2p"],
)
family(
    "class",
    "DebertaV2ForSequenceClassification",
    "DebertaV2Config",
    SMALL | DROP,
    relative_attention=True,
    pos_att_type=["p2c", "c2p"],
    position_buckets=4,
)
family(
    "class",
    "DistilBertForSequenceClassification",
    "DistilBertConfig",
    {
        "dim": 16,
        "n_layers": 2,
        "n_heads": 2,
        "hidden_dim": 24,
        "vocab_size": WORDS,
        "max_position_embeddings": 16,
        "num_labels": CLASSES,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "seq_classif_dropout": 0.0,
    },
)
family(
    "masked",
    "DistilBertForMaskedLM",
    "DistilBertConfig",
    {
        "dim": 16,
        "n_layers": 2,
        "n_heads": 2,
        "hidden_dim": 24,
        "vocab_size": WORDS,
        "max_position_embeddings": 16,
        "dropout": 0.0,
        "attention_dropout": 0.0,
    },
)
family(
    "masked",
    "ModernBertForMaskedLM",
    "ModernBertConfig",
    SMALL,
    global_attn_every_n_layers=2,
    local_attention=4,
)
family(
    "class",
    "ModernBertForSequenceClassification",
    "ModernBertConfig",
    SMALL,
    global_attn_every_n_layers=2,
    local_attention=4,
)
family(
    "class",
    "FunnelForSequenceClassification",
    "FunnelConfig",
    {
        "vocab_size": WORDS,
        "block_sizes": [1, 1],
        "num_decoder_layers": 1,
        "d_model": 16,
        "n_head": 2,
        "d_head": 8,
        "d_inner": 24,
        "num_labels": CLASSES,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "activation_dropout": 0.0,
    },
)
family("class", "FNetForSequenceClassification", "FNetConfig", SMALL | {"hidden_dropout_prob": 0.0})
family(
    "class",
    "XLNetForSequenceClassification",
    "XLNetConfig",
    {
        "vocab_size": WORDS,
        "d_model": 16,
        "n_layer": 2,
        "n_head": 2,
        "d_inner": 24,
        "dropout": 0.0,
        "num_labels": CLASSES,
    },
)
family(
    "class",
    "CanineForSequenceClassification",
    "CanineConfig",
    SMALL | DROP,
    num_hash_buckets=16,
    downsampling_rate=1,
    local_transformer_stride=8,
    max_position_embeddings=32,
)
family(
    "class",
    "LongformerForSequenceClassification",
    "LongformerConfig",
    SMALL | DROP,
    attention_window=4,
    max_position_embeddings=32,
)
family(
    "class", "BigBirdForSequenceClassification", "BigBirdConfig", SMALL | DROP, attention_type="original_full"
)
family("class", "MPNetForSequenceClassification", "MPNetConfig", SMALL | DROP)
GPT2 = {
    "vocab_size": WORDS,
    "n_positions": 16,
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "num_labels": CLASSES,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}
family("next", "GPT2LMHeadModel", "GPT2Config", GPT2)
family("class", "GPT2ForSequenceClassification", "GPT2Config", GPT2)
family("next", "OpenAIGPTLMHeadModel", "OpenAIGPTConfig", GPT2)
family("next", "GPTBigCodeForCausalLM", "GPTBigCodeConfig", GPT2)
family("next", "CodeGenForCausalLM", "CodeGenConfig", GPT2, rotary_dim=4, n_head=4)
family("next", "GPTJForCausalLM", "GPTJConfig", GPT2, rotary_dim=4)
family(
    "next",
    "GPTNeoForCausalLM",
    "GPTNeoConfig",
    {
        "vocab_size": WORDS,
        "hidden_size": 16,
        "num_layers": 2,
        "attention_types": [[["global", "local"], 1]],
        "num_heads": 2,
        "max_position_embeddings": 16,
        "window_size": 4,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
)
family("next", "GPTNeoXForCausalLM", "GPTNeoXConfig", SMALL)
for _stem in (
    "Llama",
    "Mistral",
    "Gemma",
    "Gemma2",
    "Gemma3",
    "Qwen2",
    "Qwen3",
    "Phi3",
    "Olmo",
    "Olmo2",
    "Granite",
    "StableLm",
    "Starcoder2",
    "Cohere",
    "Helium",
    "SmolLM3",
    "Glm",
    "Ministral",
    "Exaone4",
):
    config = "Gemma3TextConfig" if _stem == "Gemma3" else f"{_stem}Config"
    family("next", f"{_stem}ForCausalLM", config, LLAMA)
for _stem in ("Llama", "Qwen2", "Mistral"):
    family("class", f"{_stem}ForSequenceClassification", f"{_stem}Config", LLAMA)
for _stem in ("Phi", "Persimmon", "Bloom", "Falcon", "OPT", "Biogpt", "XGLM"):
    stem = "BioGpt" if _stem == "Biogpt" else _stem
    family(
        "next",
        f"{stem}ForCausalLM",
        f"{stem}Config",
        SMALL
        | DROP
        | {
            "n_layer": 2,
            "n_head": 2,
            "ffn_dim": 24,
            "word_embed_proj_dim": 16,
            "d_model": 16,
            "num_layers": 2,
            "attention_heads": 2,
            "dropout": 0.0,
            "attention_dropout": 0.0,
            "activation_dropout": 0.0,
        },
    )
family("next", "MixtralForCausalLM", "MixtralConfig", LLAMA, num_local_experts=4, num_experts_per_tok=2)
family(
    "next",
    "OlmoeForCausalLM",
    "OlmoeConfig",
    SMALL | {"num_key_value_heads": 2},
    num_experts=4,
    num_experts_per_tok=2,
)
family(
    "next",
    "Qwen2MoeForCausalLM",
    "Qwen2MoeConfig",
    LLAMA,
    num_experts=4,
    num_experts_per_tok=2,
    moe_intermediate_size=8,
    shared_expert_intermediate_size=8,
)
family(
    "next",
    "MptForCausalLM",
    "MptConfig",
    {"vocab_size": WORDS, "d_model": 16, "n_heads": 2, "n_layers": 2, "max_seq_len": 16},
)
family(
    "next",
    "MambaForCausalLM",
    "MambaConfig",
    {"vocab_size": WORDS, "hidden_size": 16, "state_size": 4, "num_hidden_layers": 2, "use_mambapy": False},
)
family(
    "next",
    "RwkvForCausalLM",
    "RwkvConfig",
    {
        "vocab_size": WORDS,
        "hidden_size": 16,
        "attention_hidden_size": 16,
        "num_hidden_layers": 2,
        "context_length": 16,
    },
)
T5 = {
    "vocab_size": WORDS,
    "d_model": 16,
    "d_kv": 8,
    "d_ff": 24,
    "num_layers": 2,
    "num_heads": 2,
    "dropout_rate": 0.0,
    "decoder_start_token_id": 0,
}
family("translate", "T5ForConditionalGeneration", "T5Config", T5)
family(
    "translate",
    "T5ForConditionalGeneration",
    "T5Config",
    T5,
    feed_forward_proj="gated-gelu",
    tie_word_embeddings=False,
)
family("translate", "MT5ForConditionalGeneration", "MT5Config", T5)
family("translate", "LongT5ForConditionalGeneration", "LongT5Config", T5, local_radius=4)
BART = {
    "vocab_size": WORDS,
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": 16,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "pad_token_id": 0,
    "decoder_start_token_id": 2,
}
for _stem in ("Bart", "MBart", "BlenderbotSmall", "M2M100"):
    family("translate", f"{_stem}ForConditionalGeneration", f"{_stem}Config", BART)
family("translate", "MarianMTModel", "MarianConfig", BART)
family("translate", "PegasusForConditionalGeneration", "PegasusConfig", BART)
for _stem in ("ViT", "DeiT", "Dinov2"):
    family("image", f"{_stem}ForImageClassification", f"{_stem}Config", VIT)
family(
    "image",
    "BeitForImageClassification",
    "BeitConfig",
    VIT,
    use_relative_position_bias=True,
    use_mask_token=False,
    drop_path_rate=0.0,
)
family("pixels", "ViTMSNModel", "ViTMSNConfig", VIT)
family(
    "image",
    "SwinForImageClassification",
    "SwinConfig",
    IMAGE
    | {
        "patch_size": 4,
        "embed_dim": 8,
        "depths": [1, 1],
        "num_heads": [2, 2],
        "window_size": 2,
        "drop_path_rate": 0.0,
    },
)
family(
    "image",
    "Swinv2ForImageClassification",
    "Swinv2Config",
    IMAGE
    | {
        "patch_size": 4,
        "embed_dim": 8,
        "depths": [1, 1],
        "num_heads": [2, 2],
        "window_size": 2,
        "drop_path_rate": 0.0,
    },
)
family(
    "image",
    "ConvNextForImageClassification",
    "ConvNextConfig",
    {
        "hidden_sizes": [8, 16],
        "depths": [1, 1],
        "num_stages": 2,
        "num_labels": CLASSES,
        "drop_path_rate": 0.0,
    },
)
family(
    "image",
    "ConvNextV2ForImageClassification",
    "ConvNextV2Config",
    {
        "hidden_sizes": [8, 16],
        "depths": [1, 1],
        "num_stages": 2,
        "num_labels": CLASSES,
        "drop_path_rate": 0.0,
    },
)
family(
    "image",
    "ResNetForImageClassification",
    "ResNetConfig",
    {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "num_labels": CLASSES},
)
family(
    "image",
    "RegNetForImageClassification",
    "RegNetConfig",
    {
        "embedding_size": 8,
        "hidden_sizes": [8, 16],
        "depths": [1, 1],
        "groups_width": 8,
        "num_labels": CLASSES,
    },
)
family(
    "image",
    "MobileNetV2ForImageClassification",
    "MobileNetV2Config",
    {"depth_multiplier": 0.1, "num_labels": CLASSES, "image_size": SIDE, "classifier_dropout_prob": 0.0},
)
family(
    "image",
    "MobileNetV1ForImageClassification",
    "MobileNetV1Config",
    {"depth_multiplier": 0.1, "num_labels": CLASSES, "image_size": SIDE, "classifier_dropout_prob": 0.0},
)
family(
    "image",
    "EfficientNetForImageClassification",
    "EfficientNetConfig",
    {
        "width_coefficient": 0.1,
        "depth_coefficient": 0.3,
        "hidden_dim": 128,
        "image_size": SIDE,
        "num_labels": CLASSES,
        "dropout_rate": 0.0,
        "drop_connect_rate": 0.0,
    },
)
family(
    "image",
    "PoolFormerForImageClassification",
    "PoolFormerConfig",
    {"hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1], "num_labels": CLASSES, "drop_path_rate": 0.0},
)
family(
    "image",
    "SegformerForImageClassification",
    "SegformerConfig",
    {
        "hidden_sizes": [8, 8, 16, 16],
        "depths": [1, 1, 1, 1],
        "num_attention_heads": [1, 1, 2, 2],
        "decoder_hidden_size": 8,
        "num_labels": CLASSES,
        "classifier_dropout_prob": 0.0,
        "drop_path_rate": 0.0,
        **DROP,
    },
)
family(
    "image",
    "PvtForImageClassification",
    "PvtConfig",
    {
        "image_size": SIDE,
        "hidden_sizes": [8, 8, 16, 16],
        "depths": [1, 1, 1, 1],
        "num_attention_heads": [1, 1, 2, 2],
        "num_labels": CLASSES,
        "drop_path_rate": 0.0,
        **DROP,
    },
)
family(
    "image",
    "FocalNetForImageClassification",
    "FocalNetConfig",
    {
        "image_size": SIDE,
        "embed_dim": 8,
        "hidden_sizes": [8, 16],
        "depths": [1, 1],
        "focal_levels": [1, 1],
        "focal_windows": [3, 3],
        "num_labels": CLASSES,
        "drop_path_rate": 0.0,
    },
)
family(
    "image",
    "BitForImageClassification",
    "BitConfig",
    {
        "embedding_size": 8,
        "hidden_sizes": [8, 16],
        "depths": [1, 1],
        "num_groups": 4,
        "num_labels": CLASSES,
        "drop_path_rate": 0.0,
    },
)
family("pixels", "CLIPVisionModel", "CLIPVisionConfig", VIT)
family("hidden", "CLIPTextModel", "CLIPTextConfig", SMALL)
family("pixels", "SiglipVisionModel", "SiglipVisionConfig", VIT)
WAVES = (
    SMALL
    | DROP
    | {
        "conv_dim": [8, 8],
        "conv_kernel": [10, 3],
        "conv_stride": [5, 2],
        "num_feat_extract_layers": 2,
        "num_conv_pos_embeddings": 4,
        "num_conv_pos_embedding_groups": 2,
        "feat_proj_dropout": 0.0,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "activation_dropout": 0.0,
        "final_dropout": 0.0,
        "layerdrop": 0.0,
        "mask_time_prob": 0.0,
        "mask_feature_prob": 0.0,
        "classifier_proj_size": 8,
        "apply_spec_augment": False,
    }
)
for _stem in ("Wav2Vec2", "Hubert", "WavLM", "UniSpeech", "SEW"):
    family("sound", f"{_stem}ForSequenceClassification", f"{_stem}Config", WAVES)


def _whisper() -> Problem:
    from transformers import WhisperConfig, WhisperForAudioClassification

    config = WhisperConfig(
        num_mel_bins=8,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=24,
        decoder_ffn_dim=24,
        max_source_positions=10,
        num_labels=CLASSES,
        vocab_size=WORDS,
        pad_token_id=0,
        classifier_proj_size=8,
    )
    batch = {"input_features": torch.randn(EXAMPLES, 8, 20), "labels": torch.arange(EXAMPLES) % CLASSES}
    return WhisperForAudioClassification(config), classified, batch


def _clip() -> Problem:
    """Each example brings its own candidates, so that the contrast stays within it."""
    from transformers import CLIPConfig, CLIPModel

    model = CLIPModel(CLIPConfig(text_config=dict(SMALL), vision_config=dict(VIT), projection_dim=8))
    pixels = images()["pixel_values"]
    candidates = torch.stack([words(seed) for seed in range(3)], 1)

    def losses(model: Any, batch: Any) -> Tensor:
        seen = model.get_image_features(pixel_values=batch["pixels"])
        said = model.get_text_features(input_ids=batch["words"].flatten(0, 1))
        seen, said = (getattr(value, "pooler_output", value) for value in (seen, said))
        said = F.normalize(said, dim=1).view(len(seen), 3, -1)
        scores = (said @ F.normalize(seen, dim=1)[:, :, None])[..., 0] * model.logit_scale.exp()
        return F.cross_entropy(scores, batch["labels"], reduction="none")

    return model, losses, {"pixels": pixels, "words": candidates, "labels": torch.arange(EXAMPLES) % 3}


def _sparse_modern_bert() -> Problem:
    """Its head sees the masked tokens only, and their number depends on the text."""
    from transformers import ModernBertConfig, ModernBertForMaskedLM

    config = ModernBertConfig(
        **SMALL, global_attn_every_n_layers=2, local_attention=4, sparse_prediction=True
    )

    def losses(model: Any, batch: Any) -> Tensor:
        labels = batch["input_ids"].masked_fill(batch["chosen"] == 0, -100)
        scores = model(
            input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=labels
        ).logits
        kept = labels.flatten() != -100
        owner = torch.arange(len(labels)).repeat_interleave(labels.shape[1])[kept]
        values = F.cross_entropy(scores, labels.flatten()[kept], reduction="none")
        return torch.zeros(len(labels)).index_add(0, owner, values)

    made = text()
    batch = {name: made[name] for name in ("input_ids", "attention_mask")}
    return (
        ModernBertForMaskedLM(config),
        losses,
        batch | {"chosen": (torch.arange(TIME) < 2).long().repeat(EXAMPLES, 1)},
    )


def _checkpointed(name: str) -> Callable[[], Problem]:
    def build() -> Problem:
        model, losses, batch = real_problem(name)
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        return model.train(), losses, batch

    return build


OTHERS: dict[str, Callable[[], Problem]] = {
    "WhisperForAudioClassification": _whisper,
    "CLIP with its temperature": _clip,
    "ModernBertForMaskedLM, sparse_prediction": _sparse_modern_bert,
    "GPT2LMHeadModel under checkpoints": _checkpointed("GPT2LMHeadModel"),
    "BertForMaskedLM under checkpoints": _checkpointed("BertForMaskedLM"),
}

REAL = [*FAMILIES, *OTHERS]


def real_problem(name: str) -> Problem:
    """A model that draws nothing, its losses and a batch; raises what transformers raises if it has no such model."""
    import transformers

    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if name in OTHERS:
            return OTHERS[name]()
        kind, model, config, settings = FAMILIES[name]
        made = getattr(transformers, model)(getattr(transformers, config)(**settings))
    batch, losses = KINDS[kind]
    rescales = model.startswith("Rwkv")  # in its other mode it writes to its weights
    return without_batch_norm(made).train(rescales), losses, batch()
