"""A Llama that is tiny enough for two CPU cores, with real (random) weights.

vLLM's own dummy weights are so small that each next token hangs on the last one alone; a wrong
token further back would not show. With these weights it does.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy
from safetensors.numpy import save_file

VOCABULARY = 1024
HIDDEN = 128
INTERMEDIATE = 256
LAYERS = 3  # one for each stage of the longest pipeline
HEADS = 4
MAX_LENGTH = 1024

_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "max_position_embeddings": MAX_LENGTH,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "torch_dtype": "float32",
}


def make_model(folder: Path) -> Path:
    """Write the model's configuration, tokenizer and weights; the same ones every time.

    Args:
        folder: Where to; made if it does not exist.

    Returns:
        The folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "config.json": _CONFIG,
        "tokenizer.json": _tokenizer(),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": MAX_LENGTH,
            "bos_token": "<s>",
            "eos_token": "</s>",
            "unk_token": "<unk>",
        },
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    save_file(_weights(), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _tokenizer() -> dict[str, object]:
    """A tokenizer of whole words, ``w3`` to ``w1023``; nothing has to be trained or fetched."""
    special = ["<s>", "</s>", "<unk>"]
    words = special + [f"w{number}" for number in range(len(special), VOCABULARY)]
    return {
        "version": "1.0",
        "added_tokens": [
            {
                "id": number,
                "content": word,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for number, word in enumerate(special)
        ],
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {
            "type": "WordLevel",
            "vocab": {word: number for number, word in enumerate(words)},
            "unk_token": "<unk>",
        },
    }


def _weights() -> dict[str, numpy.ndarray]:
    generator = numpy.random.default_rng(0)

    def matrix(rows: int, columns: int) -> numpy.ndarray:
        scale = 2.0 / numpy.sqrt(columns)
        return (scale * generator.standard_normal((rows, columns))).astype(numpy.float32)

    weights = {
        "model.embed_tokens.weight": matrix(VOCABULARY, HIDDEN),
        "model.norm.weight": numpy.ones(HIDDEN, numpy.float32),
        "lm_head.weight": matrix(VOCABULARY, HIDDEN),
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{prefix}{norm}.weight"] = numpy.ones(HIDDEN, numpy.float32)
        for projection in ("q", "k", "v", "o"):
            weights[f"{prefix}self_attn.{projection}_proj.weight"] = matrix(HIDDEN, HIDDEN)
        for projection in ("gate", "up"):
            weights[f"{prefix}mlp.{projection}_proj.weight"] = matrix(INTERMEDIATE, HIDDEN)
        weights[f"{prefix}mlp.down_proj.weight"] = matrix(HIDDEN, INTERMEDIATE)
    return weights
