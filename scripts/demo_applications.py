"""The applications of the demo: phones (sipp on both sides), the web server's log, and what Wirelane says of them."""

import collections
import os
import re
import struct

CALLS = 8
SIP_PORT, CALLER_PORT, MEDIA_PORT = 5060, 5070, 20000
SPOKEN = 100  # packets of RTP in each call, 20 ms each

# What each caller does: it is answered, speaks, and hangs up when it has said all.
SCENARIO = """<?xml version="1.0" encoding="ISO-8859-1" ?>
<scenario name="a short call">
  <send retrans="500"><![CDATA[
INVITE sip:[service]@[remote_ip]:[remote_port] SIP/2.0
Via: SIP/2.0/[transport] [local_ip]:[local_port];branch=[branch]
From: <sip:caller[call_number]@[local_ip]:[local_port]>;tag=[pid]-[call_number]
To: <sip:[service]@[remote_ip]:[remote_port]>
Call-ID: [call_id]
CSeq: 1 INVITE
Contact: <sip:caller[call_number]@[local_ip]:[local_port]>
Max-Forwards: 70
Content-Type: application/sdp
Content-Length: [len]

v=0
o=caller 1 1 IN IP[local_ip_type] [local_ip]
s=-
c=IN IP[local_ip_type] [local_ip]
t=0 0
m=audio [auto_media_port] RTP/AVP 8
a=rtpmap:8 PCMA/8000
  ]]></send>
  <recv response="100" optional="true"/>
  <recv response="180" optional="true"/>
  <recv response="200" rtd="true" rrs="true"/>
  <send><![CDATA[
ACK sip:[service]@[remote_ip]:[remote_port] SIP/2.0
Via: SIP/2.0/[transport] [local_ip]:[local_port];branch=[branch]
From: <sip:caller[call_number]@[local_ip]:[local_port]>;tag=[pid]-[call_number]
[last_To:]
Call-ID: [call_id]
CSeq: 1 ACK
Max-Forwards: 70
Content-Length: 0
  ]]></send>
  <nop><action><exec play_pcap_audio="speech.pcap"/></action></nop>
  <pause milliseconds="2600"/>
  <send retrans="500"><![CDATA[
BYE sip:[service]@[remote_ip]:[remote_port] SIP/2.0
Via: SIP/2.0/[transport] [local_ip]:[local_port];branch=[branch]
From: <sip:caller[call_number]@[local_ip]:[local_port]>;tag=[pid]-[call_number]
[last_To:]
Call-ID: [call_id]
CSeq: 2 BYE
Max-Forwards: 70
Content-Length: 0
  ]]></send>
  <recv response="200" crlf="true"/>
</scenario>
"""


def speech():
    """A capture file of what a caller says: G.711, a packet every 20 ms."""
    packets = [struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1)]
    for packet in range(SPOKEN):
        rtp = struct.pack(">BBHII", 0x80, 8, packet, packet * 160, 0x77) + bytes([0xD5]) * 160
        udp = struct.pack(">HHHH", MEDIA_PORT, MEDIA_PORT, 8 + len(rtp), 0) + rtp
        ip = struct.pack(">BBHHHBBHII", 0x45, 0, 20 + len(udp), 0, 0, 64, 17, 0, 0x7F000001, 0x7F000001) + udp
        frame = bytes(12) + b"\x08\x00" + ip
        packets.append(struct.pack("<IIII", packet // 50, packet % 50 * 20_000, len(frame), len(frame)) + frame)
    return b"".join(packets)


def answer(folder, address):
    """The command of the phone that answers."""
    with open(os.path.join(folder, "speech.pcap"), "wb") as file:
        file.write(speech())
    with open(os.path.join(folder, "caller.xml"), "w", encoding="ascii") as file:
        file.write(SCENARIO)
    return ["sipp", "-sn", "uas", "-i", address, "-p", str(SIP_PORT), "-nostdin"]


def call(address, target):
    """The command of the callers, all at once."""
    number = str(CALLS)
    return ["sipp", "-sf", "caller.xml", f"{target}:{SIP_PORT}", "-i", address, "-p", str(CALLER_PORT),
            "-mp", str(MEDIA_PORT), "-m", number, "-r", number, "-l", number, "-timeout", "60", "-nostdin",
            "-trace_stat", "-stf", "calls.csv"]


def called(folder):
    """sipp's own statistics: calls that went well, and the others."""
    with open(os.path.join(folder, "calls.csv"), encoding="ascii") as file:
        lines = [line.split(";") for line in file]
    last = dict(zip(lines[0], lines[-1]))
    return int(last["SuccessfulCall(C)"]), int(last["FailedCall(C)"])


def served(folder):
    """The server's own log: the request line and status of each, and how often it is there."""
    with open(os.path.join(folder, "access.log"), encoding="ascii", errors="replace") as log:
        return collections.Counter(re.findall(r'"([^"]*)" (\d+) ', log.read()))


def compare(table, results, traffic, web_read, calls_read):
    """Transactions against the server's log and curl, calls against sipp."""
    transactions, calls = traffic["transactions"], traffic["calls"]
    table.gap()
    table.row("wirelane http", "packets", results["http"]["analysed"], "tcpdump -r, the web", web_read)
    logged = collections.Counter(
        (f"{one.get('method')} {one.get('uri')} HTTP/{one.get('version')}", str(one.get("status")))
        for one in transactions)
    table.row("wirelane http", "logged", len(transactions), "curl, pages", len(traffic["pages"]))
    same = sum((logged & traffic["served"]).values())
    table.row("  in the server's log", "lines", same, "its lines", sum(traffic["served"].values()))
    size = sum(one.get("response_body", 0) for one in transactions)
    table.row("  their bodies", "bytes", size, "curl", sum(traffic["pages"]))
    table.gap()
    successful, failed = traffic["called"]
    streams = [stream for call in calls for stream in call["streams"]]
    table.row("wirelane voip", "packets", results["voip"]["analysed"], "tcpdump -r, the calls", calls_read)
    completed = sum(call["state"] == "completed" for call in calls)
    table.row("wirelane voip", "completed", completed, "sipp, successful", successful)
    table.row("  other calls", "ended", len(calls) - completed, "sipp, failed", failed)
    table.row("  their streams", "RTP", sum(stream["packets"] for stream in streams), "sipp has played",
              successful * SPOKEN)
    table.row("  of these packets", "lost", sum(stream["lost"] for stream in streams), "nothing is", 0)


def show(traffic):
    """The first of what http and voip have told."""
    print("\nThe first transactions, and the first calls:")
    for one in traffic["transactions"][:3]:
        milliseconds = float(one["duration_s"]) * 1000
        print(f"  {one['client']} {one['method']} {one['uri']} {one['status']}, {one['response_body']} bytes, "
              f"{milliseconds:.3f} ms")
    for one in sorted(traffic["calls"], key=lambda call: call["start"])[:3]:
        print(f"  {one['from_uri']} {one['state']}, talked {one.get('talk_ms', 0) / 1000:.3f} s, "
              f"MOS {one.get('mos', '-')}")
