# The server for the CPU, with the embedded voice. Build from a checkout: docker build -t legato .
FROM python:3.12-slim

ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1

# With a C compiler `--quant int8` is about twice as fast: its inner loops are made for the CPU that they run on.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /app
COPY constraints.txt ./
# The large part first, so that a change of the code does not fetch it again.
RUN pip install --index-url https://download.pytorch.org/whl/cpu "$(grep '^torch==' constraints.txt)"

COPY pyproject.toml README.md LICENSE NOTICE ./
COPY legato ./legato
RUN pip install -c constraints.txt '.[server]' \
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

# Options after the image's name are those of `legato serve`: docker run legato --slots 4
ENTRYPOINT ["legato", "serve", "--host", "0.0.0.0", "--port", "8000"]
