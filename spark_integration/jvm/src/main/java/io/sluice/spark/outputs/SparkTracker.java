package io.sluice.spark.outputs;

import io.sluice.client.failover.PlaceDirectory;
import io.sluice.spark.common.TaskManagerIds;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.function.Function;
import java.util.function.IntPredicate;
import org.apache.spark.MapOutputTrackerMaster;
import org.apache.spark.ShuffleStatus;
import org.apache.spark.SparkEnv;
import org.apache.spark.scheduler.MapStatus;
import org.apache.spark.storage.BlockManagerId;
import scala.Function1;
import scala.Option;
import scala.Tuple2;
import scala.collection.Iterator;

/**
 * Spark's own map output tracker, on the driver. It knows nothing after the application's end.
 *
 * <p>Its methods used here are public and the same from 3.5 to 4.3.
 */
public final class SparkTracker implements Tracker {
    private final Function<String, String> hostOf;

    /**
     * @param hostOf returns the host that tasks are to prefer for the outputs of a TaskManager;
     *     null for none
     */
    public SparkTracker(Function<String, String> hostOf) {
        this.hostOf = hostOf;
    }

    /** Returns the tracker; null after the application's end. */
    private static MapOutputTrackerMaster master() {
        SparkEnv env = SparkEnv.get();
        return env == null ? null : (MapOutputTrackerMaster) env.mapOutputTracker();
    }

    private static ShuffleStatus status(int shuffleId) {
        MapOutputTrackerMaster master = master();
        if (master == null) {
            return null;
        }
        Option<ShuffleStatus> status = master.shuffleStatuses().get(shuffleId);
        return status.isEmpty() ? null : status.get();
    }

    @Override
    public int mapTasks(int shuffleId) {
        ShuffleStatus status = status(shuffleId);
        return status == null ? -1 : status.mapStatuses().length;
    }

    @Override
    public Optional<String> taskManagerOf(int shuffleId, long attempt) {
        MapOutputTrackerMaster master = master();
        if (master == null) {
            return Optional.empty();
        }
        Option<BlockManagerId> location = master.getMapOutputLocation(shuffleId, attempt);
        return location.isEmpty() || !TaskManagerIds.isTaskManager(location.get())
                ? Optional.empty()
                : Optional.of(TaskManagerIds.taskManagerId(location.get()));
    }

    @Override
    public Map<String, Map<Integer, List<Long>>> outputsOf(Set<String> taskManagerIds) {
        Map<String, Map<Integer, List<Long>>> outputs = new HashMap<>();
        MapOutputTrackerMaster master = master();
        if (master == null || taskManagerIds.isEmpty()) {
            return outputs;
        }
        Iterator<?> statuses = ((scala.collection.Iterable<?>) master.shuffleStatuses()).iterator();
        while (statuses.hasNext()) {
            Tuple2<?, ?> shuffle = (Tuple2<?, ?>) statuses.next();
            Integer shuffleId = (Integer) shuffle._1();
            Function1<MapStatus[], Object> collect =
                    all -> {
                        for (MapStatus output : all) {
                            if (output == null
                                    || !TaskManagerIds.isTaskManager(output.location())) {
                                continue;
                            }
                            String id = TaskManagerIds.taskManagerId(output.location());
                            if (taskManagerIds.contains(id)) {
                                outputs.computeIfAbsent(id, any -> new HashMap<>())
                                        .computeIfAbsent(shuffleId, any -> new ArrayList<>())
                                        .add(output.mapId());
                            }
                        }
                        return null;
                    };
            ((ShuffleStatus) shuffle._2()).withMapStatuses(collect);
        }
        return outputs;
    }

    /**
     * Has Spark's scheduler prefer no host for the readers of map outputs at TaskManagers. What
     * executors know stays valid.
     */
    public static void hideHosts() {
        MapOutputTrackerMaster master = master();
        if (master == null) {
            return;
        }
        Iterator<?> statuses = ((scala.collection.Iterable<?>) master.shuffleStatuses()).iterator();
        while (statuses.hasNext()) {
            ShuffleStatus shuffle = (ShuffleStatus) ((Tuple2<?, ?>) statuses.next())._2();
            // A relocation, which needs the lock for itself, comes before or after all of this.
            Function1<MapStatus[], Object> hide = SparkTracker::hideHosts;
            if ((Integer) shuffle.withMapStatuses(hide) > 0) {
                shuffle.invalidateSerializedMapOutputStatusCache();
            }
        }
    }

    private static int hideHosts(MapStatus[] outputs) {
        int hidden = 0;
        for (MapStatus output : outputs) {
            if (output != null
                    && TaskManagerIds.isTaskManager(output.location())
                    && TaskManagerIds.prefersHost(output.location())) {
                output.updateLocation(
                        TaskManagerIds.withoutHost(output.location(), output.mapId()));
                hidden++;
            }
        }
        return hidden;
    }

    @Override
    public void update(int shuffleId, long attempt, PlaceDirectory.Place place) {
        MapOutputTrackerMaster master = master();
        if (master != null) {
            master.updateMapOutput(
                    shuffleId,
                    attempt,
                    TaskManagerIds.location(place, hostOf.apply(place.taskManagerId()), attempt));
        }
    }

    @Override
    public int unregister(int shuffleId, Collection<Long> attempts) {
        ShuffleStatus status = status(shuffleId);
        if (status == null) {
            return 0;
        }
        MapOutputTrackerMaster master = master();
        Set<Long> wanted = Set.copyOf(attempts);
        MapStatus[] outputs = status.mapStatuses();
        int forgotten = 0;
        for (int index = 0; index < outputs.length; index++) {
            MapStatus output = outputs[index];
            if (output != null && wanted.contains(output.mapId())) {
                master.unregisterMapOutput(shuffleId, index, output.location());
                forgotten++;
            }
        }
        return forgotten;
    }

    /**
     * Unregisters the outputs that an executor held; returns their number. Executors ask for all
     * places again, because outputs may also have moved away before the loss: Spark copies the
     * outputs of a decommissioned executor to others.
     *
     * @param mayHold whether outputs of a shuffle can be in executors; other shuffles are skipped
     */
    public static int forgetExecutor(String executorId, IntPredicate mayHold) {
        MapOutputTrackerMaster master = master();
        if (master == null) {
            return 0;
        }
        int held = 0;
        boolean any = false;
        Iterator<?> statuses = ((scala.collection.Iterable<?>) master.shuffleStatuses()).iterator();
        while (statuses.hasNext()) {
            Tuple2<?, ?> shuffle = (Tuple2<?, ?>) statuses.next();
            if (mayHold.test((Integer) shuffle._1())) {
                any = true;
                Function1<MapStatus[], Object> count = all -> count(all, executorId);
                held += (Integer) ((ShuffleStatus) shuffle._2()).withMapStatuses(count);
            }
        }
        if (any) {
            // Outputs in TaskManagers are registered under names that no executor has.
            master.removeOutputsOnExecutor(executorId);
        }
        return held;
    }

    private static int count(MapStatus[] outputs, String executorId) {
        int held = 0;
        for (MapStatus output : outputs) {
            if (output != null && output.location().executorId().equals(executorId)) {
                held++;
            }
        }
        return held;
    }

    @Override
    public void changed() {
        MapOutputTrackerMaster master = master();
        if (master != null) {
            master.incrementEpoch();
        }
    }

    /** Unregisters one map output if it is still the registered one; returns whether it was. */
    public static boolean forgetMapOutput(int shuffleId, long mapId, int mapIndex) {
        MapOutputTrackerMaster tracker = (MapOutputTrackerMaster) SparkEnv.get().mapOutputTracker();
        Option<BlockManagerId> location = tracker.getMapOutputLocation(shuffleId, mapId);
        if (location.isEmpty()) {
            return false;
        }
        tracker.unregisterMapOutput(shuffleId, mapIndex, location.get());
        return true;
    }

    /**
     * Unregisters all outputs of a shuffle whose data is about to be removed while Spark still
     * knows the shuffle. A later use then finds at once that all map tasks must run again, instead
     * of losing one output after the other.
     */
    public static void forgetMapOutputs(int shuffleId) {
        MapOutputTrackerMaster tracker = master();
        if (tracker != null && tracker.containsShuffle(shuffleId)) {
            tracker.unregisterAllMapAndMergeOutput(shuffleId);
        }
    }
}
