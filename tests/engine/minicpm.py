"""A MiniCPM-V 4.6 that is tiny enough for two CPU cores; its way of slicing images is the real one.

vLLM 0.23.0 takes an image's width for its height when it counts placeholders (mended in 0.24.0 by
vLLM #45244), so that images of certain sizes yield fewer embeddings than they have placeholders.
"""

from __future__ import annotations

from pathlib import Path

from tests.engine.checkpoint import BYTES, make_checkpoint, token_numbers

TEXT_LAYERS = 2
VISION_LAYERS = 2
HIDDEN = 128
VISION_HIDDEN = 64
HEADS = 4
MAX_LENGTH = 1024

_SPECIAL = {
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
    "image_start_token": "<image>",
    "image_end_token": "</image>",
    "slice_start_token": "<slice>",
    "slice_end_token": "</slice>",
    "image_id_start_token": "<image_id>",
    "image_id_end_token": "</image_id>",
}
_SLICING = {
    "patch_size": 14,
    "scale_resolution": 448,
    "max_slice_nums": 9,
    "slice_mode": True,
    "downsample_mode": "16x",
    "use_image_id": True,
    # 0.23.0 asks for it, though it knows which model this is.
    "version": 4.6,
}


def make_minicpm(folder: Path) -> Path:
    """Write the model's configuration, tokenizer and weights; the same ones every time.

    Args:
        folder: Where to; made if it does not exist.

    Returns:
        The folder.
    """
    numbers = token_numbers(_SPECIAL)
    processor = {"processor_class": "MiniCPMV4_6Processor", **_SLICING}
    return make_checkpoint(
        folder,
        {
            "architectures": ["MiniCPMV4_6ForConditionalGeneration"],
            "model_type": "minicpmv4_6",
            "torch_dtype": "float32",
            "insert_layer_id": 0,
            "image_token_id": numbers[_SPECIAL["image_token"]],
            "video_token_id": numbers[_SPECIAL["video_token"]],
            "text_config": _text(BYTES + len(numbers)),
            "vision_config": {
                "hidden_size": VISION_HIDDEN,
                "intermediate_size": 2 * VISION_HIDDEN,
                "num_hidden_layers": VISION_LAYERS,
                "num_attention_heads": HEADS,
                "image_size": 980,
                "patch_size": 14,
            },
        },
        _SPECIAL,
        {
            "preprocessor_config.json": {
                "image_processor_type": "MiniCPMV4_6ImageProcessor",
                **processor,
            },
            "video_preprocessor_config.json": {
                "video_processor_type": "MiniCPMV4_6VideoProcessor",
                **processor,
            },
        },
    )


def _text(vocabulary: int) -> dict[str, object]:
    return {
        "model_type": "qwen3_5_text",
        "vocab_size": vocabulary,
        "hidden_size": HIDDEN,
        "intermediate_size": 2 * HIDDEN,
        "num_hidden_layers": TEXT_LAYERS,
        # The others have a state that vLLM has no CPU code for.
        "layer_types": ["full_attention"] * TEXT_LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": HIDDEN // HEADS,
        "max_position_embeddings": MAX_LENGTH,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.25,
            "mrope_interleaved": True,
            # Half of the rotated part of a head.
            "mrope_section": [2, 1, 1],
        },
        "eos_token_id": BYTES,
    }
