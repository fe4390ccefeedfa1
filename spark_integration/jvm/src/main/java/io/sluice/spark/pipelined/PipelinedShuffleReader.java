package io.sluice.spark.pipelined;

import io.sluice.client.connection.TaskManagerConnection;
import io.sluice.client.gate.PipelinedGate;
import io.sluice.client.gate.Source;
import io.sluice.client.wire.Message;
import io.sluice.spark.common.Compat;
import io.sluice.spark.executor.TaskReader;
import io.sluice.spark.settings.SluiceSettings;
import java.io.IOException;
import java.util.List;
import org.apache.spark.InterruptibleIterator;
import org.apache.spark.TaskContext;
import org.apache.spark.rpc.RpcEndpointRef;
import org.apache.spark.shuffle.ShuffleReadMetricsReporter;
import scala.Product2;
import scala.collection.Iterator;

/** Reads one partition of all map tasks while they write it. */
public final class PipelinedShuffleReader<K, C> extends TaskReader<K, C> {
    private final RpcEndpointRef directory;

    public PipelinedShuffleReader(
            PipelinedShuffleHandle<?, ?, ?> handle,
            RpcEndpointRef directory,
            Range range,
            TaskContext context,
            ShuffleReadMetricsReporter metrics) {
        super(handle, range, context, metrics);
        this.directory = directory;
        if (range.startMapIndex() != 0
                || range.endMapIndex() != Integer.MAX_VALUE
                || range.endPartition() != range.startPartition() + 1) {
            throw new UnsupportedOperationException(
                    "a task reads one partition of a pipelined shuffle, from all map tasks; it"
                            + " cannot read "
                            + range);
        }
    }

    @Override
    @SuppressWarnings({"unchecked", "rawtypes"})
    public Iterator<Product2<K, C>> read() {
        PipelinedRecordIterator records =
                new PipelinedRecordIterator(
                        open(), dependency.serializer().newInstance(), context, metrics);
        return new InterruptibleIterator<>(context, (Iterator) records);
    }

    private PipelinedGate open() {
        SluiceSettings settings = runtime.settings();
        List<Source> sources =
                ProducerDirectory.sources(
                        directory, dependency.shuffleId(), settings.io().timeoutMillis());
        try {
            TaskManagerConnection connection = runtime.leasePipelined(Message.ROLE_CONSUMER);
            return new PipelinedGate(
                    connection,
                    runtime.pool(),
                    dependency.shuffleId(),
                    range.startPartition(),
                    settings.reader().pipelinedCreditFor(sources.size()),
                    sources);
        } catch (IOException e) {
            // Not a fetch failure: after any failure of a task the whole group runs again.
            throw Compat.<RuntimeException>sneakyThrow(e);
        }
    }
}
