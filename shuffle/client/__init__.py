"""The Python API: result partitions and input gates of a TaskManager, for any asyncio program.

::

    async with await ShuffleClient.connect(
        "unix:/run/sluice/taskmanager.sock", "wordcount"
    ) as client:
        async with client.open_result_partition(1, 0, num_subpartitions=4) as partition:
            writer = partition.record_writer(StringSerializer(), HashSelector(str.encode))
            ...
        async with client.open_gate([partition.location], subpartition=2) as gate:
            async for record in gate.records(StringSerializer()):
                ...

A client is one task, or several tasks of one process: it has memory of its own, as a TaskManager
has, and a producer and a consumer connection to *one* TaskManager, which holds what is written and
fetches what is read. ``docs/guide/python-api.md`` has the whole story.
"""
