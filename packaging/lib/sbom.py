"""The bill of materials: every crate that the binary is made of, in CycloneDX 1.5."""

import json
import subprocess


def make(product):
    target = product.target.triple
    command = ["cargo", "metadata", "--locked", "--format-version=1", "--filter-platform", target]
    metadata = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    root = metadata["resolve"]["root"]
    reached, waiting = set(), [root]
    while waiting:
        node = waiting.pop()
        if node not in reached:
            reached.add(node)
            waiting.extend(dep["pkg"] for dep in nodes[node]["deps"] if is_normal(dep))
    bom = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": component(packages[root], "application")},
        "components": [component(packages[one], "library") for one in sorted(reached - {root})],
    }
    file = product.out / f"souffleur-{product.version}-{target}.cdx.json"
    file.write_text(json.dumps(bom, indent=1) + "\n", encoding="utf-8")
    return [file]


def is_normal(dep):
    return any(kind["kind"] is None for kind in dep["dep_kinds"])


def component(package, kind):
    name, version = package["name"], package["version"]
    made = {"type": kind, "bom-ref": f"{name}@{version}", "name": name, "version": version}
    if package["license"]:
        made["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
    made["purl"] = f"pkg:cargo/{name}@{version}"
    return made
