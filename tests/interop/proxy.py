# SPDX-License-Identifier: Apache-2.0
"""A stock proxy with a broker in it, and the gRPC client for Python, which has a process and
packages of its own.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from compare.rocketmq.jars import jars, made_once
from tests.interop.broker import Broker, answers

CLIENT_PACKAGE: Final = "rocketmq-python-client==5.1.2"
_POM: Final = Path(__file__).parent / "java" / "proxy" / "pom.xml"
_CLIENT: Final = Path(__file__).with_name("grpc_client.py")
_INSTALL_S: Final = 300.0
_SEND_S: Final = 180.0


class Proxy(Broker):
    """A proxy in local mode: one process that is the broker as well. Clients are to use loopback;
    a proxy itself listens on every address, and has no setting for that.
    """

    @property
    def grpc_address(self) -> str:
        """Return where gRPC clients find it."""
        return f"127.0.0.1:{self._port + 7}"

    def program(self, name: str, main: str, file: Path) -> list[str]:
        """Return class path, class and arguments; the proxy's, for the broker."""
        library = f"{proxy_jars(self.version)}/*"
        if name != "broker":
            return [library, f"org.apache.rocketmq.{main}", "-c", str(file)]
        facts = {
            "rocketMQClusterName": self.settings()["brokerClusterName"],
            "localServeAddr": "127.0.0.1",
            "namesrvAddr": self.name_server_address,
            "grpcServerPort": self._port + 7,
            "remotingListenPort": self._port + 6,
        }
        proxy = self.scratch / "proxy.json"
        proxy.write_text(json.dumps(facts), encoding="utf-8")
        mode = ["-pm", "local", "-bc", str(file), "-pc", str(proxy)]
        return [library, "org.apache.rocketmq.proxy.ProxyStartup", *mode]

    def is_ready(self) -> bool:
        """Say whether clients of both kinds can use it."""
        return super().is_ready() and answers(self.grpc_address)

    @property
    def _port(self) -> int:
        return int(self.address.rpartition(":")[2])


def proxy_jars(version: str) -> Path:
    """Return the folder with that version's proxy, broker and name server."""
    return jars(version, _POM, "proxy-jars")


@cache
def lacking(version: str) -> str | None:
    """Say why a proxy or its client cannot be had; None when both are there."""
    try:
        proxy_jars(version)
        _client_packages()
    except (OSError, RuntimeError, subprocess.SubprocessError) as failure:
        return f"no proxy {version}, or no gRPC client for Python: {failure}"
    return None


def send_by_grpc(proxy: Proxy, topics: Sequence[str]) -> Mapping[str, Any]:
    """Send a delayed and an ordinary message to each topic: see `grpc_client`."""
    asked = {"endpoint": proxy.grpc_address, "topics": list(topics)}
    done = subprocess.run(
        [sys.executable, str(_CLIENT), json.dumps(asked)],
        env={"PYTHONPATH": str(_client_packages()), "HOME": str(proxy.scratch), "PATH": ""},
        cwd=proxy.scratch,
        capture_output=True,
        text=True,
        timeout=_SEND_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    answer: Mapping[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _client_packages() -> Path:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    name = f"python{version}-{CLIENT_PACKAGE.replace('==', '-')}"
    return made_once(name, _install)


def _install(target: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "--target", str(target), CLIENT_PACKAGE],
        check=True,
        capture_output=True,
        timeout=_INSTALL_S,
        stdin=subprocess.DEVNULL,
    )
