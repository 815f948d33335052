"""What a session ran on: versions and hardware, for the record."""

from __future__ import annotations

import math
import os
import platform
import socket
import sys
import time
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

PACKAGES = ("attnlimit", "torch", "numpy", "scipy", "pydantic", "numba", "transformers", "distributed")


@dataclass(frozen=True)
class Hardware:
    system: str
    processor: str
    cores: int
    memory_gb: float
    instructions: str
    gpus: tuple[str, ...]


@dataclass(frozen=True)
class Session:
    """One time that a run was started."""

    started: str
    host: str
    pid: int
    executor: str
    versions: dict[str, str]
    hardware: Hardware


def session(executor: str) -> Session:
    """This one."""
    started = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    return Session(started, socket.gethostname(), os.getpid(), executor, versions(), hardware())


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def hardware() -> Hardware:
    """Its memory is nan where the system does not tell."""
    memory = math.nan
    if sys.platform != "win32":
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return Hardware(
        system=f"{platform.system()} {platform.release()}",
        processor=_processor(),
        cores=cores(),
        memory_gb=round(memory, 1),
        instructions=torch.backends.cpu.get_cpu_capability(),
        gpus=tuple(torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())),
    )


def cores() -> int:
    """Cores that this process may use, which on a cluster may be fewer than there are."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
