# Vitreous on CPUs. From the root of the repository, with the index of PyTorch's CPU wheels (see pytorch.org):
#   docker build --file docker/cpu.Dockerfile --build-arg TORCH_INDEX=URL --tag vitreous .
#   docker run --publish 8000:8000 --volume ./runs:/data/runs:ro vitreous serve runs/first/best --host 0.0.0.0
# The container also works with --read-only --tmpfs /tmp.

FROM python:3.12-slim AS build
ARG TORCH_INDEX
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python -m venv /opt/vitreous
WORKDIR /source
COPY constraints.txt ./
# torch first: it is large, changes rarely, and its CPU wheels are not in the default index.
RUN test -n "$TORCH_INDEX" || { echo "set --build-arg TORCH_INDEX to the index of PyTorch's CPU wheels"; exit 1; }
RUN /opt/vitreous/bin/pip install --constraint constraints.txt --index-url "$TORCH_INDEX" torch
COPY pyproject.toml MANIFEST.in README.md LICENSE CHANGELOG.md CITATION.cff ./
COPY vitreous vitreous
RUN /opt/vitreous/bin/pip install --constraint constraints.txt ".[data,plot,heic,serve]"

FROM python:3.12-slim
COPY --from=build /opt/vitreous /opt/vitreous
# MPLCONFIGDIR and HF_HOME: matplotlib and huggingface_hub write their caches there.
ENV PATH=/opt/vitreous/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 \
    HOME=/tmp MPLCONFIGDIR=/tmp/matplotlib HF_HOME=/data/huggingface
RUN install --directory --owner 10001 --group 10001 /data /data/huggingface
WORKDIR /data
USER 10001:10001
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/healthz', timeout=4)"]
ENTRYPOINT ["vitreous"]
CMD ["--help"]
