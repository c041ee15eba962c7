"""gunicorn's settings, all made from llamarada's own: `gunicorn -c configs/gunicorn.py api.app:app`.

Configure the server by `llamarada serve`'s flags, the LLAMA_ARG_* variables or the file that LLAMARADA_CONFIG_FILE
names (see configs/one.toml), not here; `docs/deployment.md` tells about gunicorn's own flags.
"""

import os

from api.lifecycle import Log, ambient, n_workers, on_exit, on_starting, post_fork, when_ready
from api.listen import gunicorn_bind

__all__ = ["on_exit", "on_starting", "post_fork", "when_ready"]

served = ambient()

bind = gunicorn_bind(served.http.host, served.http.port)
backlog = 512
reuse_port = served.http.reuse_port
certfile = served.http.ssl_cert_file
keyfile = served.http.ssl_key_file

worker_class = "asgi"
workers = n_workers(served)
worker_connections = served.http.worker_connections  # enforced by the application: this worker class does not
preload_app = False  # sockets and event loops must be made after the fork
asgi_lifespan = "on"
asgi_disconnect_grace_period = 0  # a client that leaves frees its slot at once

keepalive = 5  # s
timeout = min(60, served.http.timeout)  # s without a sign of life of a worker, or without progress of a request's body
graceful_timeout = max(1, round(served.http.shutdown_timeout))  # s for running requests when workers are renewed

limit_request_line = 32 * 1024
limit_request_fields = 100
limit_request_field_size = 8 * 1024

worker_tmp_dir = "/dev/shm" if os.path.isdir("/dev/shm") else None  # the workers' signs of life never wait for a disk
control_socket_disable = True
logger_class = Log
loglevel = "warning" if served.log.verbosity < 4 else "debug"
proc_name = "llamarada"
