"""As much of the modules torch and numpy as gathering and merging embeddings takes."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

from vllm_guard.probes.static.errors import Unsupported
from vllm_guard.probes.static.tensors import Tensor, filled, zeros


def ones(*size: Any, **_options: Any) -> Tensor:
    """Return a vector or matrix of ones; of True where its dtype is ``bool``."""
    return filled(True if _options.get("dtype") == "bool" else 1.0, size)


def cat(tensors: Any, **options: Any) -> Tensor:
    """Return the rows of all tensors."""
    if options.get("dim", 0) != 0:
        raise Unsupported("it joins tensors by columns")
    return Tensor([row for tensor in tensors for row in tensor.data])


def array(data: Any, **_options: Any) -> Tensor:
    """Return a tensor of a list."""
    return Tensor(list(data))


class Library(SimpleNamespace):
    """A module of which the rest is not supported."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise Unsupported(f"it uses {vars(self)['__name__']}.{name}")


TORCH = Library(
    __name__="torch",
    Tensor=Tensor,
    zeros=zeros,
    ones=ones,
    cat=cat,
    concat=cat,
    tensor=array,
    bool="bool",
    int32="number",
    int64="number",
    float32="number",
    inference_mode=nullcontext,
)
NUMPY = Library(
    __name__="numpy",
    ndarray=Tensor,
    array=array,
    zeros=zeros,
    concatenate=cat,
    bool_="bool",
    int32="number",
    int64="number",
)
