"""A site in a process of its own that does what it is told, line by line: the tests' hands on a real network.

Run as ``python echo_site.py KIT``. Reads JSON commands from standard input and writes one JSON line for each.
"""

import json
import os
import sys
from pathlib import Path

from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.utils import fobs

from discreet.errors import CannotConnect
from discreet.parties.network import nvflare
from discreet.parties.network.kits import open_kit


def echo(message):
    if message == b"fail":
        raise RuntimeError("secret-4711 of a record")
    return message


def transport_command(transport, order):
    word = order["do"]
    if word == "connected":
        return [name for name in order["parties"] if transport.connected(name)]
    if word == "broadcast":
        payload = bytes(order["size"]) if "size" in order else order["text"].encode()
        replies = transport.broadcast(order["parties"], payload, order["timeout"])
        return sorted(name for name, reply in replies.items() if reply == payload)
    if word == "dismiss":
        return transport.dismiss(order["parties"])
    raise ValueError(word)


def line_command(line, order):
    word = order["do"]
    if word == "linger":
        line.linger(order["seconds"])
        return line._site.dismissed.is_set()
    if word == "check":
        try:
            return line.check()
        except CannotConnect as gone:
            return str(gone)
    if word == "intrude":  # a registered party asks another one, as itself and as the coordinator
        return [intrude(line, order["party"], origin) for origin in (None, "server")]
    if word == "request":  # any channel of any site; its answer, if one comes
        message = nvflare.Message({}, fobs.dumps(order.get("content")))
        message.set_header(MessageHeaderKey.PAYLOAD_ENCODING, "fobs")
        sent = line._site.cell.send_request(*order["channel"], order["site"], message, timeout=0.3)
        return [str(nvflare._return_code(sent)), sent.payload is not None]
    raise ValueError(word)


def intrude(line, party, origin):
    cell = line._site.cell
    request = nvflare.Message({}, b"give me your sum")
    honest = cell.my_info.fqcn
    cell.my_info.fqcn = origin or honest
    try:
        reply = cell.send_request("discreet", "ask", party, request, timeout=2.0)
    finally:
        cell.my_info.fqcn = honest
    return bool(reply.payload)


def obey(site, act):
    say({"up": True})
    for text in sys.stdin:
        order = json.loads(text)
        if order["do"] == "registered":
            say(sorted(site._site.cell.req_reg.reg))
        else:
            say(listening() if order["do"] == "listening" else act(site, order))


def listening():
    """The sockets on which this process listens, of any family, as the kernel tells it."""
    own = {os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}
    found = []
    for kind in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{kind}").read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == "0A" and f"socket:[{rest[5]}]" in own:
                found.append(local)
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        _, _, _, flags, _, _, inode, *path = line.split()
        if int(flags, 16) & 0x10000 and f"socket:[{inode}]" in own:
            found.append(f"unix {path}")
    return found


def say(data):
    print(json.dumps(data), flush=True)


def main():
    kit = open_kit(sys.argv[1])
    timeout = float(sys.argv[2]) if len(sys.argv) > 2 else 60.0
    try:
        if kit.is_coordinator:
            with nvflare.listen(kit, timeout=timeout) as transport:
                obey(transport, transport_command)
        else:
            with nvflare.connect(kit, echo, timeout=timeout) as line:
                obey(line, line_command)
    except CannotConnect as error:
        say({"refused": str(error)})


if __name__ == "__main__":
    main()
