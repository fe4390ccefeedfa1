package io.sluice.spark.outputs;

import io.sluice.client.failover.TaskManagerAddress;
import io.sluice.spark.common.TaskManagerIds;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.BiConsumer;
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
 * Spark's own map output tracker, on the driver. It is empty after the application's end.
 *
 * <p>The methods used here are public and the same from 3.5 to 4.3.
 */
public final class SparkTracker implements Tracker {
    private final PreferredHosts hosts;

    /** Chooses the hosts that Spark's scheduler prefers. */
    @FunctionalInterface
    public interface PreferredHosts {
        /** Returns the preferred host for a map output of a TaskManager; null for none. */
        String of(String taskManagerId, long attempt);
    }

    public SparkTracker(PreferredHosts hosts) {
        this.hosts = hosts;
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
        if (!taskManagerIds.isEmpty()) {
            forEachShuffle(
                    (shuffleId, shuffle) ->
                            forEachOutput(
                                    shuffle,
                                    (taskManagerId, output) -> {
                                        if (taskManagerIds.contains(taskManagerId)) {
                                            outputs.computeIfAbsent(
                                                            taskManagerId, id -> new HashMap<>())
                                                    .computeIfAbsent(
                                                            shuffleId, id -> new ArrayList<>())
                                                    .add(output.mapId());
                                        }
                                    }));
        }
        return outputs;
    }

    /** Calls {@code action} with the id and the status of each shuffle. */
    public static void forEachShuffle(BiConsumer<Integer, ShuffleStatus> action) {
        MapOutputTrackerMaster master = master();
        if (master == null) {
            return;
        }
        Iterator<?> statuses = ((scala.collection.Iterable<?>) master.shuffleStatuses()).iterator();
        while (statuses.hasNext()) {
            Tuple2<?, ?> shuffle = (Tuple2<?, ?>) statuses.next();
            action.accept((Integer) shuffle._1(), (ShuffleStatus) shuffle._2());
        }
    }

    /** Calls {@code action} with each map output at a TaskManager, under the shuffle's lock. */
    public static void forEachOutput(ShuffleStatus shuffle, BiConsumer<String, MapStatus> action) {
        Function1<MapStatus[], Object> each =
                outputs -> {
                    for (MapStatus output : outputs) {
                        if (output != null && TaskManagerIds.isTaskManager(output.location())) {
                            action.accept(TaskManagerIds.taskManagerId(output.location()), output);
                        }
                    }
                    return null;
                };
        shuffle.withMapStatuses(each);
    }

    /**
     * Removes the preferred hosts of map outputs at TaskManagers. Statuses that executors have stay
     * valid.
     */
    public static void hideHosts() {
        forEachShuffle(
                (shuffleId, shuffle) -> {
                    AtomicBoolean hidden = new AtomicBoolean();
                    // Holds the lock, which a relocation needs too.
                    forEachOutput(
                            shuffle,
                            (taskManagerId, output) -> {
                                if (TaskManagerIds.prefersHost(output.location())) {
                                    output.updateLocation(
                                            TaskManagerIds.withoutHost(
                                                    output.location(), output.mapId()));
                                    hidden.set(true);
                                }
                            });
                    if (hidden.get()) {
                        shuffle.invalidateSerializedMapOutputStatusCache();
                    }
                });
    }

    @Override
    public void update(int shuffleId, long attempt, TaskManagerAddress address) {
        MapOutputTrackerMaster master = master();
        if (master != null) {
            master.updateMapOutput(
                    shuffleId,
                    attempt,
                    TaskManagerIds.location(
                            address, hosts.of(address.taskManagerId(), attempt), attempt));
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
     * Unregisters the outputs that an executor held; returns their number. Executors then ask for
     * all locations again, because Spark moves the outputs of a decommissioned executor.
     *
     * @param mayHold whether outputs of a shuffle can be in executors; others are skipped
     */
    public static int forgetExecutor(String executorId, IntPredicate mayHold) {
        MapOutputTrackerMaster master = master();
        if (master == null) {
            return 0;
        }
        List<ShuffleStatus> shuffles = new ArrayList<>();
        forEachShuffle(
                (shuffleId, shuffle) -> {
                    if (mayHold.test(shuffleId)) {
                        shuffles.add(shuffle);
                    }
                });
        Function1<MapStatus[], Object> count = outputs -> count(outputs, executorId);
        int held = shuffles.stream().mapToInt(each -> (Integer) each.withMapStatuses(count)).sum();
        if (!shuffles.isEmpty()) {
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
     * Unregisters all outputs of a shuffle before its data is removed, so that a later use runs all
     * map tasks at once instead of losing one output after the other.
     */
    public static void forgetMapOutputs(int shuffleId) {
        MapOutputTrackerMaster tracker = master();
        if (tracker != null && tracker.containsShuffle(shuffleId)) {
            tracker.unregisterAllMapAndMergeOutput(shuffleId);
        }
    }
}
