"""Compressed WebSocket messages are not accepted: a small one could expand to gigabytes before its size is checked."""

from __future__ import annotations

import zlib

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from tests.server.running import Running
from tests.server.sockets import ws


@pytest.mark.parametrize("path", ["/v1/audio/speech/stream", "/api-ws/v1/realtime"])
def test_compression_is_not_negotiated(speaker: Running, path: str) -> None:
    with connect(f"{ws(speaker)}{path}", compression="deflate") as socket:
        assert socket.response is not None
        assert "Sec-WebSocket-Extensions" not in socket.response.headers
        assert socket.protocol.extensions == []


def test_compressed_message_closes_only_its_connection(speaker: Running) -> None:
    """A compressed frame (RSV1 set) without negotiation is a protocol error."""
    compressor = zlib.compressobj(wbits=-15)
    bomb = compressor.compress(b" " * 2**24) + compressor.flush(zlib.Z_SYNC_FLUSH)
    with connect(f"{ws(speaker)}/v1/audio/speech/stream", compression=None) as socket:
        masked = b"\xc1\xff" + len(bomb).to_bytes(8, "big") + bytes(4) + bomb
        socket.socket.sendall(masked)
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(timeout=20)
    assert closed.value.rcvd is None or closed.value.rcvd.code == 1002
    assert speaker.client().models()
