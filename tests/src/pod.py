"""Has a bundle of runc's run as the container of a DaemonSet: pod.py BUNDLE FILE.yaml NETWORK-NAMESPACE VOLUMES DEVICE

What kubelet and containerd make of the pod: arguments, rights, the network of the node, a read-only root and volumes. Files of
the ConfigMap are in VOLUMES/NAME, with DEVICE for the device that they name; a folder of the node is VOLUMES/NAME.
"""

import json
import os
import re
import sys

import yaml


def main(bundle, manifest, namespace, volumes, device):
    with open(manifest, encoding="utf-8") as file:
        objects = {one["kind"]: one for one in yaml.safe_load_all(file)}
    pod = objects["DaemonSet"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    security = container["securityContext"]
    assert pod["hostNetwork"] and security["capabilities"]["drop"] == ["ALL"]

    for volume in pod["volumes"]:
        folder = os.path.join(volumes, volume["name"])
        os.makedirs(folder)
        if "configMap" in volume:
            assert volume["configMap"]["name"] == objects["ConfigMap"]["metadata"]["name"]
            for name, text in objects["ConfigMap"]["data"].items():
                text, number = re.subn('interface = "[^"]*"', f'interface = "{device}"', text)
                assert number == 1
                with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                    file.write(text)
        elif "emptyDir" in volume:
            os.chmod(folder, 0o777)
        else:
            assert volume["hostPath"]["type"] == "DirectoryOrCreate"

    path = os.path.join(bundle, "config.json")
    with open(path, encoding="utf-8") as file:
        config = json.load(file)
    process = config["process"]
    process["terminal"] = False
    # The entry point of the image, and the arguments of the pod instead of its own.
    process["args"] = process["args"][:1] + container["args"]
    process["user"] = {"uid": security["runAsUser"], "gid": 0}
    process["noNewPrivileges"] = not security["allowPrivilegeEscalation"]
    rights = ["CAP_" + name for name in security["capabilities"]["add"]]
    process["capabilities"] = {kind: rights for kind in ["bounding", "effective", "permitted"]}
    # As containerd does, the limits of whoever starts it; umoci's 1,024 open files are no one's.
    process["rlimits"] = []
    config["root"]["readonly"] = security["readOnlyRootFilesystem"]
    for mount in container["volumeMounts"]:
        options = ["rbind", "rprivate", "ro" if mount.get("readOnly") else "rw"]
        source = os.path.join(volumes, mount["name"])
        config["mounts"].append({"destination": mount["mountPath"], "type": "bind", "source": source, "options": options})
    for one in config["linux"]["namespaces"]:
        if one["type"] == "network":
            one["path"] = namespace
    with open(path, "w", encoding="utf-8") as file:
        json.dump(config, file)


main(*sys.argv[1:])
