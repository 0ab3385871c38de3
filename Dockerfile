# One raftlog node. `make image` puts the packages into .image first, so the build needs no network and runs nothing.
# docs/production.md, "Containers", says how to use it. BASE is any image with Python 3.11, bash and CA certificates.
ARG BASE=python:3.11-slim-bookworm
FROM ${BASE}
COPY .image/packages /opt/raftlog
COPY --chown=10001:10001 .image/data /var/lib/raftlog
ENV PYTHONPATH=/opt/raftlog PATH=/opt/raftlog/bin:$PATH PYTHONDONTWRITEBYTECODE=1 \
    RAFTLOG_DATA=/var/lib/raftlog RAFTLOG_HTTP_PROBE_LISTEN=0.0.0.0:7080
USER 10001:10001
WORKDIR /etc/raftlog
VOLUME /var/lib/raftlog
EXPOSE 7001 7101 7080
STOPSIGNAL SIGTERM
# Asks the probe's port without a start of Python.
HEALTHCHECK --interval=5s --timeout=3s --start-period=60s CMD ["bash", "-c", \
    "exec 3<>/dev/tcp/127.0.0.1/7080 && printf 'GET /livez HTTP/1.0\\r\\n\\r\\n' >&3 && read -r _ code _ <&3 && [ \"$code\" = 200 ]"]
ENTRYPOINT ["raftlog"]
CMD ["node", "--config", "node.toml", "--format-new"]
