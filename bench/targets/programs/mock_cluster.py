"""librdkafka's mock cluster as a process of its own: ``mock_cluster.py PORT,PORT``, a port for each broker.

The mock draws its ports by itself, and Metadata has those. At the ports that are wanted, everything is passed on
to the brokers as it is.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress

from confluent_kafka import Producer

HOST = "127.0.0.1"
PART = 1 << 16


async def main(ports: list[int]) -> None:
    # The address is never dialled: with a mock cluster librdkafka puts its own in that place.
    mock = Producer({"bootstrap.servers": "localhost:1", "test.mock.num.brokers": len(ports), "log_level": 0})
    brokers = sorted(mock.list_topics(timeout=10).brokers.values(), key=lambda each: int(each.id))
    for port, broker in zip(ports, brokers, strict=True):
        await asyncio.start_server(_passing_on(broker.port), HOST, port)
    await asyncio.Event().wait()


def _passing_on(port: int) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    async def serve(client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        try:
            broker, to_broker = await asyncio.open_connection(HOST, port)
        except OSError:
            to_client.close()
            return
        await asyncio.gather(_pass(client, to_broker), _pass(broker, to_client))

    return serve


async def _pass(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while part := await source.read(PART):
            sink.write(part)
            await sink.drain()
    sink.close()


if __name__ == "__main__":
    asyncio.run(main([int(each) for each in sys.argv[1].split(",")]))
