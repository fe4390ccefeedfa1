"""Records: tasks write and read them; buffers carry them through partitions and gates.

A record is an opaque value behind a length; it may fill part of a buffer or span many. The writing
side is :class:`~sluice.shuffle.records.record_writer.RecordWriter` over a
:class:`~sluice.shuffle.partition.result_partition_writer.ResultPartitionWriter`, the reading side
is :class:`~sluice.shuffle.records.record_reader.RecordReader` over an input gate. Neither knows how
buffers travel.
"""
