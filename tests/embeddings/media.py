"""Requests with media on a real scheduler: under which key are whose embeddings used?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.v1.core.encoder_cache_manager import EncoderCacheManager
from vllm.v1.request import Request

import vllm_guard
from tests.scheduler.adapter import make_request
from tests.scheduler.arms import report, unpatched_afterwards
from tests.scheduler.experiment import Arm, Setup
from tests.scheduler.oracle import RequestPlan
from tests.scheduler.pipeline import Pipeline
from tests.scheduler.worker import Worker

CACHE_SIZE = 400
"""Embeddings that the encoder cache holds, and that one step may encode."""

CHUNK = 32
"""Most tokens of one prompt in a frame."""


@dataclass(frozen=True)
class Medium:
    """An image of a request: its cache key, and which positions of the prompt it stands for."""

    key: str
    offset: int
    placeholders: int

    def feature(self) -> MultiModalFeatureSpec:
        """vLLM's own description of it."""
        position = PlaceholderRange(offset=self.offset, length=self.placeholders)
        return MultiModalFeatureSpec(
            data=None, modality="image", identifier=self.key, mm_position=position
        )


@dataclass(frozen=True)
class Scene:
    """Requests, their media by request name, and which of them share a key wrongly.

    `client` is the number of the engine's client that sent the last request.
    """

    name: str
    plans: tuple[RequestPlan, ...]
    media: dict[str, tuple[Medium, ...]]
    wrong: tuple[str, ...] = ()
    client: int = 0
    setup: Setup = field(default_factory=lambda: Setup(token_budget=64))


class EncodingWorker(Worker):
    """Encodes what frames tell it to, and notes each use of an entry that has another size."""

    def __init__(self, media: dict[str, tuple[Medium, ...]]) -> None:
        super().__init__()
        self.media = media
        self.encoded: dict[str, int] = {}
        self.foreign_uses: set[str] = set()

    def compute(self, scheduler_output: Any) -> None:
        """Encode, compute, look at what was used, and forget what may be forgotten."""
        for name, places in scheduler_output.scheduled_encoder_inputs.items():
            for place in places:
                medium = self.media[name][place]
                self.encoded[medium.key] = medium.placeholders
        super().compute(scheduler_output)
        for row in self.in_flight[-1]:
            for medium in self.media.get(row.request_id, ()):
                is_used = (
                    row.start < medium.offset + medium.placeholders and row.end > medium.offset
                )
                if is_used and self.encoded[medium.key] != medium.placeholders:
                    self.foreign_uses.add(row.request_id)
        for key in scheduler_output.free_encoder_mm_hashes:
            self.encoded.pop(key, None)


class MediaPipeline(Pipeline):
    """A pipeline whose requests have media, and whose scheduler keeps an encoder cache."""

    def __init__(self, scene: Scene) -> None:
        worker = EncodingWorker(scene.media)
        super().__init__(scene.setup, scene.plans, worker)
        self.scene = scene
        self.encoding_worker = worker
        # Their sizes come from the model, and there is none.
        self.scheduler.max_num_encoder_input_tokens = CACHE_SIZE
        self.scheduler.encoder_cache_manager = EncoderCacheManager(cache_size=CACHE_SIZE)
        # So that no prompt takes all of a frame, and media are used in chunks.
        self.scheduler.scheduler_config.long_prefill_token_threshold = CHUNK

    def make_request(self, plan: RequestPlan) -> Request:
        """The real request of a plan, with its media."""
        is_last = plan.name == self.scene.plans[-1].name
        return make_request(
            plan,
            self.setup,
            mm_features=[medium.feature() for medium in self.scene.media.get(plan.name, ())],
            client_index=self.scene.client if is_last else 0,
        )


def _plan(key: int, name: str, prompt: int, tokens: int, arrives_at: int = 0) -> RequestPlan:
    return RequestPlan(key, name, prompt_length=prompt, max_tokens=tokens, arrives_at=arrives_at)


def scenes() -> Iterator[Scene]:
    """Both directions of size; the owner running or gone; the second waiting or running."""
    bystander = _plan(9, "bystander", 20, 40)
    for first, second in ((30, 90), (90, 30)):
        sizes = f"{first}-then-{second}"
        media = {
            "owner": (Medium("same", 4, first),),
            "other": (Medium("other's own", 2, 8), Medium("same", 20, second)),
        }
        other = _plan(2, "other", 20 + second + 5, 12, arrives_at=6)
        for depth in (1, 2):
            setup = Setup(token_budget=64, frames_in_flight=depth)
            running = (bystander, _plan(1, "owner", first + 8, 30), other)
            gone = (bystander, _plan(1, "owner", first + 8, 1), other)
            yield Scene(f"owner-runs-{sizes}-{depth}", running, media, ("other",), 1, setup)
            yield Scene(f"owner-is-gone-{sizes}-{depth}", gone, media, ("other",), 0, setup)
        # The second request is in the middle of its prompt when the first one gets the key.
        late = {"other": (Medium("same", 200, second),), "owner": (Medium("same", 4, first),)}
        plans = (
            _plan(2, "other", 200 + second + 5, 12),
            bystander,
            _plan(1, "owner", first + 8, 30, arrives_at=2),
        )
        yield Scene(f"second-runs-{sizes}", plans, late, ("other",))
        twice = {"other": (Medium("same", 4, first), Medium("same", 4 + first, second))}
        alone = (bystander, _plan(2, "other", first + second + 9, 12))
        yield Scene(f"one-request-twice-{sizes}", alone, twice, ("other",))
    shared = {name: (Medium("same", 4, 30),) for name in ("owner", "other")}
    plans = (bystander, _plan(1, "owner", 40, 30), _plan(2, "other", 50, 12, arrives_at=6))
    yield Scene("healthy-shared-key", plans, shared)
    separate = {"owner": (Medium("a", 4, 30),), "other": (Medium("b", 4, 40),)}
    yield Scene("healthy-two-keys", plans, separate)


def run_scene(scene: Scene) -> dict[str, Any]:
    """What came of one scene, beside what should have come."""
    pipeline = MediaPipeline(scene)
    outcome = pipeline.run()
    expected = {plan.name: plan.expected_tokens() for plan in scene.plans}
    last = outcome.requests.get(scene.plans[-1].name)
    return {
        "error": outcome.error and asdict(outcome.error),
        "wrong": [n for n, d in outcome.requests.items() if d.tokens != expected[n]],
        "finished": {name: d.finish_reason for name, d in outcome.requests.items()},
        "given": {name: len(d.tokens) for name, d in outcome.requests.items()},
        "client": last and last.client,
        "foreign_uses": sorted(pipeline.encoding_worker.foreign_uses),
        "leaked": outcome.free_blocks_before - outcome.free_blocks_after,
        "left": outcome.unfinished_requests,
        "trace": outcome.trace,
    }


def run_arm(scene: Scene, arm: Arm) -> dict[str, Any]:
    """Run one scene, with the guard if the arm has one."""
    if arm.guard_mode is None:
        return run_scene(scene)
    with unpatched_afterwards("mm_merge", arm.guard_mode):
        vllm_guard.register()
        return run_scene(scene) | {"guard": report("mm_merge")}


def outcomes() -> dict[str, Any]:
    """Run all scenes in all arms on the imported vLLM."""
    arms = (Arm.UNGUARDED, Arm.GUARDED, Arm.OBSERVED)
    return {
        scene.name: asdict(scene) | {"arms": {arm.value: run_arm(scene, arm) for arm in arms}}
        for scene in scenes()
    }
