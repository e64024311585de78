"""Chooses the registry behind ``/metrics``; several API servers have one of their own each."""

import os

from prometheus_client import REGISTRY, CollectorRegistry, multiprocess


def get_prometheus_registry():
    if os.getenv("PROMETHEUS_MULTIPROC_DIR") is not None:
        registry = CollectorRegistry()
        multiprocess.MultiProcessCollector(registry)
        return registry
    return REGISTRY
