"""The systems that are compared: their models with the same weights, and the settings in which users run them.

b: batch; c: channels; h, w: height and width; n: outputs.
"""

import copy
import gc
import importlib.util
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitreous.benchmarking.timing import Contender, Skip, Steps
from vitreous.common.text import single_spaced
from vitreous.inference.forward_pass import mixed_precision
from vitreous.inference.fp8 import CALIBRATION_IMAGES
from vitreous.inference.predictor import Predictor
from vitreous.model.build import build
from vitreous.model.options import Gelu
from vitreous.model.protocol import Model, ModelConfig
from vitreous.training.compiling import GRAPH_MEMORY, GraphedModule, compile_blocks, compiled
from vitreous.weights.load import save
from vitreous.weights.peers import PEERS as LIBRARIES
from vitreous.weights.peers import load_peer, repair_torchvision

Workload = Literal["train", "inference", "latency"]
Forward = Callable[[Tensor], Tensor]
# Largest difference of an output from float64, as a fraction of the largest output. Others compute another function.
TOLERANCES = {torch.float32: 1e-2, torch.bfloat16: 0.1}
LONG_JOB = 10**6  # images, so that predictors on a CPU choose their backend as in `vitreous predict`


@dataclass(frozen=True)
class Peer:
    """Another library. `changes` are the fields in which its architecture always differs."""

    package: str
    format: str
    changes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def installed(self) -> bool:
        return importlib.util.find_spec(self.package) is not None


PEERS = {
    "timm": Peer("timm", "timm"),
    "transformers": Peer("transformers", "huggingface"),
    "torchvision": Peer("torchvision", "torchvision"),
    "vit-pytorch": Peer(
        "vit_pytorch",
        "lucidrains",
        {"patch_norm": True, "patch_method": "linear", "qkv_bias": False, "norm_eps": 1e-5},
    ),
}
OURS, OURS_TANH = "vitreous", "vitreous, tanh GELU"


@dataclass(frozen=True)
class Case:
    """A model, and how it is run."""

    workload: Workload
    device: torch.device
    dtype: torch.dtype
    images: Float[Tensor, "b c h w"]
    labels: Int[Tensor, " b"]


# ---- Models with the same weights ------------------------------------------------------------------------------------


def comparable(config: ModelConfig) -> ModelConfig:
    """Return the config without options that only some libraries have: stochastic depth, and the tanh form of GELU."""
    changes: dict[str, Any] = {"stochastic_depth": 0.0} if hasattr(config, "stochastic_depth") else {}
    return config.override(changes | ({"mlp": Gelu("erf")} if has_tanh(config) else {}))


def has_tanh(config: ModelConfig) -> bool:
    return getattr(config, "mlp", None) == Gelu("tanh")


class Models:
    """The models of all systems for one config. Each is built once, and copied for every setting."""

    def __init__(self, config: ModelConfig):
        self.config = config
        self._references: dict[ModelConfig, Model] = {}
        self._modules: dict[str, nn.Module] = {}
        self._expected: dict[ModelConfig, Tensor] = {}

    def reference(self, system: str) -> Model:
        """Return the Vitreous model that computes the same function as a system, with random weights everywhere."""
        config = self._config(system)
        if config not in self._references:
            torch.manual_seed(0)
            model = build(config)
            with torch.no_grad():  # new models contain zeros, which hide differences
                for weight in model.parameters():
                    weight.add_(torch.randn_like(weight), alpha=0.02)
            self._references[config] = model
        return self._references[config]

    def _config(self, system: str) -> ModelConfig:
        changes = {"mlp": Gelu("tanh")} if system == OURS_TANH else PEERS[system].changes if system in PEERS else {}
        return self.config.override(dict(changes))

    def copy_of(self, system: str) -> nn.Module:
        """Return a float32 model of a system on the CPU."""
        if system not in PEERS:
            return copy.deepcopy(self.reference(system))
        if system not in self._modules:
            self._modules[system] = _peer_model(PEERS[system], self.reference(system))
        return copy.deepcopy(self._modules[system])

    def unsupported(self, system: str) -> str:
        """Return the reason why another library cannot build this model, or an empty string."""
        if (type(self.config), PEERS[system].format) not in LIBRARIES:
            return f"it has no {self.config.summary}"
        try:
            self.copy_of(system)
        except Exception as error:  # an unsupported option, or a broken installation
            return single_spaced(str(error), 300)
        return ""

    def expected(self, system: str, image: Float[Tensor, "1 c h w"]) -> Float[Tensor, "1 n"]:
        """Return the outputs in float64 on the CPU for the first image, which is the same in all cases."""
        config = self._config(system)
        if config not in self._expected:
            where = image.device if image.is_cuda else torch.device("cpu")  # other devices have no float64
            model = copy.deepcopy(self.reference(system)).eval().double().to(where)
            with torch.no_grad():
                self._expected[config] = model(image.to(where).double()).cpu()
        return self._expected[config]


def _peer_model(peer: Peer, model: Model) -> nn.Module:
    """Build the model of another library with the weights of a Vitreous model."""
    repair_torchvision()
    if peer.package == "timm":
        from timm.layers import set_fused_attn

        set_fused_attn(True, experimental=True)  # timm's fastest attention, also in windows
    if peer.package == "transformers":
        from transformers.utils import logging

        logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ("model.pth" if peer.format in ("torchvision", "lucidrains") else "model")
        save(model, path, peer.format)
        return load_peer(peer.format, path, model.config)


# ---- Settings --------------------------------------------------------------------------------------------------------


def _default_step(model: Any, case: Case) -> Forward:
    """Prepare a training step as `vitreous train` does by default (see training/compiling.py)."""
    if case.device.type != "cuda":
        return model
    if model.kernels(case.device, case.dtype).scope != "blocks":
        compile_blocks(model.blocks)
    with mixed_precision(case.device, case.dtype):  # kernels are compiled before the recording
        model(case.images).float().mean().backward()
    model.zero_grad()
    return GraphedModule(model)


def _predictor(model: Any, case: Case, **options: Any) -> Forward:
    options = {"precision": "bf16" if case.dtype == torch.bfloat16 else "fp32", "backend": "auto"} | options
    predictor = Predictor(model, case.device, len(case.images), workers=0, **options)
    predictor.prepare(LONG_JOB)
    return predictor.outputs


def _fp8_predictor(model: Any, case: Case) -> Forward:
    if case.dtype != torch.bfloat16:
        raise Skip("fp8 is measured beside bf16")
    run = _predictor(model, case, precision="fp8")
    with torch.inference_mode():
        for _ in range(0, CALIBRATION_IMAGES, len(case.images)):  # after these images, it computes in 8 bits
            run(case.images.to(case.dtype))
    return run


def _whole(model: Any, case: Case) -> Forward:
    return compiled(model, graphs=False)


def _whole_with_graphs(model: Any, case: Case) -> Forward:
    return compiled(model, graphs=True)


@dataclass(frozen=True)
class Setting:
    """A way to run a model.

    apply: Returns a function of a batch of images. Training gets the model on its device, in float32 and training mode;
        the other workloads get our models in float32 on the CPU, and those of other libraries converted.
    """

    name: str
    apply: Callable[[Any, Case], Forward]
    compiles: bool = False
    records: bool = False  # CUDA graphs, whose memory stays reserved
    tolerance: float | None = None  # largest difference from float64, by default that of the precision


EAGER = Setting("eager", lambda model, case: model)
COMPILED = Setting("compiled", _whole, compiles=True)
GRAPHS = Setting("CUDA graphs", _whole_with_graphs, compiles=True, records=True)
# Another backend is one more row, e.g. Setting("name", lambda model, case: _predictor(model, case, option=...)).
OUR_PREDICTIONS = (
    Setting("default", _predictor),
    Setting("compiled", lambda model, case: _predictor(model, case, compile=True), compiles=True),
)
FP8 = Setting("fp8", _fp8_predictor, tolerance=0.3)


def settings_of(system: str, workload: Workload, device: torch.device) -> tuple[Setting, ...]:
    """Return the settings of a system, from the fastest to set up to the slowest."""
    gpu = device.type == "cuda"
    if system in PEERS:
        return (EAGER, COMPILED, GRAPHS) if gpu else (EAGER, COMPILED)
    if workload != "train":
        return (OUR_PREDICTIONS[0], FP8, OUR_PREDICTIONS[1]) if gpu else OUR_PREDICTIONS
    default = Setting("default", _default_step, records=gpu)
    return (EAGER, default, COMPILED) if gpu else (default, COMPILED)


# ---- Steps -----------------------------------------------------------------------------------------------------------


def contender(system: str, setting: Setting, models: Models, case: Case, peaks: dict[str, int]) -> Contender:
    """Return a system in a setting. `peaks` collects the memory that each system needs without CUDA graphs."""

    def prepare(this: Contender) -> Steps:
        before = _clear(case.device)
        if setting.records:
            _check_room(peaks.get(system, 0), max(peaks.values(), default=0))
        start = _training_step if case.workload == "train" else _prediction
        step = start(system, setting, models.copy_of(system), case)
        outputs = step()
        limit = setting.tolerance or TOLERANCES[case.dtype]
        this.difference = _difference(outputs, models.expected(system, case.images[:1]), limit)
        del outputs
        if case.device.type == "cuda":
            for _ in range(WARM_UP):
                step()
            this.memory_bytes = _peak(step, case.device) - before
            if not setting.records:
                peaks[system] = this.memory_bytes
        return _repeated(step, case)

    return Contender(system, setting.name, prepare)


WARM_UP = 3  # steps on a GPU; torch.compile records its graphs in the second one


def _training_step(system: str, setting: Setting, model: nn.Module, case: Case) -> Callable[[], Tensor]:
    model = model.to(case.device).train()
    optimizer, run = _adamw(model), setting.apply(model, case)

    def step() -> Tensor:
        with mixed_precision(case.device, case.dtype):
            outputs = _first_token(run(case.images))
            loss = F.cross_entropy(outputs, case.labels)
        first = outputs.detach()[:1].clone()
        torch.autograd.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        return first

    return step


def _adamw(model: nn.Module) -> torch.optim.Optimizer:
    """Build a fused AdamW without weight decay for biases and norms."""
    matrices = [weight for weight in model.parameters() if weight.ndim >= 2]
    others = [weight for weight in model.parameters() if weight.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=1e-4, fused=True)


def _prediction(system: str, setting: Setting, model: nn.Module, case: Case) -> Callable[[], Tensor]:
    model = model.eval()
    run = setting.apply(model.to(case.device, case.dtype) if system in PEERS else model, case)
    images = case.images.to(case.dtype)

    @torch.inference_mode()
    def step() -> Tensor:
        return _first_token(run(images))

    return step


def _first_token(outputs: Tensor) -> Tensor:
    """Return the class token if a model without a head returns all tokens."""
    return outputs[:, 0] if outputs.ndim == 3 else outputs


def _repeated(step: Callable[[], object], case: Case) -> Steps:
    """Return a function that runs several steps. It waits for the device at the end or, for the latency, every time."""

    def run(count: int) -> None:
        for _ in range(count):
            step()
            if case.workload == "latency":
                _wait(case.device)
        _wait(case.device)

    return run


def _difference(outputs: Tensor, expected: Tensor, limit: float) -> float:
    """Return the largest difference from float64, as a fraction of the largest output. Reject another function."""
    found = ((outputs[:1].cpu().double() - expected).abs().max() / expected.abs().max()).item()
    if not found <= limit:
        raise ValueError(f"the outputs differ from float64 by {found:.2g} of the largest output")
    return found


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


# ---- Memory ----------------------------------------------------------------------------------------------------------
# Reserved memory includes that of CUDA graphs, unlike allocated memory.


def _clear(device: torch.device) -> int:
    """Free cached memory of the GPU. Return the number of bytes that are still reserved."""
    if device.type != "cuda":
        return 0
    gc.collect()
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved(device)


def _peak(step: Callable[[], object], device: torch.device) -> int:
    _clear(device)
    torch.cuda.reset_peak_memory_stats(device)
    step()
    return torch.cuda.max_memory_reserved(device)


def _check_room(needed: int, largest: int) -> None:
    """Raise Skip if the memory that CUDA graphs would reserve is too large, or needed by the largest system."""
    free, total = torch.cuda.mem_get_info()
    if needed > GRAPH_MEMORY * total:
        raise Skip(f"CUDA graphs are not used if a step needs more than {GRAPH_MEMORY:.0%} of the memory")
    if free < needed + largest:
        raise Skip(f"CUDA graphs need {needed / 2**30:.0f} GiB, and the other systems {largest / 2**30:.0f}")


# ---- Peak speed ------------------------------------------------------------------------------------------------------

GPU_PRODUCT, CPU_PRODUCT = 8192, 1024  # rows and columns of the matrices


def matrix_product(device: torch.device, dtype: torch.dtype) -> tuple[Contender, float]:
    """Return a large matrix product, and its number of FLOPs, to measure the peak speed of the device."""
    size = GPU_PRODUCT if device.type == "cuda" else CPU_PRODUCT

    def prepare(this: Contender) -> Steps:
        a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
        out = torch.empty_like(a)

        def run(count: int) -> None:
            for _ in range(count):
                torch.mm(a, b, out=out)
            _wait(device)

        run(WARM_UP if device.type == "cuda" else 1)
        return run

    return Contender("matrix product", f"{size} x {size}", prepare), 2.0 * size**3
