"""Flower's real processes over one folder: a SuperLink, nodes and runs, with TLS and authentication."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

BIN, ROOT = Path(sys.executable).parent, Path(__file__).resolve().parents[1]
INSTALLED = (BIN / "flower-superlink").exists()


def write_certificate(folder: Path, sites: Iterable[str]) -> None:
    """A certificate of this machine's loopback address, which is its own authority."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, today = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    names = [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(today - timedelta(days=1))
        .not_valid_after(today + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "ca.crt").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "tls.key").write_bytes(private)
    for site in sites:
        own = ec.generate_private_key(ec.SECP384R1())
        openssh = serialization.PrivateFormat.OpenSSH
        private = own.private_bytes(serialization.Encoding.PEM, openssh, serialization.NoEncryption())
        (folder / f"node-{site}").write_bytes(private)
        public = own.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
        (folder / f"node-{site}.pub").write_bytes(public)


def free_ports(number: int) -> list[str]:
    """Ports of the loopback address that nothing uses."""
    sockets = [socket.socket() for _ in range(number)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [str(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports


class Flower:
    """Flower's processes over one folder."""

    def __init__(self, folder: Path, nodes: dict[str, dict[str, str]], weights: str = "") -> None:
        """Make the certificates; each node has a configuration of its own."""
        write_certificate(folder, nodes)
        self.folder, self.alive, self.weights = folder, dict[str, subprocess.Popen](), weights
        self.port, *ports = free_ports(1 + len(nodes))
        self.ports, self.nodes = dict(zip(nodes, ports, strict=True)), nodes
        (folder / "home").mkdir()
        (folder / "home" / "config.toml").write_text(
            f'[superlink]\ndefault = "tls"\n[superlink.tls]\naddress = "127.0.0.1:{self.port}"\n'
            f'root-certificates = "{folder}/ca.crt"\n'
        )
        self.environment = {
            **{name: value for name, value in os.environ.items() if name != "PYTHONWARNINGS"},
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "FLWR_HOME": str(folder / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }

    def start(self, name: str, *command: str) -> subprocess.Popen:
        with (self.folder / f"{name}.log").open("a") as log:
            self.alive[name] = subprocess.Popen(
                [str(BIN / command[0]), *command[1:]],
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self.alive[name]

    def kill(self, name: str) -> None:
        """Kill a process and all that it has started."""
        process = self.alive.pop(name)
        with suppress(ProcessLookupError):  # it has ended
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def superlink(self) -> None:
        tls = ["--ssl-ca-certfile", "ca.crt", "--ssl-certfile", "ca.crt", "--ssl-keyfile", "tls.key"]
        port = ["--host", "127.0.0.1", "--port", self.port, "--database", "state.db"]
        self.start("superlink", "flower-superlink", *port, *tls, "--enable-supernode-auth")
        for _ in range(600):
            with suppress(OSError), socket.create_connection(("127.0.0.1", int(self.port)), 1):
                break
            time.sleep(0.1)

    def register(self, site: str) -> None:
        command = [str(BIN / "flwr"), "supernode", "register", f"node-{site}.pub", "tls"]
        for _ in range(10):
            # On a busy machine the port is open before the SuperLink answers.
            done = subprocess.run(
                command, cwd=self.folder, env=self.environment, capture_output=True, timeout=60, check=False
            )
            if done.returncode == 0:
                return
            time.sleep(1)
        raise AssertionError(done.stdout.decode() + done.stderr.decode())

    def supernode(self, site: str) -> None:
        tls = ["--ssl-ca-certfile", "ca.crt", "--ssl-certfile", "ca.crt", "--ssl-keyfile", "tls.key"]
        files = {"federation": "federation.json", "key": f"{site}.key", "state": site}
        config = {"site": site, **self.nodes[site]}
        config |= {name: f"{self.folder}/{file}" for name, file in files.items()}
        self.start(
            site,
            "flower-supernode",
            *["--superlink", f"127.0.0.1:{self.port}", "--root-certificates", "ca.crt"],
            *["--auth-supernode-private-key", f"node-{site}", *tls],
            *["--host", "127.0.0.1", "--port", self.ports[site]],
            *["--node-config", " ".join(f'{name}="{value}"' for name, value in config.items())],
        )

    def run(self, name: str) -> subprocess.Popen:
        files = {"federation": "federation.json", "key": "server.key", "state": "server", "out": "head.npz"}
        config = " ".join(f'{key}="{self.folder}/{file}"' for key, file in files.items())
        config += f' weights="{self.weights}"'
        app = str(ROOT / "examples" / "flower")
        return self.start(name, "flwr", "run", app, "tls", "--stream", "--run-config", config)

    def wait_for(self, path: Path) -> None:
        for _ in range(6000):
            if path.exists():
                return
            for site in self.nodes:
                # A node that was killed is refused until the SuperLink has missed it for long enough.
                if site in self.alive and self.alive[site].poll() is not None:
                    self.supernode(site)
            time.sleep(0.1)
        logs = "\n".join(f"{log.name}:\n{log.read_text()}" for log in self.folder.glob("*.log"))
        raise AssertionError(f"{path} did not come\n{logs}")

    def __enter__(self) -> "Flower":
        self.superlink()
        for site in self.nodes:
            self.register(site)
            self.supernode(site)
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self.alive):
            self.kill(name)
