package io.sluice.spark.outputs;

import io.sluice.client.failover.ReplicaLocator;
import io.sluice.client.failover.TaskManagerAddress;
import io.sluice.client.wire.Message;
import io.sluice.spark.common.DriverMessages;
import io.sluice.spark.common.SluiceMetrics;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.stream.Collectors;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Updates Spark's tracker after moves and losses of map outputs. Thread safe.
 *
 * <p>Spark's tracker has one location for each map output; {@link ReplicaTable} has the others.
 */
public final class OutputRegistry implements TaskManagerEvents {
    private static final Logger LOG = LoggerFactory.getLogger(OutputRegistry.class);

    /** Maximum number of moved outputs of a shuffle whose map tasks have not reported yet. */
    private static final int MAX_PENDING_MOVES = 100_000;

    /** Maximum number of replaced TaskManagers, whose map tasks may still report. */
    private static final int MAX_REPLACED = 1_000;

    /** Stands in {@link ReplicaTable} for every TaskManager with the remote tier. */
    private static final String REMOTE_TIER = "remote tier";

    /** The driver's connections to TaskManagers. */
    public interface Links {
        /** Returns the address of a connected TaskManager; null if it is not connected. */
        TaskManagerAddress connected(String taskManagerId);

        /** Returns a connected TaskManager that serves copies in the remote tier, or null. */
        TaskManagerAddress withRemoteTier(Set<String> avoided);

        /** Returns whether a TaskManager has ever been connected. */
        boolean isKnown(String taskManagerId);

        /** Returns whether a TaskManager has been disconnected for as long as readers wait. */
        boolean isAway(String taskManagerId);

        /** Connects to a TaskManager. */
        void add(TaskManagerAddress address);
    }

    private final Tracker tracker;
    private final Links links;
    private final ReplicaTable replicas;
    private final Set<String> gone = ConcurrentHashMap.newKeySet();

    /** TaskManagers whose address another one has taken over; guarded by itself. */
    private final Set<String> replaced = new LinkedHashSet<>();

    /** TaskManagers to which outputs have moved before they were connected. */
    private final Map<String, TaskManagerAddress> moveTargets = new ConcurrentHashMap<>();

    /** The last address of each TaskManager that was ever connected. */
    private final Map<String, TaskManagerAddress> addresses = new ConcurrentHashMap<>();

    /** New addresses of moved outputs whose map tasks have not reported; guarded by itself. */
    private final Map<Integer, Map<Long, TaskManagerAddress>> pendingMoves = new HashMap<>();

    public OutputRegistry(Tracker tracker, Links links) {
        this.tracker = tracker;
        this.links = links;
        this.replicas = new ReplicaTable(tracker::mapTasks);
    }

    /** Returns the address of a TaskManager if it may be reachable, else null. */
    private TaskManagerAddress usable(String taskManagerId) {
        TaskManagerAddress connected = links.connected(taskManagerId);
        return connected != null || links.isKnown(taskManagerId)
                ? connected
                : moveTargets.get(taskManagerId);
    }

    /** Returns a usable TaskManager that has a map output, or null. */
    private TaskManagerAddress locate(int shuffleId, long attempt, Set<String> avoided) {
        Set<String> candidates = new LinkedHashSet<>();
        tracker.taskManagerOf(shuffleId, attempt).ifPresent(candidates::add);
        candidates.addAll(replicas.of(shuffleId, attempt));
        for (String candidate : candidates) {
            TaskManagerAddress found = null;
            if (candidate.equals(REMOTE_TIER)) {
                found = links.withRemoteTier(avoided);
            } else if (!avoided.contains(candidate)) {
                found = usable(candidate);
            }
            if (found != null) {
                return found;
            }
        }
        return null;
    }

    /**
     * Answers an executor's request for replicas.
     *
     * @param failed TaskManagers at which reading has failed
     * @param last the last of these TaskManagers, with its address; null if it is not known
     */
    public DriverMessages.ReplicasAnswer replicas(
            int shuffleId, Collection<Long> attempts, Set<String> failed, TaskManagerAddress last) {
        Set<String> avoided = new LinkedHashSet<>(failed);
        if (last != null) {
            TaskManagerAddress now = links.connected(last.taskManagerId());
            if (now != null && !now.equals(last)) {
                // It has returned at another address.
                avoided.remove(last.taskManagerId());
            }
        }
        List<TaskManagerAddress> found = new ArrayList<>();
        boolean isOutdated = false;
        for (long attempt : attempts) {
            found.add(locate(shuffleId, attempt, avoided));
            isOutdated |=
                    tracker.taskManagerOf(shuffleId, attempt)
                            .filter(id -> !avoided.contains(id))
                            .isPresent();
        }
        Set<String> away =
                avoided.stream().filter(links::isAway).collect(Collectors.toUnmodifiableSet());
        return new DriverMessages.ReplicasAnswer(
                isOutdated, new ReplicaLocator.Replicas(found, away));
    }

    // ---- events

    @Override
    public void connected(Message.HelloAck taskManager) {
        gone.remove(taskManager.taskManagerId());
        readdress(
                new TaskManagerAddress(
                        taskManager.taskManagerId(),
                        taskManager.advertisedHost(),
                        taskManager.dataPort()));
        Set<String> lost = new LinkedHashSet<>(gone);
        synchronized (replaced) {
            replaced.remove(taskManager.taskManagerId());
            lost.addAll(replaced);
        }
        if (links.withRemoteTier(Set.of()) != null) {
            relocateAll(lost); // it may be the first that serves their copies
        }
    }

    /** Updates the locations of the map outputs of a TaskManager that has another address now. */
    private void readdress(TaskManagerAddress now) {
        TaskManagerAddress before = addresses.put(now.taskManagerId(), now);
        if (before == null || before.equals(now)) {
            return;
        }
        int updated = 0;
        for (Map.Entry<Integer, List<Long>> outputs :
                tracker.outputsOf(now.taskManagerId()).entrySet()) {
            for (long attempt : outputs.getValue()) {
                tracker.update(outputs.getKey(), attempt, now);
                updated++;
            }
        }
        count(updated);
        LOG.info(
                "TaskManager {} has moved from {}:{} to {}:{}; map outputs moved with it: {}",
                now.taskManagerId(),
                before.host(),
                before.port(),
                now.host(),
                now.port(),
                updated);
    }

    @Override
    public void replaced(String taskManagerId) {
        synchronized (replaced) {
            replaced.add(taskManagerId);
            if (replaced.size() > MAX_REPLACED) {
                replaced.remove(replaced.iterator().next());
            }
        }
        unregisterLost(Set.of(taskManagerId));
    }

    @Override
    public Map<Integer, List<Long>> expected(String taskManagerId) {
        return tracker.outputsOf(taskManagerId);
    }

    @Override
    public boolean isRegistered(int shuffleId) {
        return tracker.mapTasks(shuffleId) >= 0;
    }

    /**
     * Unregisters all map outputs of lost TaskManagers that have no replica. Spark then runs their
     * map tasks together, instead of failing once for each TaskManager.
     */
    public void unregisterLost(Set<String> taskManagerIds) {
        Set<String> all = new LinkedHashSet<>(taskManagerIds);
        synchronized (replaced) {
            all.addAll(replaced);
        }
        tracker.outputsOf(all)
                .forEach(
                        (taskManagerId, outputs) ->
                                outputs.forEach(
                                        (shuffleId, attempts) ->
                                                unregisterLost(
                                                        taskManagerId, shuffleId, attempts)));
    }

    private void unregisterLost(String taskManagerId, int shuffleId, List<Long> attempts) {
        relocate(shuffleId, attempts);
        List<Long> nowhere =
                attempts.stream()
                        .filter(
                                attempt ->
                                        tracker.taskManagerOf(shuffleId, attempt)
                                                .filter(taskManagerId::equals)
                                                .isPresent())
                        // The next TaskManager with the remote tier serves these.
                        .filter(attempt -> !isInRemoteTier(shuffleId, attempt))
                        .toList();
        int forgotten = nowhere.isEmpty() ? 0 : tracker.unregister(shuffleId, nowhere);
        LOG.warn(
                "TaskManager {} with {} map outputs of shuffle {} is lost: {} map tasks run again",
                taskManagerId,
                attempts.size(),
                shuffleId,
                forgotten);
    }

    private boolean isInRemoteTier(int shuffleId, long attempt) {
        return replicas.of(shuffleId, attempt).contains(REMOTE_TIER);
    }

    @Override
    public void remote(Message.OutputsRemote outputs) {
        int shuffleId = (int) outputs.shuffleId();
        replicas.add(shuffleId, outputs.mapAttemptIds(), REMOTE_TIER);
        relocateFromGone(shuffleId, outputs.mapAttemptIds());
    }

    @Override
    public void held(String taskManagerId, Message.OutputsHeld outputs) {
        int shuffleId = (int) outputs.shuffleId();
        replicas.add(shuffleId, outputs.mapAttemptIds(), taskManagerId);
        relocateFromGone(shuffleId, outputs.mapAttemptIds());
    }

    private void relocateFromGone(int shuffleId, List<Long> attempts) {
        if (!gone.isEmpty()) {
            relocate(
                    shuffleId,
                    attempts.stream()
                            .filter(
                                    attempt ->
                                            tracker.taskManagerOf(shuffleId, attempt)
                                                    .filter(gone::contains)
                                                    .isPresent())
                            .toList());
        }
    }

    @Override
    public void moved(String taskManagerId, Message.OutputsMoved outputs) {
        int shuffleId = (int) outputs.shuffleId();
        TaskManagerAddress to = links.connected(outputs.taskManagerId());
        if (to == null) {
            to = new TaskManagerAddress(outputs.taskManagerId(), outputs.host(), outputs.port());
            moveTargets.put(to.taskManagerId(), to);
            links.add(to);
        }
        replicas.add(shuffleId, outputs.mapAttemptIds(), to.taskManagerId());
        replicas.remove(shuffleId, outputs.mapAttemptIds(), taskManagerId);
        int updated = 0;
        for (long attempt : outputs.mapAttemptIds()) {
            String now = tracker.taskManagerOf(shuffleId, attempt).orElse(null);
            if (now == null) {
                addPendingMove(shuffleId, attempt, to);
            } else if (now.equals(taskManagerId) || usable(now) == null) {
                tracker.update(shuffleId, attempt, to);
                updated++;
            }
        }
        count(updated);
        LOG.info(
                "{} map outputs of shuffle {} have moved from TaskManager {} to {}; new tasks read"
                        + " {} of them there",
                outputs.mapAttemptIds().size(),
                shuffleId,
                taskManagerId,
                to.taskManagerId(),
                updated);
    }

    private void addPendingMove(int shuffleId, long attempt, TaskManagerAddress to) {
        if (tracker.mapTasks(shuffleId) < 0) {
            return;
        }
        synchronized (pendingMoves) {
            Map<Long, TaskManagerAddress> ofShuffle =
                    pendingMoves.computeIfAbsent(shuffleId, id -> new HashMap<>());
            if (ofShuffle.size() < MAX_PENDING_MOVES) {
                ofShuffle.put(attempt, to);
            }
        }
    }

    @Override
    public void lost(String taskManagerId, Message.OutputsLost outputs) {
        int shuffleId = (int) outputs.shuffleId();
        replicas.remove(shuffleId, outputs.mapAttemptIds(), taskManagerId);
        Set<String> avoided = Set.of(taskManagerId);
        List<Long> nowhere = new ArrayList<>();
        int updated = 0;
        for (long attempt : outputs.mapAttemptIds()) {
            if (tracker.taskManagerOf(shuffleId, attempt).filter(avoided::contains).isEmpty()) {
                continue;
            }
            TaskManagerAddress other = locate(shuffleId, attempt, avoided);
            if (other == null && isInRemoteTier(shuffleId, attempt)) {
                other = links.withRemoteTier(Set.of()); // it serves the copy itself
            }
            if (other == null) {
                nowhere.add(attempt);
            } else {
                tracker.update(shuffleId, attempt, other);
                updated++;
            }
        }
        int forgotten = nowhere.isEmpty() ? 0 : tracker.unregister(shuffleId, nowhere);
        count(updated);
        if (forgotten + updated == 0) {
            LOG.debug("TaskManager {} has lost map outputs that are not in use", taskManagerId);
            return;
        }
        LOG.warn(
                "TaskManager {} has lost {} map outputs of shuffle {}: {} map tasks run again, {}"
                        + " outputs have replicas",
                taskManagerId,
                outputs.mapAttemptIds().size(),
                shuffleId,
                forgotten,
                updated);
    }

    @Override
    public void gone(String taskManagerId) {
        gone.add(taskManagerId);
        relocateAll(Set.of(taskManagerId));
    }

    /**
     * Called before Spark unregisters all outputs of a TaskManager because a task could not read
     * some of them: relocates those that have replicas.
     */
    public void onUnreadable(String taskManagerId, int shuffleId, Collection<Long> unreadable) {
        replicas.forget(shuffleId, unreadable);
        relocateAll(Set.of(taskManagerId));
    }

    /** Replaces TaskManagers in the tracker by the replicas of their map outputs. */
    private void relocateAll(Set<String> taskManagerIds) {
        if (replicas.size() > 0 && !taskManagerIds.isEmpty()) {
            tracker.outputsOf(taskManagerIds)
                    .values()
                    .forEach(outputs -> outputs.forEach(this::relocate));
        }
    }

    private void relocate(int shuffleId, List<Long> attempts) {
        Map<String, List<Long>> left = new HashMap<>();
        int updated = 0;
        for (long attempt : attempts) {
            String now = tracker.taskManagerOf(shuffleId, attempt).orElse(null);
            TaskManagerAddress other = now == null ? null : locate(shuffleId, attempt, Set.of(now));
            if (other != null) {
                tracker.update(shuffleId, attempt, other);
                left.computeIfAbsent(now, id -> new ArrayList<>()).add(attempt);
                updated++;
            }
        }
        // The TaskManager may return with its data.
        left.forEach((taskManagerId, ids) -> replicas.add(shuffleId, ids, taskManagerId));
        count(updated);
        if (!attempts.isEmpty()) {
            LOG.info(
                    "{} of {} map outputs of shuffle {} whose TaskManager is gone have replicas",
                    updated,
                    attempts.size(),
                    shuffleId);
        }
    }

    private void count(int updated) {
        if (updated > 0) {
            SluiceMetrics.INSTANCE.mapOutputsRelocated.add(updated);
            tracker.changed();
        }
    }

    /** Called when all map tasks of a shuffle have reported. */
    public void written(int shuffleId) {
        Map<Long, TaskManagerAddress> moved;
        synchronized (pendingMoves) {
            moved = pendingMoves.remove(shuffleId);
        }
        if (moved != null) {
            int updated = 0;
            for (Map.Entry<Long, TaskManagerAddress> output : moved.entrySet()) {
                long attempt = output.getKey();
                if (tracker.taskManagerOf(shuffleId, attempt).isPresent()) {
                    tracker.update(shuffleId, attempt, output.getValue());
                    updated++;
                }
            }
            count(updated);
        }
        Set<String> lost = Set.copyOf(gone);
        if (replicas.size() > 0 && !lost.isEmpty()) {
            tracker.outputsOf(lost)
                    .values()
                    .forEach(
                            outputs ->
                                    relocate(
                                            shuffleId, outputs.getOrDefault(shuffleId, List.of())));
        }
    }

    /** Called when a shuffle is released. */
    public void released(int shuffleId) {
        replicas.released(shuffleId);
        synchronized (pendingMoves) {
            pendingMoves.remove(shuffleId);
        }
    }

    /** Returns the number of map outputs with replicas. */
    int size() {
        return replicas.size();
    }
}
