"""The rows of the bench: what is started, and how it is called."""
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

BENCH = Path(__file__).resolve().parent
ROOT = BENCH.parent
HOME = Path(os.environ.get("BENCH_HOME", Path.home() / ".cache/sless/bench"))
PEERS = HOME / "peers"
LIMITS = str(HOME / "limits" / "release" / "bench-limits")
HANDLERS = BENCH / "handlers"
SUPERVISOR, SLESS = (str(ROOT / "target/release" / name) for name in ("sless-supervisor", "sless"))


def interpreter(name):
    """The interpreter itself, not a version manager's script that finds it: for all rows the same one."""
    system = shutil.which(name, path="/usr/local/bin:/usr/bin:/bin")
    found = system or shutil.which(name)
    if not found:
        raise SystemExit(f"{name} is missing")
    return os.path.realpath(found)


PYTHON, NODE = interpreter("python3.11"), interpreter("node")


@dataclass(frozen=True)
class Row:
    """`command` gives the arguments for a port, `env` the variables for (port, private folder, timeout in seconds or None)."""
    name: str
    lang: str
    command: object
    env: object = lambda port, private, timeout_sec: {}
    path: str = "/"
    serial: bool = False        # takes one call at a time by design: only one connection is measured
    needs: tuple = ()           # files without which the row is left out
    kind: str = "peer"          # "limit", "sless", "host"
    hello_only: bool = False


def limit_rows():
    workers = {"py": [PYTHON, str(BENCH / "limits/worker.py")], "node": [NODE, str(BENCH / "limits/worker.js")]}
    yield Row("limit-hello", "rust", lambda port: [LIMITS, "hello", str(port)], kind="limit", hello_only=True)
    for lang, worker in workers.items():
        yield Row(f"limit-front-{lang}1", lang, lambda port, worker=worker: [LIMITS, "front", str(port), *worker], kind="limit")
        yield Row(f"limit-pipe4-{lang}1", lang, lambda port, worker=worker: [LIMITS, "pipe", str(port), "4", *worker], kind="limit")


def sless_rows():
    runtimes = {"py": "python3.11", "node": "nodejs20"}
    for lang, runtime in runtimes.items():
        def env(port, private, timeout_sec, lang=lang, runtime=runtime):
            return {
                "SLESS_FUNCTION": f"bench-{lang}", "SLESS_RUNTIME_DIR": str(ROOT / "runtimes" / runtime), "SLESS_FUNCTION_DIR": str(HANDLERS / lang),
                "SLESS_LISTEN": f"127.0.0.1:{port}", "SLESS_ADMIN_LISTEN": f"127.0.0.1:{port + 1}", "SLESS_TIMEOUT_SEC": str(timeout_sec or 30),
                "SLESS_REPORT_URL": f"http://127.0.0.1:{port + 2}/internal/v1/reports", "SLESS_REPORT_TOKEN_FILE": str(private / "report-token"),
                # At its end it waits for delivery, so that the sink can be counted; what it could not deliver would stay in the spool.
                "SLESS_SPOOL_DIR": str(private / "spool"), "SLESS_FLUSH_SEC": "20",
            }
        yield Row(f"sless-{lang}", lang, lambda port: [SUPERVISOR, "serve"], env, needs=(SUPERVISOR,), kind="sless")
    for lang in runtimes:
        def env(port, private, timeout_sec):
            return {"API_LISTEN": f"127.0.0.1:{port}", "API_TOKEN": "bench", "DATA_DIR": str(private / "data"), "RETENTION_COUNT": "100000000"}
        yield Row(f"sless-host-{lang}", lang, lambda port: [SLESS, "up"], env, needs=(SLESS,), path=f"/fn/default/bench-{lang}", kind="host")


def peer_rows():
    framework = {
        "py": [str(PEERS / "framework-py/bin/functions-framework"), "--source", str(HANDLERS / "py/main.py"), "--target", "framework", "--host", "127.0.0.1"],
        "node": [NODE, str(PEERS / "framework-node/node_modules/@google-cloud/functions-framework/build/src/main.js"),
                 f"--source={HANDLERS / 'node/main.js'}", "--target=framework"],
    }
    for lang, command in framework.items():
        yield Row(f"framework-{lang}", lang, lambda port, command=command: command,
                  lambda port, private, timeout_sec: {"PORT": str(port), "HOST": "127.0.0.1"}, needs=(command[lang == "node"],))
    emulator = str(PEERS / "bin/aws-lambda-rie")
    client = {"py": [str(PEERS / "lambda-py/bin/python"), "-m", "awslambdaric", "main.client"],
              "node": [NODE, str(PEERS / "lambda-node/node_modules/aws-lambda-ric/index.mjs"), "main.client"]}
    for lang, command in client.items():
        def start(port, command=command):
            return [emulator, "--log-level", "error", "--runtime-interface-emulator-address", f"127.0.0.1:{port}", "--runtime-api-address", f"127.0.0.1:{port + 1}", *command]
        def env(port, private, timeout_sec, lang=lang):
            return {"AWS_LAMBDA_FUNCTION_TIMEOUT": str(timeout_sec or 300), "PYTHONPATH": str(HANDLERS / "py"), "LAMBDA_TASK_ROOT": str(HANDLERS / lang)}
        yield Row(f"lambda-{lang}", lang, start, env, path="/2015-03-31/functions/function/invocations", serial=True, needs=(emulator, command[lang == "node"]))
    proxy = str(PEERS / "bin/queue-proxy")
    # Two containers of one pod there, one shell here.
    yield Row("knative-framework-py", "py", lambda port: ["sh", "-c", f"{' '.join(framework['py'])} & exec {proxy}"], knative_env, needs=(proxy, framework["py"][0]))


def knative_env(port, private, timeout_sec):
    return {
        "PORT": str(port + 1), "USER_PORT": str(port + 1), "QUEUE_SERVING_PORT": str(port), "QUEUE_SERVING_TLS_PORT": str(port + 2), "CONTAINER_CONCURRENCY": "0",
        "REVISION_TIMEOUT_SECONDS": str(timeout_sec or 60), "SERVING_READINESS_PROBE": '{"tcpSocket":{"host":"127.0.0.1","port":%d},"successThreshold":1}' % (port + 1),
        "SERVING_LOGGING_CONFIG": "", "SERVING_LOGGING_LEVEL": "", "SERVING_NAMESPACE": "bench", "SERVING_CONFIGURATION": "bench", "SERVING_REVISION": "r1",
        "SERVING_POD": "pod", "SERVING_POD_IP": "127.0.0.1", "SERVING_REQUEST_METRICS_BACKEND": "prometheus", "METRICS_DOMAIN": "knative.dev/serving",
    }


ROWS = {row.name: row for row in (*limit_rows(), *sless_rows(), *peer_rows())}
