package io.sluice.spark.reader;

import io.sluice.client.gate.Source;
import io.sluice.spark.common.TaskManagerIds;
import io.sluice.spark.executor.TaskReader;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Comparator;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.SparkEnv;
import org.apache.spark.storage.BlockId;
import org.apache.spark.storage.BlockManagerId;
import org.apache.spark.storage.ShuffleBlockId;
import scala.Tuple2;
import scala.Tuple3;
import scala.collection.Iterator;

/**
 * The map outputs of a reducer by TaskManager. Those of one TaskManager are in the order of the map
 * tasks, as Spark's own reader reads those of its host.
 */
final class MapOutputs {
    private static final class Attempt {
        final long mapId;
        final int mapIndex;
        int streams;

        Attempt(long mapId, int mapIndex) {
            this.mapId = mapId;
            this.mapIndex = mapIndex;
        }
    }

    private final List<Source> sources = new ArrayList<>();
    private final Map<Long, BlockManagerId> locations = new HashMap<>();
    private final Map<Long, Integer> mapIndexes = new HashMap<>();

    /** Asks Spark's tracker, which throws a fetch failure if an output is missing. */
    @SuppressWarnings("unchecked")
    static MapOutputs of(int shuffleId, TaskReader.Range range) {
        Iterator<?> byLocation =
                SparkEnv.get()
                        .mapOutputTracker()
                        .getMapSizesByExecutorId(
                                shuffleId,
                                range.startMapIndex(),
                                range.endMapIndex(),
                                range.startPartition(),
                                range.endPartition());
        return of((Iterator<Tuple2<BlockManagerId, Object>>) byLocation);
    }

    /**
     * Groups map outputs by TaskManager.
     *
     * @param byLocation locations with their blocks; a TaskManager may have several locations
     */
    static MapOutputs of(Iterator<Tuple2<BlockManagerId, Object>> byLocation) {
        MapOutputs outputs = new MapOutputs();
        Map<String, BlockManagerId> taskManagers = new LinkedHashMap<>();
        Map<String, Map<Long, Attempt>> attempts = new HashMap<>();
        while (byLocation.hasNext()) {
            Tuple2<BlockManagerId, Object> entry = byLocation.next();
            BlockManagerId location = entry._1();
            String id = TaskManagerIds.taskManagerId(location);
            Map<Long, Attempt> known = attempts.computeIfAbsent(id, each -> new LinkedHashMap<>());
            outputs.add(location, ((scala.collection.Iterable<?>) entry._2()).iterator(), known);
            if (!known.isEmpty()) {
                taskManagers.putIfAbsent(id, location);
            }
        }
        taskManagers.forEach(
                (id, location) -> outputs.addSource(id, location, attempts.get(id).values()));
        return outputs;
    }

    @SuppressWarnings("unchecked")
    private void add(BlockManagerId location, Iterator<?> blocks, Map<Long, Attempt> attempts) {
        while (blocks.hasNext()) {
            // Only blocks that are not empty are listed.
            Tuple3<BlockId, Object, Object> block = (Tuple3<BlockId, Object, Object>) blocks.next();
            long mapId = ((ShuffleBlockId) block._1()).mapId();
            attempts.computeIfAbsent(mapId, id -> new Attempt(id, (Integer) block._3())).streams++;
            locations.put(mapId, location);
        }
    }

    private void addSource(String id, BlockManagerId location, Collection<Attempt> attempts) {
        List<Attempt> inOrder = new ArrayList<>(attempts);
        inOrder.sort(Comparator.comparingInt(each -> each.mapIndex));
        long[] ids = new long[inOrder.size()];
        int[] streams = new int[inOrder.size()];
        int[] indexes = new int[inOrder.size()];
        for (int i = 0; i < ids.length; i++) {
            Attempt attempt = inOrder.get(i);
            ids[i] = attempt.mapId;
            indexes[i] = attempt.mapIndex;
            streams[i] = attempt.streams;
            mapIndexes.put(attempt.mapId, attempt.mapIndex);
        }
        sources.add(
                new Source(
                        id, TaskManagerIds.host(location), location.port(), ids, streams, indexes));
    }

    List<Source> sources() {
        return sources;
    }

    /** Returns the location of a map output in the tracker; null if it was not requested. */
    BlockManagerId location(long mapId) {
        return locations.get(mapId);
    }

    int mapIndex(long mapId) {
        return mapIndexes.getOrDefault(mapId, -1);
    }
}
