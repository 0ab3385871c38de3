"""The Helm chart of docs/chart renders to objects that Kubernetes takes, and that keep what a cluster needs.

`.ci/chart` obtains helm and the schemas. No Kubernetes ran it: docs/production.md says so.
"""

from __future__ import annotations

import json
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from raftlog.cluster.config.cluster_file import ClusterFile
from raftlog.cluster.config.settings import load_settings
from raftlog.cluster.node.formatting import create_cluster
from raftlog.cluster.security.names import Holder, HolderKind, holder_uri
from tests.house.rules import ROOT

CHART: Final = ROOT / "docs" / "chart"
TOOLS: Final = ROOT / ".tools" / "chart"
PORT: Final = 7001
LOG: Final = "ab" * 16
ISSUER: Final = {"enabled": True, "log": LOG, "issuer": {"name": "own", "kind": "ClusterIssuer"}}
VALUES: Final[dict[str, dict[str, Any]]] = {
    "as shipped": {},
    "five nodes": {"nodes": 5, "storage": {"size": "1Ti", "class": "fast"}},
    "cert-manager": {"nodes": 7, "certManager": ISSUER},
    "watched": {"serviceMonitor": {"enabled": True, "interval": "30s"}, "image": {"repository": "raftlog", "tag": "9"}},
    "few machines": {
        "antiAffinity": "preferred",
        "nodeSelector": {"disk": "nvme"},
        "tolerations": [{"key": "only", "operator": "Exists"}],
        "networkPolicy": {"enabled": False},
    },
    "settings": {
        "settings": {"retention.bytes": 10_000_000_000, "log.file": 'it\'s "quoted"', "stop_with_stdin": True},
        "networkPolicy": {"clients": [{"namespaceSelector": {"matchLabels": {"team": "orders"}}}]},
    },
}
WRONG: Final[dict[str, tuple[dict[str, Any], str]]] = {
    "an even number of nodes": ({"nodes": 4}, "nodes"),
    "a size without a unit": ({"storage": {"size": "20"}}, "size"),
    "a name that is none": ({"imagee": {}}, "imagee"),
    "cert-manager without an issuer": ({"certManager": {**ISSUER, "issuer": {"name": ""}}}, "issuer"),
    "a log id that is none": ({"certManager": {**ISSUER, "log": "the log"}}, "log"),
    "an unknown affinity": ({"antiAffinity": "some"}, "antiAffinity"),
}


def tool(name: str) -> str:
    """The path of helm or kubernetes-validate. Skips where `.ci/chart` was not run."""
    path = TOOLS / name
    if not path.exists():
        pytest.skip("no helm and no schemas of Kubernetes: .ci/chart obtains them")
    return str(path)


def helm(folder: Path, command: str, values: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """`helm lint` or `helm template` with those values."""
    file = folder / "values.json"
    file.write_text(json.dumps(values))
    words = [
        tool("helm"),
        command,
        *(["db", "--kube-version", "1.33.0"] if command == "template" else []),
        str(CHART),
        "-f",
        str(file),
    ]
    return subprocess.run(
        [*words, "--namespace", "logs"], capture_output=True, text=True, timeout=60, check=False, cwd=folder
    )


def rendered(folder: Path, values: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The objects, by kind."""
    done = helm(folder, "template", values)
    assert done.returncode == 0, done.stderr
    objects: dict[str, list[dict[str, Any]]] = {}
    for each in yaml.safe_load_all(done.stdout):
        if each:
            objects.setdefault(each["kind"], []).append(each)
    return objects


def test_the_chart_has_the_version_of_the_program() -> None:
    """The image without a tag is that of this version."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    assert chart["version"] == chart["appVersion"] == version("raftlog")


def started(container: dict[str, Any], pod: str) -> list[str]:
    """The command line of the node in a pod of that name."""
    shell, option, script = container["command"]
    printed = subprocess.run(
        [shell, option, f"raftlog() {{ printf '%s\\n' \"$@\"; }}; {script.removeprefix('exec ')}"],
        env={"HOSTNAME": pod},
        capture_output=True,
        text=True,
        check=True,
    )
    return printed.stdout.splitlines()


@pytest.mark.parametrize("name", VALUES)
def test_kubernetes_takes_what_the_chart_renders(name: str, tmp_path: Path) -> None:
    """`helm lint` finds nothing, and each object has the fields and types of the schemas, and no other."""
    linted = helm(tmp_path, "lint", VALUES[name])
    assert linted.returncode == 0, linted.stdout
    files = []
    for kind, objects in rendered(tmp_path, VALUES[name]).items():
        if objects[0]["apiVersion"].startswith(("cert-manager.io", "monitoring.coreos.com")):
            continue  # of others: no schema
        for number, each in enumerate(objects):
            files.append(tmp_path / f"{kind}-{number}.yaml")
            files[-1].write_text(yaml.safe_dump(each))
    assert len(files) >= 3
    done = subprocess.run(
        [tool("env/bin/kubernetes-validate"), "--strict", *map(str, files)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", WRONG)
def test_a_value_out_of_range_is_refused_by_name(name: str, tmp_path: Path) -> None:
    """Before anything is rendered."""
    values, named = WRONG[name]
    done = helm(tmp_path, "template", values)
    assert done.returncode != 0
    assert named in done.stderr
    assert done.stdout == ""


def test_the_names_of_the_pods_are_those_of_the_cluster_file(tmp_path: Path) -> None:
    """`raftlog create` with the names that docs/production.md gives makes files that the pods find: each pod starts
    with its own settings, its host is its own, and every file that these name is mounted."""
    objects = rendered(tmp_path, VALUES["as shipped"])
    (nodes,), (service,) = objects["StatefulSet"], objects["Service"]
    names = [f"{nodes['metadata']['name']}-{number}" for number in range(nodes["spec"]["replicas"])]
    hosts = [f"{name}.{nodes['spec']['serviceName']}.{nodes['metadata']['namespace']}.svc" for name in names]
    assert hosts[0] == "db-0.db.logs.svc"
    assert service["metadata"]["name"] == nodes["spec"]["serviceName"]
    made = create_cluster(tmp_path / "made", hosts, port=PORT, peer_port=PORT + 100)
    pod = nodes["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert ports == {each["targetPort"]: each["port"] for each in service["spec"]["ports"]}
    (files,) = [each for each in pod["volumes"] if each["name"] == "files"]
    (secret,) = [each["secret"] for each in files["projected"]["sources"]]
    mounted = {item["path"] for item in secret["items"]}
    for number, (name, machine) in enumerate(zip(names, made.machines.values(), strict=True), 1):
        assert started(container, name) == ["node", "--config", f"node-{number}.toml", "--format-new"]
        loaded = load_settings(machine / "node.toml", {})
        assert loaded.settings.node == number
        assert isinstance(loaded.cluster, ClusterFile)
        own = loaded.cluster.of(number)
        assert own is not None
        assert own.url == f"https://{hosts[number - 1]}:{ports['api']}"
        assert own.peer == f"{hosts[number - 1]}:{ports['peers']}"
        security = loaded.settings.security
        named = {loaded.settings.cluster_file, security.ca, security.certificate, security.key}
        assert named | {f"node-{number}.toml"} <= mounted


def test_certificates_of_cert_manager_name_log_node_and_host(tmp_path: Path) -> None:
    """As those of `raftlog cert node` do."""
    certificates = rendered(tmp_path, VALUES["cert-manager"])["Certificate"]
    assert len(certificates) == 7
    for number, each in enumerate(certificates, 1):
        assert each["spec"]["uris"] == [holder_uri(Holder(LOG, HolderKind.NODE, str(number)))]
        assert each["spec"]["dnsNames"] == [f"db-{number - 1}.db.logs.svc"]


def test_the_objects_keep_what_a_cluster_needs(tmp_path: Path) -> None:
    """All nodes start at once and find each other before they are ready; a drain takes one; no probe is like another,
    and none needs a certificate; nothing runs as root; settings reach the node as they were given."""
    objects = rendered(tmp_path, VALUES["settings"])
    (nodes,), (service,), (budget,) = objects["StatefulSet"], objects["Service"], objects["PodDisruptionBudget"]
    pod = nodes["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert nodes["spec"]["podManagementPolicy"] == "Parallel"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert budget["spec"]["maxUnavailable"] == 1
    for each in (budget["spec"]["selector"]["matchLabels"], service["spec"]["selector"]):
        assert each.items() <= nodes["spec"]["template"]["metadata"]["labels"].items()
    probes = [container[f"{kind}Probe"] for kind in ("startup", "liveness", "readiness")]
    assert [each["httpGet"]["path"] for each in probes] == ["/livez", "/livez", "/readyz"]
    assert {each["httpGet"]["port"] for each in probes} == {"probes"}
    assert probes[0]["periodSeconds"] * probes[0]["failureThreshold"] >= 600
    assert len({json.dumps(each, sort_keys=True) for each in probes}) == 3
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["enableServiceLinks"] is False, "RAFTLOG_PORT=tcp://… is no setting"
    assert container["securityContext"]["readOnlyRootFilesystem"]
    loaded = load_settings(None, {each["name"]: each["value"] for each in container["env"]})
    assert loaded.settings.retention.bytes == 10_000_000_000
    assert loaded.settings.log.file == VALUES["settings"]["settings"]["log.file"]
    assert loaded.settings.stop_with_stdin is True
    (policy,) = objects["NetworkPolicy"]
    peers = [rule for rule in policy["spec"]["ingress"] if {"port": "peers"} in rule["ports"]]
    assert [list(each) for each in peers[0]["from"]] == [["podSelector"]], "peers are the nodes alone"
    assert len(peers) == 1
