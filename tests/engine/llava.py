"""A LLaVA that is tiny enough for two CPU cores: each image of whatever size is 64 embeddings."""

from __future__ import annotations

from pathlib import Path

from tests.engine.checkpoint import BYTES, make_checkpoint, token_numbers

LAYERS = 2
HIDDEN = 128
HEADS = 4
PATCH = 14
IMAGE = 112  # pixels a side
MAX_LENGTH = 1024

_SPECIAL = {"image_token": "<image>"}


def make_llava(folder: Path) -> Path:
    """Write the model's configuration, tokenizer and weights; the same ones every time.

    Args:
        folder: Where to; made if it does not exist.

    Returns:
        The folder.
    """
    numbers = token_numbers(_SPECIAL)
    size = {
        "hidden_size": HIDDEN,
        "intermediate_size": 2 * HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
    }
    selection = {"vision_feature_select_strategy": "default"}
    return make_checkpoint(
        folder,
        {
            "architectures": ["LlavaForConditionalGeneration"],
            "model_type": "llava",
            "torch_dtype": "float32",
            "image_token_id": numbers[_SPECIAL["image_token"]],
            "image_seq_length": (IMAGE // PATCH) ** 2,
            "vision_feature_layer": -1,
            **selection,
            "text_config": {
                "model_type": "llama",
                "vocab_size": BYTES + len(numbers),
                "max_position_embeddings": MAX_LENGTH,
                "num_key_value_heads": HEADS,
                "eos_token_id": BYTES,
                **size,
            },
            "vision_config": {
                "model_type": "clip_vision_model",
                "image_size": IMAGE,
                "patch_size": PATCH,
                **size,
            },
        },
        _SPECIAL,
        {
            "preprocessor_config.json": {
                # The one that does without torchvision.
                "image_processor_type": "CLIPImageProcessorPil",
                "size": {"shortest_edge": IMAGE},
                "crop_size": {"height": IMAGE, "width": IMAGE},
            },
            "processor_config.json": {
                "processor_class": "LlavaProcessor",
                "patch_size": PATCH,
                # The class token, which the strategy drops.
                "num_additional_image_tokens": 1,
                **selection,
            },
        },
        published=("model.vision_tower.", "model.vision_tower.vision_model."),
    )
