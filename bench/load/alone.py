"""One load client without Locust, in a process of its own.

``python -m bench.load.alone send|read HOST:PORT TOPIC ...``

It sends or reads a number of records as fast as it can, proves each one that it reads, and ends. The process that
starts it measures its processor time.
"""

import argparse
import sys

from bench.load.calibration import BATCH_BYTES
from bench.load.producer import LoadPlan, LoadProducer, Settled
from bench.load.reader import LoadReader, ReadPlan, Taken
from reference_broker.client.partitions import TopicPartition


def send(address: tuple[str, int], partitions: tuple[TopicPartition, ...], records: int, value_bytes: int) -> int:
    """Return how many records were acknowledged. At least ``records`` unless a batch failed."""
    done = 0

    def settled(each: Settled) -> None:
        nonlocal done
        if each.kind != "ok":
            sys.exit(f"a batch ended as {each.kind} ({each.error})")
        done += each.count
        if done >= records:
            producer.stop()

    producer = LoadProducer(LoadPlan("alone", partitions, value_bytes, BATCH_BYTES // value_bytes), [address], settled)
    producer.run()
    return done


def read(address: tuple[str, int], partitions: tuple[TopicPartition, ...], records: int) -> int:
    """Return how many records were read and verified."""
    done = 0

    def taken(each: Taken) -> None:
        nonlocal done
        if each.error or not all(span.valid for span in each.spans):
            sys.exit(f"a partition could not be read ({each.error or 'damaged'})")
        done += sum(span.count for span in each.spans)
        if done >= records:
            reader.stop()

    reader = LoadReader(ReadPlan("alone", partitions), [address], taken)
    reader.run()
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", choices=["send", "read"])
    parser.add_argument("address")
    parser.add_argument("topic")
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--records", type=int, required=True)
    parser.add_argument("--value-bytes", type=int, default=100)
    args = parser.parse_args()
    host, _, port = args.address.rpartition(":")
    address = (host, int(port))
    where = tuple(TopicPartition(args.topic, number) for number in range(args.partitions))
    if args.work == "send":
        done = send(address, where, args.records, args.value_bytes)
    else:
        done = read(address, where, args.records)
    sys.stdout.write(f"{done}\n")


if __name__ == "__main__":
    main()
