"""Start, watch and stop a real vLLM API server."""

from __future__ import annotations

import http.client
import os
import re
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import psutil

FAULTS_FOLDER = Path(__file__).resolve().parents[1] / "faults"
START_SECONDS = 240
STOP_SECONDS = 15
CLEANING_SECONDS = 5
HEALTHY = "200"
# So few tokens a step that every long prompt takes several chunks.
BATCHED_TOKENS = 128


class ServerFailed(Exception):
    """The server could not be brought up."""


@dataclass(frozen=True)
class EngineProcess:
    """One process, told apart from a later one that got the same number."""

    pid: int
    started: float


class Server:
    """A vLLM API server; a context manager that leaves no process behind.

    Args:
        python: The interpreter of the environment whose vLLM is to serve.
        model: The model's folder.
        log: File for everything the server's processes print.
        options: Command-line options on top of those that every server gets.
        environment: Variables on top of this process's own.
        module: What Python is to run, with the first of its arguments.
    """

    def __init__(
        self,
        python: Path,
        model: Path,
        log: Path,
        options: Sequence[str],
        environment: dict[str, str],
        *,
        module: Sequence[str] = ("vllm.entrypoints.openai.api_server",),
    ) -> None:
        self.port = _free_port()
        self._python = python
        self._model = model
        self._log = log
        self._options = options
        self._environment = environment
        self._module = module
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Server:
        try:
            self._start()
            self._wait_until_healthy()
        except BaseException:
            # While it starts, a server does not heed a polite signal for half a minute.
            self.stop(patience=0)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop(patience=STOP_SECONDS)

    def health(self) -> str:
        """Return the status code of ``/health`` as text, or why there is none."""
        try:
            with self._get("/health") as response:
                return str(response.status)
        except ConnectionRefusedError:
            return "refused"
        except (OSError, http.client.HTTPException) as error:
            return type(error).__name__

    def counter(self, name: str) -> int | None:
        """Return the sum of a counter over all engines, or None if the server does not tell.

        Args:
            name: In the metrics, without its ending ``_total``.
        """
        try:
            with self._get("/metrics") as response:
                lines = response.read().decode().splitlines()
        except (OSError, http.client.HTTPException):
            return None
        values = [line.split()[-1] for line in lines if line.startswith(f"{name}_total{{")]
        return int(sum(map(float, values))) if values else None

    def engine_core(self) -> EngineProcess | None:
        """Return the EngineCore process that is running now, if any."""
        return next(iter(self._processes("EngineCore")), None)

    def workers(self) -> set[EngineProcess]:
        """Return the worker processes that are running now."""
        return self._processes("Worker")

    def processes(self) -> dict[EngineProcess, str]:
        """Return what each of the server's processes that are running now is."""
        return {
            EngineProcess(process.pid, process.create_time()): self._role(process)
            for process in self._family()
        }

    def _role(self, process: psutil.Process) -> str:
        assert self._process is not None
        if process.pid == self._process.pid:
            return "APIServer"
        if _is_resource_tracker(process):
            return "resource tracker"
        title = re.match(r"VLLM::(\w+)", _command(process))
        return title[1] if title else "other"

    def _processes(self, title: str) -> set[EngineProcess]:
        return {
            EngineProcess(process.pid, process.create_time())
            for process in self._family()
            if f"VLLM::{title}" in _command(process)
        }

    def wait_for_exit(self, seconds: float) -> int | None:
        """Return the API server's exit code, or None if it still runs.

        Args:
            seconds: How long to wait for it.
        """
        assert self._process is not None
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def stop(self, patience: float) -> None:
        """End the server and everything it started; politely first.

        Args:
            patience: Seconds it has for ending by itself.
        """
        if self._process is None:
            return
        self._process.terminate()
        self.wait_for_exit(patience)
        # Those that clean up shared memory end by themselves, after all others.
        _kill([process for process in self._family() if not _is_resource_tracker(process)])
        _kill(psutil.wait_procs(self._family(), timeout=CLEANING_SECONDS)[1])
        self._process.wait()

    @contextmanager
    def _get(self, path: str) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", path)
            yield connection.getresponse()
        finally:
            connection.close()

    def _start(self) -> None:
        arguments = {
            "--model": str(self._model),
            "--served-model-name": "tiny",
            "--host": "127.0.0.1",
            "--port": str(self.port),
            "--dtype": "float32",
            "--max-model-len": "1024",
            "--max-num-seqs": "16",
            "--max-num-batched-tokens": str(BATCHED_TOKENS),
        }
        # Without prefix caching a prompt is computed in full, and in chunks, each time it is sent.
        switches = ["--enforce-eager", "--enable-chunked-prefill", "--no-enable-prefix-caching"]
        command = [str(self._python), "-m", *self._module, *switches]
        for name, value in arguments.items():
            command += [name, value]
        command += self._options
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                # vLLM and the guard must be the installed ones, not what lies in the folder.
                cwd=self._log.parent,
                env=engine_environment(self._environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # By their session all its processes are found again, orphans too.
                start_new_session=True,
            )

    def _wait_until_healthy(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise ServerFailed(
                    f"the server ended with code {self._process.returncode} before it was up;"
                    f" its log is {self._log}"
                )
            if self.health() == HEALTHY:
                return
            time.sleep(0.2)
        raise ServerFailed(f"the server was not up after {START_SECONDS} s; its log is {self._log}")

    def _family(self) -> list[psutil.Process]:
        """Return all living processes of the server's session.

        Those whose parent is gone belong to it too.
        """
        assert self._process is not None
        family = []
        for process in psutil.process_iter():
            with suppress(ProcessLookupError, psutil.NoSuchProcess):
                in_session = os.getsid(process.pid) == self._process.pid
                if in_session and process.status() != psutil.STATUS_ZOMBIE:
                    family.append(process)
        return family


def engine_environment(chosen: Mapping[str, str]) -> dict[str, str]:
    """Return all variables of a process that runs vLLM on a CPU.

    Args:
        chosen: Variables that differ from test to test.
    """
    # No switch of vLLM, of a guard or of the faults comes from whoever runs the tests.
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("VLLM", "FAULTS_"))
    }
    return {
        **inherited,
        "PYTHONPATH": str(FAULTS_FOLDER),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        # Compiling the sampler takes longer than all that is asked of the server.
        "TORCHDYNAMO_DISABLE": "1",
        "NO_COLOR": "1",
        **chosen,
    }


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def _is_resource_tracker(process: psutil.Process) -> bool:
    return "multiprocessing.resource_tracker" in _command(process)


def _kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
