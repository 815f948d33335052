"""What coordinator and worker processes say to each other: bytes, never objects.

A task is its place, 8 bytes, and its JSON; an outcome is place, seconds, a letter and a body.
"""

from __future__ import annotations

import struct

from attnlimit.studies.work import Ended

READY = b"ready"
HEADER = struct.Struct(">qdc")
LETTERS = {"done": b"d", "raised": b"r"}
WORDS = {letter: how for how, letter in LETTERS.items()}


def encode_task(place: int, task: bytes) -> bytes:
    return place.to_bytes(8, "big") + task


def decode_task(message: bytes) -> tuple[int, bytes]:
    return int.from_bytes(message[:8], "big"), message[8:]


def encode(outcome: Ended) -> bytes:
    return HEADER.pack(outcome.place, outcome.seconds, LETTERS[outcome.how]) + outcome.body


def decode(message: bytes) -> Ended:
    place, seconds, letter = HEADER.unpack_from(message)
    return Ended(place, WORDS[letter], message[HEADER.size :], seconds)
