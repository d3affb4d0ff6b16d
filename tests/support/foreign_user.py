"""Another user of the same machine, who calls himself the server at every door he finds.

Run as ``python foreign_user.py HELLO PORT...``: HELLO is the frame, in hexadecimal, with which a server begins.
Prints for each port whether somebody introduced himself there.
"""

import socket
import sys


def knock(port, frame):
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=20) as door:
            door.sendall(frame)
            return door.recv(4096)
    except OSError:
        return b""


def main():
    frame, *ports = sys.argv[1:]
    for port in ports:
        heard = knock(int(port), bytes.fromhex(frame))
        print("welcome" if b"endpoint_name" in heard else "turned away", flush=True)


if __name__ == "__main__":
    main()
