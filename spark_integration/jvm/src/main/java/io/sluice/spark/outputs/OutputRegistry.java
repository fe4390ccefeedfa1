package io.sluice.spark.outputs;

import io.sluice.client.failover.PlaceDirectory;
import io.sluice.client.output.Replicas;
import io.sluice.client.wire.Frames;
import io.sluice.client.wire.Message;
import io.sluice.spark.common.DriverMessages;
import io.sluice.spark.common.SluiceMetrics;
import io.sluice.spark.settings.SluiceSettings;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicBoolean;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Keeps Spark's tracker right about where map outputs are, and knows where else they are. Thread
 * safe.
 *
 * <p>Spark's tracker has one place for each map output. The others are in {@link Places}. What
 * cannot be put into the tracker, because the map task has not reported yet, is found there by
 * readers that fail at the old place.
 */
public final class OutputRegistry implements TaskManagerEvents {
    private static final Logger LOG = LoggerFactory.getLogger(OutputRegistry.class);

    /** Most moved outputs of a shuffle that are put into the tracker when their tasks report. */
    private static final int MAX_DUE = 100_000;

    /** Most replaced TaskManagers to remember, because map tasks that wrote there may report. */
    private static final int MAX_REPLACED = 1_000;

    /** The driver's connections to TaskManagers. */
    public interface Links {
        /** Returns the place of a TaskManager to which there is a connection; null without one. */
        PlaceDirectory.Place connected(String taskManagerId);

        /** Returns whether there has been a connection to a TaskManager. */
        boolean isKnown(String taskManagerId);

        /** Connects to a TaskManager that another one has named. */
        void add(PlaceDirectory.Place place);
    }

    private final Tracker tracker;
    private final Links links;
    private final Replicas replicas;
    private final Places places;
    private final Set<String> gone = ConcurrentHashMap.newKeySet();

    /** TaskManagers at whose address another one answers now; guarded by itself. */
    private final Set<String> replaced = new LinkedHashSet<>();

    /** TaskManagers to which outputs have moved; there are few. */
    private final Map<String, PlaceDirectory.Place> named = new ConcurrentHashMap<>();

    /** Places of moved outputs that the tracker did not know then; guarded by itself. */
    private final Map<Integer, Map<Long, PlaceDirectory.Place>> due = new HashMap<>();

    private final AtomicBoolean warned = new AtomicBoolean();

    /**
     * @param replicas wanted copies, for the warning that a TaskManager makes none
     */
    public OutputRegistry(Tracker tracker, Links links, Replicas replicas) {
        this.tracker = tracker;
        this.links = links;
        this.replicas = replicas;
        this.places = new Places(tracker::mapTasks);
    }

    /** Returns the place of a TaskManager if it can be used now, else null. */
    private PlaceDirectory.Place usable(String taskManagerId) {
        PlaceDirectory.Place connected = links.connected(taskManagerId);
        return connected != null || links.isKnown(taskManagerId)
                ? connected
                : named.get(taskManagerId);
    }

    /** Returns a usable place of a map output that is not to be avoided, or null. */
    private PlaceDirectory.Place place(int shuffleId, long attempt, Set<String> avoided) {
        Set<String> candidates = new LinkedHashSet<>();
        tracker.taskManagerOf(shuffleId, attempt).ifPresent(candidates::add);
        candidates.addAll(places.of(shuffleId, attempt));
        for (String candidate : candidates) {
            PlaceDirectory.Place place = avoided.contains(candidate) ? null : usable(candidate);
            if (place != null) {
                return place;
            }
        }
        return null;
    }

    // ---- questions

    /**
     * Answers where map outputs are.
     *
     * @param avoided TaskManagers at which reading has failed
     */
    public DriverMessages.PlacesAnswer places(
            int shuffleId, Collection<Long> attempts, Set<String> avoided) {
        List<PlaceDirectory.Place> found = new ArrayList<>();
        boolean isNews = false;
        for (long attempt : attempts) {
            found.add(place(shuffleId, attempt, avoided));
            isNews |=
                    tracker.taskManagerOf(shuffleId, attempt)
                            .filter(id -> !avoided.contains(id))
                            .isPresent();
        }
        return new DriverMessages.PlacesAnswer(isNews, found);
    }

    // ---- events

    @Override
    public void connected(Message.HelloAck taskManager) {
        gone.remove(taskManager.taskManagerId());
        synchronized (replaced) {
            replaced.remove(taskManager.taskManagerId());
        }
        if (replicas.count() > 1
                && (taskManager.features() & Frames.FEATURE_COPIES) == 0
                && !warned.getAndSet(true)) {
            LOG.warn(
                    "{} is {}, and the TaskManager {} makes no copies: map outputs written there"
                            + " have none. Upgrade it",
                    SluiceSettings.REPLICAS,
                    replicas.count(),
                    taskManager.taskManagerId());
        }
    }

    @Override
    public void replaced(String taskManagerId) {
        synchronized (replaced) {
            replaced.add(taskManagerId);
            if (replaced.size() > MAX_REPLACED) {
                replaced.remove(replaced.iterator().next());
            }
        }
        vacate(Set.of(taskManagerId));
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
     * Unregisters the map outputs of TaskManagers that do not return, except those with copies
     * elsewhere. Spark then runs these map tasks again together, instead of failing once for each
     * TaskManager.
     */
    public void vacate(Set<String> taskManagerIds) {
        Set<String> all = new LinkedHashSet<>(taskManagerIds);
        synchronized (replaced) {
            all.addAll(replaced);
        }
        tracker.outputsOf(all)
                .forEach(
                        (taskManagerId, outputs) ->
                                outputs.forEach(
                                        (shuffleId, attempts) ->
                                                vacate(taskManagerId, shuffleId, attempts)));
    }

    private void vacate(String taskManagerId, int shuffleId, List<Long> attempts) {
        relocate(shuffleId, attempts);
        List<Long> nowhere =
                attempts.stream()
                        .filter(
                                attempt ->
                                        tracker.taskManagerOf(shuffleId, attempt)
                                                .filter(taskManagerId::equals)
                                                .isPresent())
                        .toList();
        int forgotten = nowhere.isEmpty() ? 0 : tracker.unregister(shuffleId, nowhere);
        LOG.warn(
                "TaskManager {}, which had {} map outputs of shuffle {}, does not return: {} of"
                        + " them run again",
                taskManagerId,
                attempts.size(),
                shuffleId,
                forgotten);
    }

    @Override
    public void held(String taskManagerId, Message.OutputsHeld outputs) {
        int shuffleId = (int) outputs.shuffleId();
        places.add(shuffleId, outputs.mapAttemptIds(), taskManagerId);
        if (!gone.isEmpty()) {
            relocate(
                    shuffleId,
                    outputs.mapAttemptIds().stream()
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
        PlaceDirectory.Place to = links.connected(outputs.taskManagerId());
        if (to == null) {
            to = new PlaceDirectory.Place(outputs.taskManagerId(), outputs.host(), outputs.port());
            named.put(to.taskManagerId(), to);
            links.add(to);
        }
        places.add(shuffleId, outputs.mapAttemptIds(), to.taskManagerId());
        places.remove(shuffleId, outputs.mapAttemptIds(), taskManagerId);
        int updated = 0;
        for (long attempt : outputs.mapAttemptIds()) {
            String now = tracker.taskManagerOf(shuffleId, attempt).orElse(null);
            if (now == null) {
                addDue(shuffleId, attempt, to);
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

    private void addDue(int shuffleId, long attempt, PlaceDirectory.Place place) {
        if (tracker.mapTasks(shuffleId) < 0) {
            return;
        }
        synchronized (due) {
            Map<Long, PlaceDirectory.Place> ofShuffle =
                    due.computeIfAbsent(shuffleId, id -> new HashMap<>());
            if (ofShuffle.size() < MAX_DUE) {
                ofShuffle.put(attempt, place);
            }
        }
    }

    @Override
    public void lost(String taskManagerId, Message.OutputsLost outputs) {
        int shuffleId = (int) outputs.shuffleId();
        places.remove(shuffleId, outputs.mapAttemptIds(), taskManagerId);
        Set<String> avoided = Set.of(taskManagerId);
        List<Long> nowhere = new ArrayList<>();
        int updated = 0;
        for (long attempt : outputs.mapAttemptIds()) {
            if (tracker.taskManagerOf(shuffleId, attempt).filter(avoided::contains).isEmpty()) {
                continue;
            }
            PlaceDirectory.Place other = place(shuffleId, attempt, avoided);
            if (other == null) {
                nowhere.add(attempt);
            } else {
                tracker.update(shuffleId, attempt, other);
                updated++;
            }
        }
        // Spark runs exactly these map tasks again.
        int forgotten = nowhere.isEmpty() ? 0 : tracker.unregister(shuffleId, nowhere);
        count(updated);
        if (forgotten + updated == 0) {
            LOG.debug("TaskManager {} has lost map outputs that nobody reads there", taskManagerId);
            return;
        }
        LOG.warn(
                "TaskManager {} has lost {} map outputs of shuffle {}: {} of them run again, {} are"
                        + " read at other TaskManagers",
                taskManagerId,
                outputs.mapAttemptIds().size(),
                shuffleId,
                forgotten,
                updated);
    }

    @Override
    public void gone(String taskManagerId) {
        gone.add(taskManagerId);
        leave(taskManagerId);
    }

    /**
     * Called before Spark forgets all that a TaskManager has, because a task could read some map
     * outputs neither there nor elsewhere: only these run again, and what is nowhere else.
     */
    public void leave(String taskManagerId, int shuffleId, Collection<Long> unreadable) {
        places.forget(shuffleId, unreadable);
        leave(taskManagerId);
    }

    /** Sends new tasks to other places of all that a TaskManager has, as far as there are some. */
    private void leave(String taskManagerId) {
        if (places.size() > 0) {
            tracker.outputsOf(taskManagerId).forEach(this::relocate);
        }
    }

    private void relocate(int shuffleId, List<Long> attempts) {
        Map<String, List<Long>> left = new HashMap<>();
        int updated = 0;
        for (long attempt : attempts) {
            String now = tracker.taskManagerOf(shuffleId, attempt).orElse(null);
            PlaceDirectory.Place other =
                    now == null ? null : place(shuffleId, attempt, Set.of(now));
            if (other != null) {
                tracker.update(shuffleId, attempt, other);
                left.computeIfAbsent(now, id -> new ArrayList<>()).add(attempt);
                updated++;
            }
        }
        // It may come back with its data.
        left.forEach((taskManagerId, ids) -> places.add(shuffleId, ids, taskManagerId));
        count(updated);
        if (!attempts.isEmpty()) {
            LOG.info(
                    "{} of {} map outputs of shuffle {} whose TaskManager is gone are read at"
                            + " others",
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

    // ---- the life of a shuffle

    /** Called when all map tasks of a shuffle have reported. */
    public void written(int shuffleId) {
        Map<Long, PlaceDirectory.Place> moved;
        synchronized (due) {
            moved = due.remove(shuffleId);
        }
        if (moved != null) {
            int updated = 0;
            for (Map.Entry<Long, PlaceDirectory.Place> output : moved.entrySet()) {
                long attempt = output.getKey();
                if (tracker.taskManagerOf(shuffleId, attempt).isPresent()) {
                    tracker.update(shuffleId, attempt, output.getValue());
                    updated++;
                }
            }
            count(updated);
        }
        for (String taskManagerId : places.size() > 0 ? gone : Set.<String>of()) {
            relocate(
                    shuffleId, tracker.outputsOf(taskManagerId).getOrDefault(shuffleId, List.of()));
        }
    }

    /** Called when a shuffle is released. */
    public void released(int shuffleId) {
        places.released(shuffleId);
        synchronized (due) {
            due.remove(shuffleId);
        }
    }

    /** Returns the number of map outputs with other places than the tracker's. */
    int size() {
        return places.size();
    }
}
