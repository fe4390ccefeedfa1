package io.sluice.spark.driver;

import io.sluice.client.connection.ClientOptions;
import io.sluice.client.failover.PlaceDirectory;
import io.sluice.client.wire.ClientException;
import io.sluice.client.wire.Endpoint;
import io.sluice.client.wire.ErrorCode;
import io.sluice.client.wire.Message;
import io.sluice.spark.outputs.OutputRegistry;
import io.sluice.spark.outputs.TaskManagerEvents;
import java.util.Collection;
import java.util.Comparator;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.stream.Collectors;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** The driver's links to TaskManagers, one for each endpoint, and their pings. Thread safe. */
public final class DriverLinks implements OutputRegistry.Links {
    private static final Logger LOG = LoggerFactory.getLogger(DriverLinks.class);

    private static final long FIRST_PAUSE_MILLIS = 200;
    private static final long LONGEST_PAUSE_MILLIS = 1_000;

    /** When outputs are lost, tasks fail together; one check is enough for all of them. */
    static final long SHARED_CHECK_MILLIS = 500;

    private final ScheduledExecutorService threads;
    private final long pingIntervalMillis;
    private final DriverListener listener;
    private final long lostAfterMillis;
    private final long sharedCheckNanos;
    private final Map<String, DriverLink> links = new ConcurrentHashMap<>();
    private ClientOptions options;
    private volatile TaskManagerEvents events;

    /** Protects the three fields below. */
    private final Object checking = new Object();

    private boolean checked;
    private long checkedNanos;

    /** The latest check of each TaskManager, which may still wait for its answer. */
    private final Map<DriverLink, Future<Boolean>> questions = new HashMap<>();

    /** The TaskManagers behind the open connections; guarded by itself. */
    private final Map<DriverLink, Message.HelloAck> instances = new HashMap<>();

    /** Endpoints that came before the options, without which no link can greet. */
    private final Set<Endpoint> early = new LinkedHashSet<>();

    /**
     * @param threads ping until they are shut down
     * @param lostAfterMillis how long a TaskManager may be away before it is told to be gone
     * @param sharedCheckMillis how long the result of a check counts for later callers, too
     */
    public DriverLinks(
            ScheduledExecutorService threads,
            long pingIntervalMillis,
            long lostAfterMillis,
            long sharedCheckMillis) {
        this.threads = threads;
        this.pingIntervalMillis = pingIntervalMillis;
        this.lostAfterMillis = lostAfterMillis;
        this.sharedCheckNanos = TimeUnit.MILLISECONDS.toNanos(sharedCheckMillis);
        this.listener = new DriverListener(threads);
    }

    /**
     * Begins with the links; returns false if they have begun before.
     *
     * @param withEvents called by the threads
     */
    public synchronized boolean start(ClientOptions withOptions, TaskManagerEvents withEvents) {
        if (options != null) {
            return false;
        }
        options = withOptions;
        events = withEvents;
        early.forEach(this::add);
        early.clear();
        return true;
    }

    /** Adds a link, or remembers its endpoint until the links begin. */
    public synchronized void add(Endpoint endpoint) {
        if (options == null) {
            early.add(endpoint);
        } else if (!contains(endpoint)) {
            DriverLink link = new DriverLink(endpoint, options, listener, this);
            links.put(endpoint.toString(), link);
            // It runs until the threads are shut down.
            ScheduledFuture<?> unused =
                    threads.scheduleWithFixedDelay(
                            link::ping, 0, pingIntervalMillis, TimeUnit.MILLISECONDS);
        }
    }

    TaskManagerEvents events() {
        return events;
    }

    @Override
    public void add(PlaceDirectory.Place place) {
        add(Endpoint.tcp(place.host(), place.port()));
    }

    @Override
    public PlaceDirectory.Place connected(String taskManagerId) {
        return links.values().stream()
                .filter(link -> link.isConnected() && link.isTo(taskManagerId))
                .findFirst()
                .map(DriverLink::place)
                .orElse(null);
    }

    @Override
    public boolean isKnown(String taskManagerId) {
        return links.values().stream().anyMatch(link -> link.isTo(taskManagerId));
    }

    /** Returns the TaskManagers that can have copies and to which there is a connection now. */
    List<Message.KnownTaskManager> withCopies() {
        return links.values().stream()
                .filter(link -> link.isConnected() && link.hasCopies())
                .map(DriverLink::place)
                .map(p -> new Message.KnownTaskManager(p.taskManagerId(), p.host(), p.port()))
                .distinct()
                .toList();
    }

    /**
     * Called by a link when its connection is made, before it is used. Two TaskManagers with one id
     * have copies of the same directories, and one does not have what the other commits. A
     * restarted TaskManager has the same address, or connects after the old connection has ended.
     *
     * @throws ClientException if another instance of the TaskManager is connected
     */
    void admit(DriverLink link, Message.HelloAck now) throws ClientException {
        synchronized (instances) {
            for (Map.Entry<DriverLink, Message.HelloAck> each : instances.entrySet()) {
                Message.HelloAck other = each.getValue();
                if (each.getKey() != link && isClone(now, other)) {
                    throw new ClientException.Refused(
                            ErrorCode.TASKMANAGER_MISMATCH,
                            String.format(
                                    "two TaskManagers run with the id %s, at %s:%d and at %s:%d,"
                                            + " and only the first is used: the directories of one"
                                            + " are a copy of the other's. Stop one of them, and"
                                            + " remove the file taskmanager-id from all its"
                                            + " directories before it starts again",
                                    now.taskManagerId(),
                                    other.advertisedHost(),
                                    other.dataPort(),
                                    now.advertisedHost(),
                                    now.dataPort()));
                }
            }
            instances.put(link, now);
        }
    }

    private static boolean isClone(Message.HelloAck now, Message.HelloAck other) {
        boolean areNamed = !now.instanceId().isEmpty() && !other.instanceId().isEmpty();
        return areNamed
                && now.taskManagerId().equals(other.taskManagerId())
                && !now.instanceId().equals(other.instanceId())
                && !isAt(other, now.advertisedHost(), now.dataPort());
    }

    /** Returns whether a TaskManager advertises the given address. */
    static boolean isAt(Message.HelloAck taskManager, String host, int port) {
        return taskManager.advertisedHost().equals(host) && taskManager.dataPort() == port;
    }

    /** Called by a link when its connection has ended. */
    void left(DriverLink link) {
        synchronized (instances) {
            instances.remove(link);
        }
    }

    /** Called by a link that has got its connection. */
    void connected(DriverLink link) {
        events.connected(link.taskManager());
        if (link.hasCopies()) {
            for (DriverLink other : links.values()) {
                if (other != link && other.isConnected() && other.hasCopies()) {
                    submit(() -> threads.execute(other::nameOthers));
                }
            }
        }
    }

    /** Called by a link when another TaskManager than before answers at its address. */
    void replaced(String taskManagerId) {
        if (connected(taskManagerId) == null) {
            events.replaced(taskManagerId);
        }
    }

    /**
     * Asks all TaskManagers at once which map outputs they still have, within a deadline. Missing
     * ones of those that answer have been reported as lost when it returns. Called before Spark
     * hears of one loss: there may be others, and Spark aborts the job after a few fetch failures.
     * Calls shortly after a check share its result.
     *
     * @return the TaskManagers that have been away for {@code awayMillis}
     */
    public Set<String> look(long deadlineMillis, long awayMillis) {
        long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(deadlineMillis);
        synchronized (checking) {
            if (!checked || System.nanoTime() - checkedNanos > sharedCheckNanos) {
                // Connected TaskManagers first, because the others may take all of the time.
                links.values().stream()
                        .sorted(Comparator.comparing(link -> !link.isConnected()))
                        .forEach(this::ask);
                questions.values().forEach(answer -> await(answer, deadline));
                checked = true;
                checkedNanos = System.nanoTime();
            }
        }
        return links.values().stream()
                .filter(link -> link.isAwayFor(awayMillis))
                .map(link -> link.taskManager().taskManagerId())
                .filter(id -> connected(id) == null)
                .collect(Collectors.toSet());
    }

    /**
     * Asks a TaskManager what it still has, unless it has not answered the last time: one that
     * hangs must not take a thread of the others with each look.
     */
    private void ask(DriverLink link) {
        Future<Boolean> before = questions.get(link);
        if (before == null || before.isDone()) {
            submit(() -> questions.put(link, threads.submit(link::verify)));
        }
    }

    private static void await(Future<Boolean> answer, long deadlineNanos) {
        try {
            Boolean unused =
                    answer.get(
                            Math.max(0, deadlineNanos - System.nanoTime()), TimeUnit.NANOSECONDS);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        } catch (ExecutionException | TimeoutException e) {
            LOG.debug("a TaskManager has not answered the check of its map outputs", e);
        }
    }

    /** Called by a link that has lost its connection: the TaskManager may be back soon. */
    void disconnected(DriverLink link) {
        tryAgain(link, System.nanoTime(), FIRST_PAUSE_MILLIS);
    }

    private void tryAgain(DriverLink link, long lostNanos, long pauseMillis) {
        long awayMillis = TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - lostNanos);
        long pause = Math.max(0, Math.min(pauseMillis, lostAfterMillis - awayMillis));
        submit(
                () -> {
                    // No caller waits for it.
                    ScheduledFuture<?> unused =
                            threads.schedule(
                                    () -> check(link, lostNanos, pauseMillis),
                                    pause,
                                    TimeUnit.MILLISECONDS);
                });
    }

    private void check(DriverLink link, long lostNanos, long pauseMillis) {
        String taskManagerId = link.taskManager().taskManagerId();
        if (link.ping() || connected(taskManagerId) != null) {
            return;
        }
        if (System.nanoTime() - lostNanos < TimeUnit.MILLISECONDS.toNanos(lostAfterMillis)) {
            tryAgain(link, lostNanos, Math.min(2 * pauseMillis, LONGEST_PAUSE_MILLIS));
        } else {
            events.gone(taskManagerId);
        }
    }

    private static void submit(Runnable toThreads) {
        try {
            toThreads.run();
        } catch (RejectedExecutionException e) {
            LOG.debug("the links have ended", e);
        }
    }

    /** Announces {@link #close}, before the threads that use the links are interrupted. */
    void closing() {
        values().forEach(DriverLink::closing);
    }

    /** Closes the links. */
    public void close() {
        values().forEach(DriverLink::close);
        listener.close();
    }

    boolean contains(Endpoint endpoint) {
        return links.containsKey(endpoint.toString());
    }

    /** Returns the links, in no particular order; links may come meanwhile. */
    public Collection<DriverLink> values() {
        return links.values();
    }
}
