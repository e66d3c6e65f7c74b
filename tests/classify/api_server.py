"""`lmdeploy serve api_server` in a process of its own, patched as `make patch` would."""
import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator

import httpx

from .fakes import wait_for

_COMMAND = 'import lmdeploy_ext.autopatch; from lmdeploy.cli import run; run()'


@contextmanager
def api_server(model: Path, log: Path, *options: str) -> Iterator[str]:
    """The address of a server with options of its command line, ready; it ends with the block."""
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        port = probe.getsockname()[1]
    url = f'http://127.0.0.1:{port}'
    command = [
        sys.executable, '-c', _COMMAND, 'serve', 'api_server',
        str(model), '--server-name', '127.0.0.1', '--server-port',
        str(port), *options
    ]
    with open(log, 'wb') as output:
        process = subprocess.Popen(command,
                                   stdout=output,
                                   stderr=subprocess.STDOUT,
                                   env={
                                       **os.environ, 'OMP_NUM_THREADS': '1'
                                   })
    try:
        wait_for(lambda: _is_ready(process, url, log), seconds=90)
        yield url
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _is_ready(process: 'subprocess.Popen[bytes]', url: str, log: Path) -> bool:
    assert process.poll() is None, log.read_text(errors='replace')[-2000:]
    try:
        return httpx.get(f'{url}/v1/models', timeout=5).is_success
    except httpx.TransportError:
        return False
