# CPU server with the embedded voice. Build from a checkout: docker build -t legato .
FROM python:3.12-slim

# Extras to install: `server`, or `server,cluster` for `legato cluster serve` (deploy/).
ARG EXTRAS=server
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1

# The C compiler builds the native kernels for the CPU of the container; without it the server uses slower PyTorch kernels.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /app
COPY constraints.txt ./
# Install torch first, so that its layer stays cached when the code changes.
RUN pip install --index-url https://download.pytorch.org/whl/cpu "$(grep '^torch==' constraints.txt)"

COPY pyproject.toml README.md LICENSE NOTICE ./
COPY legato ./legato
RUN pip install -c constraints.txt ".[$EXTRAS]" \
    && useradd --create-home --uid 10001 legato \
    && mkdir /data \
    && chown legato /data

USER 10001
ENV HF_HOME=/data/hub XDG_DATA_HOME=/data
VOLUME /data
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s --start-interval=2s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/ready', timeout=4)"]

# Arguments after the image name are options of `legato serve`: docker run legato --max-num-seqs 4
# Set LEGATO_API_KEY: the server listens on all interfaces of the container. Wyoming, which has no keys, stays on loopback
# unless both --wyoming and --wyoming-host 0.0.0.0 are given.
ENTRYPOINT ["legato", "serve", "--host", "0.0.0.0", "--port", "8000"]
