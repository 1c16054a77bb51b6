"""Serving overhead: a ViT-Ti/16 behind `vitreous serve` with many clients on the same machine.

Raw is the model alone in this process, on preprocessed batches in memory, with the best of several batch sizes and
thread layouts (one forward pass on all cores, or one on each). All other phases are measured end to end over HTTP with
JPEG files; the clients (one process, plain sockets) run on the same cores.

- peak: clients with persistent connections send the next request after each response. Raw and peak alternate, so that
  noise affects both, and medians are reported. On a machine with other load, compare CPU time instead: the fraction of
  the CPU time of server and clients that is spent in the model.
- overload: requests at ten times the peak rate, without waiting for responses. The accepted rate should stay near the
  peak, and all other requests should get 429 immediately. The delay of the clients shows how busy the machine is.
- soak (--soak-minutes): the peak load for a long time, to check that the server's memory does not grow.
- stop: SIGTERM under peak load. The server must respond to every request that it has read.

    python -m benchmarks.serving --soak-minutes 10
"""

import asyncio
import contextlib
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import tyro
import uvloop

import vitreous
from benchmarks.http_load import Response, closed_loop, open_loop, request
from benchmarks.jpeg_decoding import Options as Pictures
from benchmarks.jpeg_decoding import draw_pictures
from benchmarks.publish_table import publish

HOST = "127.0.0.1"


@dataclass(frozen=True)
class Options:
    """Benchmark options."""

    model: str = "ViT-Ti/16"
    side: int = 256  # image size of the JPEG files in pixels
    clients: int = 48
    seconds: float = 20.0  # per round
    rounds: int = 3  # of raw and peak
    overload: float = 10.0  # multiple of the peak rate
    soak_minutes: float = 0.0
    out: Path = Path("runs/bench/serving.json")


@dataclass(frozen=True)
class Result:
    phase: str
    figure: str
    value: float
    wanted: str


@dataclass(frozen=True)
class Running:
    """Server process."""

    process: "subprocess.Popen[str]"
    port: int

    @property
    def processor(self) -> float:
        """CPU time in seconds."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def memory(self) -> float:
        """Resident memory in MB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) / 1e3


@contextlib.contextmanager
def served(checkpoint: Path) -> Iterator[Running]:
    command = [sys.executable, "-m", "vitreous", "serve", str(checkpoint), "--port", "0", "--device", "cpu"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r":(\d+) ", process.stdout.readline())
            assert found is not None, "the server did not start"
            yield Running(process, int(found[1]))
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)


# ---- The model alone -------------------------------------------------------------------------------------------------


def raw_rates(model: torch.nn.Module, seconds: float) -> dict[str, float]:
    """Measure images per second by thread layout and batch size."""
    cores = os.cpu_count() or 1
    rates = {}
    for batch in (4, 8, 16, 32):
        for threads, each in {(1, cores), (cores, 1)}:
            rates[f"{threads} x {each} threads, batch {batch}"] = raw_rate(model, batch, threads, each, seconds)
    return rates


@torch.inference_mode()
def raw_rate(model: torch.nn.Module, batch: int, threads: int, each: int, seconds: float) -> float:
    counts = [0] * threads
    images = torch.randn(batch, 3, 224, 224)
    end = time.monotonic() + seconds

    def work(number: int) -> None:
        torch.set_num_threads(each)
        with torch.inference_mode():
            while time.monotonic() < end:
                model(images)
                counts[number] += batch

    model(images)
    began = time.monotonic()
    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(counts) / (time.monotonic() - began)


# ---- Over HTTP -------------------------------------------------------------------------------------------------------


def steady_rate(responses: list[Response], lead: float = 3.0) -> float:
    """Return images per second while all clients are active, ignoring the first `lead` seconds."""
    began = min(response.began for response in responses) + lead
    end = max(response.began for response in responses)
    done = [response.began + response.seconds for response in responses if response.status == 200]
    return sum(began <= moment <= end for moment in done) / (end - began)


def percentile(values: list[float], fraction: float) -> float:
    return sorted(values)[min(int(fraction * len(values)), len(values) - 1)] if values else float("nan")


async def stopped(running: Running, requests: list[bytes], clients: int) -> tuple[int, int]:
    """Send SIGTERM after three seconds of load, and return the numbers of sent and answered requests."""
    found: list[Response] = []
    load = asyncio.create_task(closed_loop(HOST, running.port, requests, clients, 60, found))
    await asyncio.sleep(3)
    running.process.send_signal(signal.SIGTERM)
    await load
    return len(found), sum(response.status == 200 for response in found)


async def soaked(running: Running, requests: list[bytes], clients: int, minutes: float) -> list[float]:
    """Sample the memory twice a second, because it varies by 10% from batch to batch."""
    load = asyncio.create_task(closed_loop(HOST, running.port, requests, clients, 60 * minutes))
    samples = []
    while not load.done():
        samples.append(running.memory)
        await asyncio.sleep(0.5)
    await load
    return samples


# ---- Phases ----------------------------------------------------------------------------------------------------------


def measure_peak(model: torch.nn.Module, running: Running, requests: list[bytes], options: Options) -> list[Result]:
    ways = raw_rates(model, options.seconds / 8)
    way = max(ways, key=lambda layout: ways[layout])
    threads, each, batch = map(int, re.findall(r"\d+", way))
    raws, peaks, alone, together, responses = [], [], [], [], []
    for _ in range(options.rounds):
        began = time.process_time()
        raws.append(raw_rate(model, batch, threads, each, options.seconds / 2))
        alone.append((time.process_time() - began) / (raws[-1] * options.seconds / 2))
        began = time.process_time() + running.processor
        responses = uvloop.run(closed_loop(HOST, running.port, requests, options.clients, options.seconds))
        together.append((time.process_time() + running.processor - began) / len(responses))
        peaks.append(steady_rate(responses))
    raw, peak = statistics.median(raws), statistics.median(peaks)
    cost, whole = statistics.median(alone), statistics.median(together)
    return [
        Result("raw", f"images/s ({way})", raw, ""),
        Result("raw", "CPU ms per image", 1e3 * cost, ""),
        Result("peak", f"images/s, {options.clients} clients", peak, ""),
        Result("peak", "fraction of raw", peak / raw, ">= 0.80"),
        Result("peak", "CPU ms per image, server and clients", 1e3 * whole, ""),
        Result("peak", "fraction of CPU time in the model", cost / whole, ">= 0.80"),
        Result("peak", "responses other than 200", sum(response.status != 200 for response in responses), "0"),
        Result("peak", "median latency, s", statistics.median(response.seconds for response in responses), ""),
    ]


def measure_overload(running: Running, requests: list[bytes], peak: float, options: Options) -> list[Result]:
    flood = uvloop.run(open_loop(HOST, running.port, requests, options.overload * peak, options.seconds))
    again = uvloop.run(closed_loop(HOST, running.port, requests, options.clients, options.seconds))
    refused = [response.seconds for response in flood if response.status == 429]
    accepted, after = steady_rate(flood), steady_rate(again)
    return [
        Result("overload", "requests/s", len(flood) / options.seconds, f"{options.overload:g} x peak"),
        Result("overload", "accepted/s", accepted, ""),
        Result("overload", "accepted, fraction of peak", accepted / statistics.median([peak, after]), ">= 0.80"),
        Result("overload", "429", len(refused), ""),
        Result("overload", "429, p50 ms", 1e3 * percentile(refused, 0.5), ""),
        Result("overload", "429, p99 ms", 1e3 * percentile(refused, 0.99), "< 50"),
        Result("overload", "client delay, p99 ms", 1e3 * percentile([response.late for response in flood], 0.99), ""),
        Result("overload", "neither 200 nor 429", sum(response.status not in (200, 429) for response in flood), "0"),
        Result("overload", "peak after overload, images/s", after, ""),
    ]


def measure_soak(running: Running, requests: list[bytes], options: Options) -> list[Result]:
    """Compare memory in the first and last tenth of the time."""
    samples = uvloop.run(soaked(running, requests, options.clients, options.soak_minutes))
    tenth, minutes = len(samples) // 10, options.soak_minutes / 10
    before, after = samples[:tenth], samples[-tenth:]
    growth, highest = statistics.median(after) / statistics.median(before) - 1, max(after) / max(before) - 1
    return [
        Result("soak", f"median MB in the first {minutes:g} min", statistics.median(before), ""),
        Result("soak", f"median MB in the last {minutes:g} min", statistics.median(after), ""),
        Result("soak", "growth of the median", growth, "< 0.05"),
        Result("soak", f"maximum MB in the first {minutes:g} min", max(before), ""),
        Result("soak", f"maximum MB in the last {minutes:g} min", max(after), ""),
        Result("soak", "growth of the maximum", highest, "< 0.05"),
    ]


def measure_stop(running: Running, requests: list[bytes], options: Options) -> list[Result]:
    sent, answered = uvloop.run(stopped(running, requests, options.clients))
    return [
        Result("stop", "sent", sent, ""),
        Result("stop", "answered", answered, ""),
        Result("stop", "lost", sent - answered, "0"),
        Result("stop", "exit status", running.process.wait(timeout=60), "0"),
    ]


def main(options: Options) -> None:
    torch.manual_seed(0)
    model = vitreous.create(options.model).eval()
    pictures = draw_pictures(Pictures(height=options.side, width=options.side))
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "model"
        vitreous.save(model, checkpoint)
        with served(checkpoint) as running:
            requests = [request(HOST, running.port, "/v1/classify", picture) for picture in pictures]
            uvloop.run(closed_loop(HOST, running.port, requests, options.clients, 5))
            results = measure_peak(model, running, requests, options)
            peak = next(row.value for row in results if row.figure.startswith("images/s,"))
            results += measure_overload(running, requests, peak, options)
            if options.soak_minutes:
                results += measure_soak(running, requests, options)
            results += measure_stop(running, requests, options)
    setting = f"{options.model}, {len(os.sched_getaffinity(0))} CPU cores, {options.side}-pixel JPEG files over HTTP"
    rows = [[row.phase, row.figure, f"{row.value:.4g}", row.wanted] for row in results]
    publish(setting, ["phase", "metric", "measured", "target"], rows, results, options.out)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
