"""The Helm chart, rendered for each size, against the schemas of three versions of Kubernetes."""
import glob
import os

import kubernetes_validate
import yaml
from checks import run

VERSIONS = ("1.30", "1.34", "1.37")  # the oldest that the chart takes, that of its tests, the newest


def size(path):
    def check():
        kinds = set()
        for o in yaml.safe_load_all(open(path)):
            if o and not o["apiVersion"].startswith("monitoring.coreos.com/"):  # not of Kubernetes
                kinds.add(o["kind"])
                for version in VERSIONS:
                    kubernetes_validate.validate(o, version, strict=True)
        if len(kinds) != 6:
            raise AssertionError("validated are only %s" % kinds)
    check.__doc__ = os.path.basename(path)
    return check


def a_mistake_is_found():
    """a misspelt member is refused"""
    try:
        kubernetes_validate.validate({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}, "spec": {"port": []}}, VERSIONS[0], strict=True)
    except kubernetes_validate.ValidationError:
        return
    raise AssertionError("it is accepted")


run([size(path) for path in sorted(glob.glob(os.path.join(os.environ["CHART"], "*.yaml")))] + [a_mistake_is_found])
