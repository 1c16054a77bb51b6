# Vitreous on NVIDIA GPUs. torch brings its own CUDA libraries; the host needs the NVIDIA driver and container toolkit.
#   docker build --file docker/cuda.Dockerfile --tag vitreous:cuda .
#   docker run --gpus all --shm-size 8g --volume ./:/data vitreous:cuda train --data images/ --out runs/first
# The container also works with --read-only --tmpfs /tmp.

FROM python:3.12-slim AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python -m venv /opt/vitreous
WORKDIR /source
COPY constraints.txt ./
# torch first: it is large and changes rarely. On Linux, the default index has its CUDA wheels.
RUN /opt/vitreous/bin/pip install --constraint constraints.txt torch
COPY pyproject.toml MANIFEST.in README.md LICENSE CHANGELOG.md CITATION.cff ./
COPY vitreous vitreous
RUN /opt/vitreous/bin/pip install --constraint constraints.txt ".[data,plot,heic,serve,track]"

FROM python:3.12-slim
# torch.compile builds GPU kernels with a C compiler.
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/vitreous /opt/vitreous
# Caches: matplotlib, torch.compile, Triton and huggingface_hub write there.
ENV PATH=/opt/vitreous/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 \
    HOME=/tmp MPLCONFIGDIR=/tmp/matplotlib HF_HOME=/data/huggingface \
    NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
RUN install --directory --owner 10001 --group 10001 /data /data/huggingface
WORKDIR /data
USER 10001:10001
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=120s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/healthz', timeout=4)"]
ENTRYPOINT ["vitreous"]
CMD ["--help"]
