package io.sluice.spark.reader;

import io.sluice.client.Source;
import io.sluice.spark.TaskManagerIds;
import io.sluice.spark.TaskReader;
import java.util.ArrayList;
import java.util.Arrays;
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
 * Groups the map outputs of a reducer, as Spark's tracker names them, by TaskManager. The tracker
 * names them in the order of the map tasks, in which Spark's own reader reads those of its host.
 */
final class MapOutputs {
    private static final class Attempt {
        final int mapIndex;
        int streams;

        Attempt(int mapIndex) {
            this.mapIndex = mapIndex;
        }
    }

    private final List<Source> sources = new ArrayList<>();
    private final Map<String, BlockManagerId> locations = new HashMap<>();
    private final Map<Long, Integer> mapIndexes = new HashMap<>();

    /** Asks the tracker, which throws a fetch failure itself if an output is missing. */
    @SuppressWarnings("unchecked")
    static MapOutputs of(int shuffleId, TaskReader.Range range) {
        MapOutputs outputs = new MapOutputs();
        Iterator<?> byLocation =
                SparkEnv.get()
                        .mapOutputTracker()
                        .getMapSizesByExecutorId(
                                shuffleId,
                                range.startMapIndex(),
                                range.endMapIndex(),
                                range.startPartition(),
                                range.endPartition());
        while (byLocation.hasNext()) {
            Tuple2<BlockManagerId, Object> entry =
                    (Tuple2<BlockManagerId, Object>) byLocation.next();
            outputs.add(entry._1(), ((scala.collection.Iterable<?>) entry._2()).iterator());
        }
        return outputs;
    }

    @SuppressWarnings("unchecked")
    private void add(BlockManagerId location, Iterator<?> blocks) {
        Map<Long, Attempt> attempts = new LinkedHashMap<>();
        while (blocks.hasNext()) {
            // Sizes are estimates, but a block is listed only if it is not empty.
            Tuple3<BlockId, Object, Object> block = (Tuple3<BlockId, Object, Object>) blocks.next();
            long mapId = ((ShuffleBlockId) block._1()).mapId();
            attempts.computeIfAbsent(mapId, id -> new Attempt((Integer) block._3())).streams++;
        }
        if (attempts.isEmpty()) {
            return;
        }
        long[] ids = new long[attempts.size()];
        int[] streams = new int[attempts.size()];
        int[] indexes = new int[attempts.size()];
        int i = 0;
        for (Map.Entry<Long, Attempt> attempt : attempts.entrySet()) {
            ids[i] = attempt.getKey();
            indexes[i] = attempt.getValue().mapIndex;
            streams[i++] = attempt.getValue().streams;
            mapIndexes.put(attempt.getKey(), attempt.getValue().mapIndex);
        }
        String id = TaskManagerIds.taskManagerId(location);
        locations.put(id, location);
        sources.add(new Source(id, location.host(), location.port(), ids, streams, indexes));
    }

    List<Source> sources() {
        return sources;
    }

    /**
     * Returns where the tracker has a map output. It may have been read elsewhere.
     *
     * @return null if the map output was not asked for
     */
    BlockManagerId location(long mapId) {
        for (Source source : sources) {
            if (Arrays.stream(source.mapAttemptIds()).anyMatch(id -> id == mapId)) {
                return locations.get(source.taskManagerId());
            }
        }
        return null;
    }

    int mapIndex(long mapId) {
        return mapIndexes.getOrDefault(mapId, -1);
    }
}
