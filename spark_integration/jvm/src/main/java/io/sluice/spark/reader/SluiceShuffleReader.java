package io.sluice.spark.reader;

import io.sluice.client.gate.BlockStream;
import io.sluice.client.gate.Gate;
import io.sluice.client.gate.InputGate;
import io.sluice.client.gate.Source;
import io.sluice.spark.common.Compat;
import io.sluice.spark.executor.TaskReader;
import io.sluice.spark.settings.SluiceSettings;
import java.io.IOException;
import java.util.List;
import org.apache.spark.Aggregator;
import org.apache.spark.InterruptibleIterator;
import org.apache.spark.TaskContext;
import org.apache.spark.shuffle.BaseShuffleHandle;
import org.apache.spark.shuffle.ShuffleReadMetricsReporter;
import org.apache.spark.util.collection.ExternalSorter;
import scala.Function1;
import scala.Function2;
import scala.Option;
import scala.Product2;
import scala.collection.Iterator;

/** Reads partitions of map outputs, then aggregates and sorts with Spark's own classes. */
public final class SluiceShuffleReader<K, C> extends TaskReader<K, C> {

    public SluiceShuffleReader(
            BaseShuffleHandle<?, ?, ?> handle,
            Range range,
            TaskContext context,
            ShuffleReadMetricsReporter metrics) {
        super(handle, range, context, metrics);
    }

    @Override
    public Iterator<Product2<K, C>> read() {
        int shuffleId = dependency.shuffleId();
        MapOutputs outputs = MapOutputs.of(shuffleId, range);
        if (outputs.sources().isEmpty()) {
            return finish(scala.collection.Iterator$.MODULE$.empty());
        }
        FetchFailures failures =
                new FetchFailures(runtime, shuffleId, range.startPartition(), outputs);
        Gate<BlockStream> gate = open(outputs.sources(), failures);
        RecordIterator records =
                new RecordIterator(
                        gate,
                        failures,
                        dependency.serializer(),
                        StreamDecoder.of(dependency.serializer()),
                        shuffleId,
                        context,
                        metrics,
                        context.taskMetrics()::mergeShuffleReadMetrics);
        return finish(new InterruptibleIterator<>(context, records));
    }

    private Gate<BlockStream> open(List<Source> sources, FetchFailures failures) {
        try {
            return open(ProcessSources.of(sources, runtime.processes()), sources);
        } catch (IOException e) {
            throw failures.thrown(e);
        }
    }

    private Gate<BlockStream> open(ProcessSources byProcess, List<Source> sources)
            throws IOException {
        var reader = runtime.settings().reader();
        // A TaskManager joins nothing if the outputs could be pipelined ones: one partition of one
        // map attempt each.
        boolean areJoined =
                range.endPartition() > range.startPartition() + 1
                        || sources.stream().anyMatch(source -> source.mapAttemptIds().length > 1);
        // From all sources: the bound of a reader does not grow with the processes.
        int credit =
                areJoined
                        ? reader.storedCreditFor(sources.size())
                        : reader.pipelinedCreditFor(sources.size());
        return byProcess.open(
                inMapOrder(),
                (process, inMapOrder, ofProcess) ->
                        new InputGate(
                                runtime.consumerConnections(process),
                                dependency.shuffleId(),
                                range.startPartition(),
                                range.endPartition(),
                                credit,
                                inMapOrder,
                                ofProcess));
    }

    /** The session or job goes first: Spark SQL copies a session's settings to its tasks. */
    private boolean inMapOrder() {
        String ofJob = context.getLocalProperty(SluiceSettings.MAP_ORDER);
        return ofJob == null ? runtime.settings().reader().mapOrder() : Boolean.parseBoolean(ofJob);
    }

    /** Aggregates and sorts as Spark's own reader does. */
    @SuppressWarnings({"unchecked", "rawtypes"})
    private Iterator<Product2<K, C>> finish(Iterator records) {
        Option<Aggregator> aggregator = (Option) dependency.aggregator();
        Iterator result;
        if (dependency.keyOrdering().isDefined()) {
            result = sorter(aggregator).insertAllAndUpdateMetrics(records);
        } else if (aggregator.isDefined()) {
            result =
                    dependency.mapSideCombine()
                            ? aggregator.get().combineCombinersByKey(records, context)
                            : aggregator.get().combineValuesByKey(records, context);
        } else {
            result = records;
        }
        return result instanceof InterruptibleIterator
                ? result
                : new InterruptibleIterator<>(context, result);
    }

    @SuppressWarnings({"unchecked", "rawtypes"})
    private ExternalSorter sorter(Option<Aggregator> aggregator) {
        Option<Aggregator> combiner = aggregator;
        if (aggregator.isDefined() && dependency.mapSideCombine()) {
            // The values are combiners already.
            Function1 identity = value -> value;
            Function2 merge = aggregator.get().mergeCombiners();
            combiner = Option.apply(new Aggregator(identity, merge, merge));
        }
        return Compat.newSorter(
                context, combiner, dependency.keyOrdering(), dependency.serializer());
    }
}
