"""What does this build do with an item that has fewer embeddings than placeholders?

The gather step and the merge run on three placeholders and too few rows, the scheduler on a key
that is cached with another size. Nothing of vLLM is imported; tensors are made by the torch that
the module has loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any, NamedTuple

from vllm_guard.probes.standins import Anything, Loaded, StandInRequest, stand_in_scheduler
from vllm_guard.states import Finding, Verdict
from vllm_guard.targets import unwrapped

_Judge = Callable[[ModuleType, Loaded], Finding]

_REQUEST = "vllm-guard-probe"
_KEY = "vllm-guard-key"
_PLACEHOLDERS = 3


def probe(module: ModuleType, loaded: Loaded = sys.modules.get) -> Mapping[str, Finding]:
    """Judge the faults of ``mm_merge`` that show in one module.

    Args:
        module: A fully imported module of the guard's targets, not patched.
        loaded: Finds other modules by name.
    """
    judges = _JUDGES[module.__name__]
    if not _counts_by_item(loaded):
        absent = Finding(
            Verdict.ABSENT, "embeddings are counted when the encoder's output is stored"
        )
        return dict.fromkeys(judges, absent)
    return {fault: _guarded(judge, module, loaded) for fault, judge in judges.items()}


def _guarded(judge: _Judge, module: ModuleType, loaded: Loaded) -> Finding:
    try:
        return judge(module, loaded)
    except Exception as error:
        return Finding(Verdict.UNKNOWN, f"{module.__name__} on stand-ins raised {error!r}")


def _counts_by_item(loaded: Loaded) -> bool:
    # Up to 0.12 rows are scattered to their placeholders before they are kept.
    inputs = loaded("vllm.multimodal.inputs")
    position = getattr(inputs, "PlaceholderRange", None)
    return hasattr(position, "get_embeds_indices_in_range")


class _Position(NamedTuple):
    offset: int = 0
    length: int = _PLACEHOLDERS
    is_embed: None = None

    def get_embeds_indices_in_range(self, start: int, end: int) -> tuple[int, int]:
        return start, end


def _feature() -> Any:
    return SimpleNamespace(identifier=_KEY, mm_position=_Position(), modality="image", data=None)


def _judge_v1(module: ModuleType, loaded: Loaded) -> Finding:
    torch: Any = loaded("torch")
    state = SimpleNamespace(
        mm_features=[_feature()], num_computed_tokens=0, num_prompt_tokens=_PLACEHOLDERS
    )
    mask = torch.zeros(_PLACEHOLDERS, dtype=torch.bool, device="cpu")
    buffer = SimpleNamespace(cpu=mask, copy_to_gpu=lambda _count: mask)
    runner = _stand_in(
        module.GPUModelRunner,
        input_batch=SimpleNamespace(req_ids=[_REQUEST]),
        requests={_REQUEST: state},
        encoder_cache={_KEY: torch.zeros((2, 1), device="cpu")},
        is_multimodal_pruning_enabled=False,
        uses_mrope=False,
        # One buffer up to 0.14, two by turns up to 0.19, none later.
        is_mm_embed=buffer,
        is_mm_embed_idx=0,
        is_mm_embed_buffers=[buffer, buffer],
    )
    scheduled = SimpleNamespace(
        total_num_scheduled_tokens=_PLACEHOLDERS, num_scheduled_tokens={_REQUEST: _PLACEHOLDERS}
    )
    gather = _on_host(module.GPUModelRunner._gather_mm_embeddings)
    return _judge_gathered(*gather(runner, scheduled))


def _judge_v2(module: ModuleType, loaded: Loaded) -> Finding:
    torch: Any = loaded("torch")
    np: Any = loaded("numpy")
    rows = {_KEY: torch.zeros((2, 1), device="cpu")}
    features = {_REQUEST: [_feature()]}
    runner = _stand_in(
        module.EncoderRunner,
        encoder_cache=_V2Cache(rows, features),
        req_id_to_mm_features=features,
        tmp_is_mm_embed=SimpleNamespace(copy_to_gpu=lambda mask: mask),
        is_realtime=False,
        device="cpu",
    )
    lengths = np.array([_PLACEHOLDERS])
    start = np.array([0])
    gather = _on_host(module.EncoderRunner.gather_mm_embeddings)
    return _judge_gathered(
        *gather(runner, [_REQUEST], _PLACEHOLDERS, lengths, start, lengths, start)
    )


class _HostTorch:
    """torch, but no accelerator is woken: its masks are made in ordinary memory."""

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.modules["torch"], name)

    def zeros(self, *size: Any, dtype: Any = None, **_options: Any) -> Any:
        return sys.modules["torch"].zeros(*size, dtype=dtype, device="cpu")


def _on_host(function: Any) -> Any:
    *_, code = unwrapped(function)
    if not isinstance(code, FunctionType):
        return function  # interpreted: there is no accelerator
    names = vars(sys.modules[code.__module__]) | {"torch": _HostTorch(), "PIN_MEMORY": False}
    return FunctionType(code.__code__, names, code.__name__, code.__defaults__, code.__closure__)


class _V2Cache(dict[str, Any]):
    """The cache of model runner V2: a mapping up to 0.16, an object with two later."""

    def __init__(self, rows: dict[str, Any], features: dict[str, Any]) -> None:
        super().__init__(rows)
        self.encoder_outputs = rows
        self.mm_features = features


def _stand_in(cls: type, **attributes: Any) -> Any:
    missing = Anything()
    stand_in: Any = type("StandIn", (cls,), {"__getattr__": lambda self, name: missing})
    made = stand_in.__new__(stand_in)
    vars(made).update(attributes)
    return made


def _judge_gathered(embeddings: list[Any], mask: Any) -> Finding:
    rows, placeholders = sum(len(item) for item in embeddings), int(mask.sum())
    if placeholders != _PLACEHOLDERS:
        return Finding(Verdict.UNKNOWN, f"a gather marked {placeholders} of 3 placeholders")
    if rows < placeholders:
        return Finding(Verdict.NEEDED, "a short item is gathered as it is")
    return Finding(Verdict.FIXED, "a short item is gathered in full")


def _judge_merge(module: ModuleType, loaded: Loaded) -> Finding:
    if _merge(module, 2, loaded) is None:
        return Finding(Verdict.NEEDED, "a short item fails the merge of the whole batch")
    return Finding(Verdict.FIXED, "a short item does not fail the merge")


def _judge_one_row(module: ModuleType, loaded: Loaded) -> Finding:
    merged = _merge(module, 1, loaded)
    if merged is None:
        return Finding(Verdict.FIXED, "a single row is not spread over all placeholders")
    numbers = merged.flatten().tolist()
    if numbers == [1.0, 1.0, 1.0]:
        return Finding(Verdict.NEEDED, "a single row is spread over all placeholders")
    if numbers in ([1.0, 0.0, 0.0], [0.0, 0.0, 0.0]):
        return Finding(Verdict.FIXED, "a single row is not spread over all placeholders")
    return Finding(Verdict.UNKNOWN, f"a single row became {numbers}")


def _merge(module: ModuleType, rows: int, loaded: Loaded) -> Any | None:
    torch: Any = loaded("torch")
    with torch.inference_mode():
        try:
            return module._merge_multimodal_embeddings(
                inputs_embeds=torch.zeros((_PLACEHOLDERS, 1), device="cpu"),
                multimodal_embeddings=[torch.ones((rows, 1), device="cpu")],
                is_multimodal=torch.ones(_PLACEHOLDERS, dtype=torch.bool, device="cpu"),
            )
        except ValueError:
            return None


def _judge_reused_key(module: ModuleType, _loaded: Loaded) -> Finding:
    """A key is cached with 3 embeddings, and a request has 5 placeholders for it."""
    owner, second = _request("owner", 3), _request("second", 5)
    manager = module.EncoderCacheManager(cache_size=100)
    manager.allocate(owner, 0)
    scheduler = stand_in_scheduler(
        module,
        encoder_cache_manager=manager,
        requests={"owner": owner, "second": second},
        is_encoder_decoder=False,
        encoder_cache_mismatch_reqs=set(),
        max_num_encoder_input_tokens=100,
    )
    tokens = scheduler._try_schedule_encoder_inputs(second, 0, 5, 100)[1]
    if tokens == 0:
        return Finding(Verdict.FIXED, "a key that is cached with another size is refused")
    return Finding(Verdict.NEEDED, "a key that is cached with another size is used")


class _Count(int):
    """A number, and a method that returns it."""

    def __call__(self) -> int:
        return self


def _request(name: str, placeholders: int) -> Any:
    position = SimpleNamespace(
        offset=0, length=placeholders, is_embed=None, get_num_embeds=_Count(placeholders)
    )
    feature = SimpleNamespace(identifier=_KEY, mm_position=position, modality="image", data=None)
    return StandInRequest(
        request_id=name,
        mm_features=[feature],
        has_encoder_inputs=True,
        num_computed_tokens=0,
        get_num_encoder_embeds=lambda _index: placeholders,
    )


_JUDGES: dict[str, dict[str, _Judge]] = {
    "vllm.v1.worker.gpu_model_runner": {"short-item": _judge_v1},
    "vllm.v1.worker.gpu.mm.encoder_runner": {"short-item": _judge_v2},
    "vllm.model_executor.models.utils": {"short-item": _judge_merge, "one-row": _judge_one_row},
    "vllm.v1.core.sched.scheduler": {"reused-key": _judge_reused_key},
}
