"""The Python API: result partitions and input gates of a TaskManager, for any asyncio program.

::

    async with await ShuffleClient.connect(
        "unix:/run/sluice/taskmanager.sock", "wordcount"
    ) as client:
        async with client.open_result_partition(1, 0, num_subpartitions=4) as partition:
            writer = partition.record_writer(StringSerializer(), HashSelector())
            if (pending := writer.emit("a word")) is not None:
                await pending  # back pressure
            location = partition.location  # send it to the consumers
        async with client.open_gate([location], subpartition=2) as gate:
            async for word in gate.records(StringSerializer()):
                print(word)

A client is one task, or several tasks of one process. It has memory of its own, and a producer and
a consumer connection to *one* TaskManager, which holds what the client writes and fetches what it
reads. ``docs/guide/python-api.md`` is a tutorial, ``docs/reference/python-api.md`` has the
contract; ``sync`` is the same API without asyncio.
"""
