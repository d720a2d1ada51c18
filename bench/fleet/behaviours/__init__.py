"""Clients of the fleet as state machines, by kind.

- ``protocol.py``, ``bodies.py``: events and actions between a behaviour and its driver; request bodies.
- ``script.py``, ``journal.py``: scripts that read like blocking clients; operations and assignments.
- ``cluster.py``: scripts that know the cluster, and their shared metadata.
- ``session_fetcher.py``: fetchers with a session for each leader.
- ``producers.py``: keyed producers, and batches resent until their result is known.
- ``group_member.py``, ``member_storage.py``: group members; where they store records and offsets.
- ``client_channels.py``, ``consumer_history.py``: requests of a reference client; what a consumer does.
- ``piped.py``: a reader and a writer with a pipe between them.
- ``mirror.py``: copying to another cluster.
- ``transactional_client.py``, ``transactional_worker.py``: transactional writers; consume, transform, produce.
- ``hanging_transactions.py``: transactions left open, and janitors that abort them.
- ``admin.py``, ``metadata_reader.py``: changes of topics; the metadata of each node.
- ``preparer.py``, ``final_reads.py``: topics and seeding before the load; reads after it.
"""
