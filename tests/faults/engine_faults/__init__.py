"""A vLLM plugin for tests: it makes a real engine fail, and watches what happens.

It is put beside vLLM without being installed: this package's parent folder goes on ``PYTHONPATH``,
where vLLM finds ``engine_faults-0.dist-info`` and calls `register` in each of its processes.
It works with and without vllm_guard, and wraps nothing that a guard wraps.

Everything is switched by environment variables; what is not set is not done:

``FAULTS_ASYNC_SCHEDULING``  ``1`` turns asynchronous scheduling on, which vLLM refuses on a CPU.
``FAULTS_START_METHOD``      ``fork`` or ``spawn``: how processes are started; a CPU's are spawned.
``FAULTS_ADMISSION``         ``1`` admits requests at the steps that their ids say, see `admission`.
``FAULTS_PIL_ONLY``          ``1`` lets vLLM's models do without torchvision where that is missing.
``FAULTS_TOKEN_RATE``        Share (0 to 1) of unfinished prefill chunks that return a token.
``FAULTS_SEED``              Seed that chooses those chunks (default 0).
``FAULTS_TOKEN``             The token (default 5). If set, the model must not have it, and what
                             arrives of it too late for its request is counted, see `gone`.
``FAULTS_BY_REQUEST``        ``0`` counts tokens, and not for whom: that would grow for hours.
``FAULTS_RECORD_DIR``        Folder for the JSON files described in `records`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import wrapt

from .admission import admit_in_order
from .gone import Gone
from .injection import BOGUS_TOKEN, Injector, inject_into_runner
from .observation import observe_engine_core, observe_worker
from .records import Records


def register() -> None:
    """Arm what the environment asks for; no vLLM module is imported here."""
    if os.environ.get("FAULTS_ASYNC_SCHEDULING") == "1":
        wrapt.when_imported("vllm.platforms.cpu")(_allow_async_scheduling)
        wrapt.when_imported("vllm.v1.worker.cpu_model_runner")(_complete_stream)

    if "FAULTS_START_METHOD" in os.environ:
        wrapt.when_imported("vllm.platforms.cpu")(_choose_start_method)

    if os.environ.get("FAULTS_ADMISSION") == "1":
        wrapt.when_imported("vllm.v1.engine.core")(admit_in_order)

    if os.environ.get("FAULTS_PIL_ONLY") == "1" and find_spec("torchvision") is None:
        wrapt.when_imported("transformers.models.pixtral")(_do_without_torchvision)

    folder = os.environ.get("FAULTS_RECORD_DIR")
    if folder is None:
        return
    records = Records(Path(folder))
    token = int(os.environ.get("FAULTS_TOKEN", BOGUS_TOKEN))
    injector = Injector(
        rate=float(os.environ.get("FAULTS_TOKEN_RATE", "0")),
        seed=int(os.environ.get("FAULTS_SEED", "0")),
        records=records,
        token=token,
        by_request=os.environ.get("FAULTS_BY_REQUEST") != "0",
    )
    wrapt.when_imported("vllm.v1.worker.gpu_model_runner")(
        lambda module: inject_into_runner(module, injector)
    )
    wrapt.when_imported("vllm.v1.engine.core")(lambda module: observe_engine_core(module, records))
    wrapt.when_imported("vllm.v1.worker.worker_base")(
        lambda module: observe_worker(module, records)
    )
    if "FAULTS_TOKEN" in os.environ:
        gone = Gone(token, records)
        wrapt.when_imported("vllm.v1.executor.multiproc_executor")(gone.watch_arrivals)
        wrapt.when_imported("vllm.v1.engine.core")(gone.watch_bookings)


def _allow_async_scheduling(module: Any) -> None:
    """Set asynchronous scheduling after `module`, the CPU platform's, has switched it off."""

    def switched_on(
        wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        wrapped(*args, **kwargs)
        config = args[0] if args else kwargs["vllm_config"]
        config.scheduler_config.async_scheduling = True

    wrapt.wrap_function_wrapper(module, "CpuPlatform.check_and_update_config", switched_on)


def _choose_start_method(module: Any) -> None:
    """Set how processes are started after `module`, the CPU platform's, has set it.

    On accelerators vLLM forks, unless something speaks against it.
    """

    def chosen(
        wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        wrapped(*args, **kwargs)
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = os.environ["FAULTS_START_METHOD"]

    wrapt.wrap_function_wrapper(module, "CpuPlatform.check_and_update_config", chosen)


def _do_without_torchvision(module: Any) -> None:
    """Give those who import Pixtral's image processor from `module` the one that needs PIL only.

    vLLM's LLaVA takes a function from it that both have.
    """
    package = module.__name__
    pil_only = import_module(f"{package}.image_processing_pil_pixtral")
    sys.modules[f"{package}.image_processing_pixtral"] = pil_only


def _complete_stream(module: Any) -> None:
    """Give the stand-in for a CUDA stream in `module` the method that asynchronous runs call.

    Up to 0.24 it lacks that: on a CPU nobody calls it there.
    """

    def completed(
        wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        wrapped(*args, **kwargs)
        stream = instance.async_output_copy_stream
        if not hasattr(stream, "wait_stream"):
            stream.wait_stream = lambda other: None

    wrapt.wrap_function_wrapper(module, "CPUModelRunner.__init__", completed)
