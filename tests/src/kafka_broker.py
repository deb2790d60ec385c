"""Becomes a Kafka broker (KRaft, one node, 384 MB of heap) out of target/fleet/kafka.

kafka_broker.py FOLDER HOST PORT SASL_PORT CONTROLLER_PORT: the data is in FOLDER, and stays there for the next start. The listener
of SASL_PORT knows the user 'probe' with the password 'open sesame'. Topics are not made by sending to them.
"""

import os
import subprocess
import sys

folder, host, port, sasl_port, controller = sys.argv[1:]
libraries = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../target/fleet/kafka/*")
java = ["java", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", libraries]
clients = f"PLAINTEXT://{host}:{port},SASL_PLAINTEXT://{host}:{sasl_port}"
properties = f"""
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller}
listeners={clients},CONTROLLER://{host}:{controller}
advertised.listeners={clients}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT
sasl.enabled.mechanisms=PLAIN
listener.name.sasl_plaintext.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \\
    user_probe="open sesame";
log.dirs={folder}/data
num.partitions=3
auto.create.topics.enable=false
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
"""
os.makedirs(folder, exist_ok=True)
os.chdir(folder)
if not os.path.exists("data"):
    with open("server.properties", "w") as file:
        file.write(properties)
    tool = ["kafka.tools.StorageTool", "format", "-t", "AAAAAAAAAAAAAAAAAAAAAQ", "-c", "server.properties"]
    subprocess.run([*java, *tool], check=True, stdout=subprocess.DEVNULL)
os.execvp(java[0], [*java, "kafka.Kafka", "server.properties"])
