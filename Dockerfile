# The app in a container: docs/hosting.md says how to build and run it. Its steps are those of `make app`.
FROM python:3.12-slim-bookworm

# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends make \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 vitviz \
    && install --directory --owner vitviz --group vitviz /home/vitviz/app /home/vitviz/hub

WORKDIR /home/vitviz/app
COPY --chown=vitviz:vitviz . .
USER 1000:1000

# Another index of packages, such as that of PyTorch's builds without CUDA.
ARG PIP_EXTRA_INDEX_URL=
RUN PIP_NO_CACHE_DIR=1 make .venv/.app PYTHON=python3

# Seen from outside of the container; a port that is taken is an error there, and not a reason for another one.
ENV GRADIO_SERVER_NAME=0.0.0.0 \
    GRADIO_SERVER_PORT=7860 \
    HF_HOME=/home/vitviz/hub \
    PYTHONUNBUFFERED=1
VOLUME /home/vitviz/hub
EXPOSE 7860

HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
    CMD [".venv/bin/python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:7860/health', timeout=4)"]
# Ends the app, which deletes what visitors have uploaded. SIGTERM does the same once it has started.
STOPSIGNAL SIGINT
CMD [".venv/bin/vitviz", "app"]
