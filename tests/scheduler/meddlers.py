"""What scenarios do to the pipeline while it runs, beside their requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.scheduler.experiment import Meddler
from tests.scheduler.oracle import RequestPlan

if TYPE_CHECKING:
    from tests.scheduler.pipeline import Pipeline


class IdReuse(Meddler):
    """Aborts `first` with a decode frame in flight; `second` gets its id before that returns."""

    def __init__(self, first: RequestPlan, second: RequestPlan) -> None:
        self.first = first
        self.second = second
        self.done = False

    def before_step(self, pipeline: Pipeline) -> None:
        delivered = pipeline.outcome.requests[self.first.name]
        in_flight = pipeline.is_in_flight(self.first.request_id)
        if not self.done and in_flight and len(delivered.tokens) >= 3:
            pipeline.abort(self.first.request_id)
            pipeline.add(self.second)
            self.done = True


class LowerPlaceholders(Meddler):
    """Takes `count` off the placeholders of request `name` while frame `frame` is in flight."""

    def __init__(self, name: str, frame: int, count: int) -> None:
        self.name = name
        self.frame = frame
        self.count = count

    def before_return(self, pipeline: Pipeline, frame: int) -> None:
        if frame == self.frame:
            pipeline.request(self.name).num_output_placeholders -= self.count
