"""A thin layer over `kubectl`, for cases that look at a cluster from outside."""
import json
import subprocess
import time

GROUP = "sless.kube5s.ru"


class KubectlError(AssertionError):
    """What kubectl refused, in its words."""


def kubectl(*args, input=None, check=True, timeout=120):
    """Its standard output; with `check=False` (exit code, both outputs)."""
    done = subprocess.run(["kubectl", *args], input=input, capture_output=True, text=True, timeout=timeout)
    if not check:
        return done.returncode, done.stdout + done.stderr
    if done.returncode:
        raise KubectlError(f"kubectl {' '.join(args)}: {done.stderr.strip()}")
    return done.stdout


def get(kind, name=None, ns=None, selector=None):
    """One object or None; without a name a list of objects."""
    args = ["get", kind, "-o", "json", "--ignore-not-found"] + ([name] if name else []) + (["-n", ns] if ns else ["-A"]) + (["-l", selector] if selector else [])
    text = kubectl(*args)
    if not text.strip():
        return None if name else []
    return json.loads(text) if name else json.loads(text)["items"]


def apply(*objects):
    return kubectl("apply", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))


def patch(kind, name, ns, change):
    return kubectl("patch", kind, name, "-n", ns, "--type=merge", "-p", json.dumps(change))


def delete(kind, name, ns=None, wait=False):
    return kubectl("delete", kind, name, *(["-n", ns] if ns else []), f"--wait={str(wait).lower()}", "--ignore-not-found")


def obj(kind, ns, name, spec, **metadata):
    """An object of our group."""
    return {"apiVersion": f"{GROUP}/v1alpha1", "kind": kind, "metadata": {"name": name, "namespace": ns} | metadata, "spec": spec}


def namespace(name, **annotations):
    """One that is given to sless."""
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {f"{GROUP}/enabled": "true"}, "annotations": {f"{GROUP}/{k.replace('_', '-')}": v for k, v in annotations.items()}}}


def until(check, within=60.0, every=0.3, what=None):
    """What `check` gives once it is true."""
    deadline = time.monotonic() + within
    while True:
        value = check()
        if value:
            return value
        assert time.monotonic() < deadline, f"not so within {within} s: {what() if what else check}"
        time.sleep(every)


def condition(object, kind):
    """(status, reason, message) of a condition; three times None without it."""
    for c in (object or {}).get("status", {}).get("conditions", []):
        if c["type"] == kind:
            return c["status"], c["reason"], c["message"]
    return None, None, None


class Workload:
    """What runs for one function."""

    def __init__(self, ns, name):
        self.user_ns, self.name, self.ns = ns, name, f"sless-fn-{ns}"

    def function(self):
        return get("functions.sless.kube5s.ru", self.name, self.user_ns)

    def pods(self, component="function"):
        pods = get("pods", ns=self.ns, selector=f"{GROUP}/function={self.name},app.kubernetes.io/component={component}")
        return [p for p in pods if not p["metadata"].get("deletionTimestamp")]

    def pod(self):
        pods = self.pods()
        assert pods, f"no pod of {self.name} in {self.ns}"
        return pods[0]

    def sh(self, script, pod=None, check=True):
        """What a shell in the function's container prints."""
        return kubectl("exec", "-n", self.ns, (pod or self.pod())["metadata"]["name"], "-c", "function", "--", "sh", "-c", script, check=check)

    def processes(self, pod=None):
        """Command lines of all processes in the pod but this look."""
        script = r"""for d in /proc/[0-9]*; do c=$(tr '\0' ' ' < $d/cmdline 2>/dev/null); [ -n "$c" ] && echo "${d#/proc/} $c"; done"""
        return [line for line in self.sh(script, pod).splitlines() if "for d in /proc" not in line]

    def ready(self, revision=None, within=120.0):
        def look():
            f = self.function()
            status = (f or {}).get("status", {})
            assert status.get("phase") != "Failed", status.get("message")
            return status.get("phase") == "Ready" and status.get("observedGeneration") == f["metadata"]["generation"] and (revision is None or status["revision"] == revision) and f
        return until(look, within, what=self.why)

    def failed(self, within=120.0):
        def look():
            f = self.function()
            return f["status"].get("phase") == "Failed" and f["status"].get("observedGeneration") == f["metadata"]["generation"] and f if f and "status" in f else None
        return until(look, within, what=self.why)

    def why(self):
        """All that helps to understand why it is not as it should be."""
        parts = [kubectl("describe", "functions.sless.kube5s.ru", self.name, "-n", self.user_ns, check=False)[1][-3000:],
                 kubectl("get", "pods,jobs,deployments", "-n", self.ns, "-o", "wide", check=False)[1][-2000:],
                 kubectl("get", "pods,jobs", "-n", "sless-builds", "-o", "wide", check=False)[1][-2000:],
                 kubectl("logs", "-n", "sless", "deployment/sless-controller", "--tail=15", check=False)[1][-3000:]]
        return "\n".join(parts)
