"""Messages of a topic, read by kcat and decoded by Google's protobuf: a JSON object each, in the order of their arrival.

kafka_messages.py BROKER TOPIC [PROTO FRAMING]: without PROTO messages are JSON. FRAMING is 'delimited' or 'none'.
"""

import ipaddress
import json
import os
import subprocess
import sys
import tempfile

broker, topic, *schema = sys.argv[1:]


def decoder(proto, framing):
    from google.protobuf.internal.decoder import _DecodeVarint32
    from google.protobuf.json_format import MessageToDict

    with tempfile.TemporaryDirectory() as folder:
        protoc = os.path.join(os.path.dirname(sys.executable), "protoc")
        folders = [f"--proto_path={os.path.dirname(proto)}", f"--python_out={folder}"]
        subprocess.run([protoc, *folders, proto], check=True)
        sys.path.insert(0, folder)
        import flow_pb2

    def decode(payload):
        if framing == "delimited":
            length, start = _DecodeVarint32(payload, 0)
            payload = payload[start:]
            assert len(payload) == length, (len(payload), length)
        message = flow_pb2.FlowMessage()
        message.ParseFromString(payload)
        found = MessageToDict(message, preserving_proto_field_name=True)
        for name in ("src_addr", "dst_addr"):
            address = getattr(message, name)
            found[name] = str(ipaddress.ip_address(address)) if address else ""
        return found

    return decode


decode = decoder(*schema) if schema else json.loads
words = ["kcat", "-C", "-q", "-b", broker, "-t", topic, "-o", "beginning", "-e", "-f", "%p %K %S %h\n%k%s"]
data = subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout
at = 0
while at < len(data):
    end = data.index(b"\n", at)
    partition, key, payload, headers = data[at:end].decode().split(" ", 3)
    key, payload = int(key), int(payload)
    start = end + 1 + key
    headers = dict(header.split("=", 1) for header in headers.split(","))
    print(json.dumps({
        "key": data[end + 1:start].decode(),
        "partition": int(partition),
        "batch": headers["wirelane-batch"],
        "row": int(headers["wirelane-row"]),
        "message": decode(data[start:start + payload]),
    }))
    at = start + payload
