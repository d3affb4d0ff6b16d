"""A site in a process of its own that does what it is told, line by line: the tests' hands on a real network.

Run as ``python echo_site.py KIT``. Reads JSON commands from standard input and writes one JSON line for each.
"""

import json
import sys

from discreet.errors import CannotConnect
from discreet.parties import nvflare
from discreet.parties.kits import open_kit


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
    if word == "finish":
        return sorted(transport.finish(order["parties"], b"the end", 5.0))
    raise ValueError(word)


def line_command(line, order):
    word = order["do"]
    if word == "over":
        return [line.wait(5.0), line.result.decode()]
    if word == "intrude":  # a registered party asks another one, as itself and as the coordinator
        return [intrude(line, order["party"], origin) for origin in (None, "server")]
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
        say(act(site, json.loads(text)))


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
