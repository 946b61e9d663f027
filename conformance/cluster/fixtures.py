"""Fixtures of the cases on a cluster that sless is installed in (`scripts/e2e`): `--host-url` is the API's address, `SLESS_TOKEN` its admin token,
and `kubectl` goes where `KUBECONFIG` says. A module and no `conftest.py`: two of that name in one run would hide one another."""
import os
import uuid

import pytest
from kube import Workload, delete, get, kubectl, until
from test_api import Api


class Cluster(Api):
    """The API, in a namespace of this case's own."""

    def workload(self, name):
        return Workload(self.ns, name)

    @property
    def fn_ns(self):
        return f"sless-fn-{self.ns}"


@pytest.fixture(scope="session")
def url(request):
    return request.config.getoption("--host-url") or pytest.exit("these cases need --host-url, the API of a cluster")


@pytest.fixture
def cluster(url):
    """Its namespace is made by the first write and goes with the case."""
    one = Cluster(url, os.environ["SLESS_TOKEN"], f"c-{uuid.uuid4().hex[:8]}")
    yield one
    delete("namespace", one.ns)


@pytest.fixture(scope="module")
def shared(url):
    """One namespace for all cases of a file."""
    one = Cluster(url, os.environ["SLESS_TOKEN"], f"s-{uuid.uuid4().hex[:8]}")
    yield one
    delete("namespace", one.ns)
