// Longer than 450 lines, because adding, dropping and verifying links share their state.
package io.sluice.spark.driver;

import io.sluice.client.connection.ClientOptions;
import io.sluice.client.failover.Backoff;
import io.sluice.client.failover.TaskManagerAddress;
import io.sluice.client.wire.ClientException;
import io.sluice.client.wire.Endpoint;
import io.sluice.client.wire.ErrorCode;
import io.sluice.client.wire.Message;
import io.sluice.spark.outputs.OutputRegistry;
import io.sluice.spark.outputs.TaskManagerEvents;
import java.util.Collection;
import java.util.Comparator;
import java.util.HashMap;
import java.util.LinkedHashMap;
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
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Predicate;
import java.util.stream.Collectors;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** The driver's links to TaskManagers, one for each endpoint, and their pings. Thread safe. */
public final class DriverLinks implements OutputRegistry.Links {
    /**
     * How long readers wait for a disconnected TaskManager.
     *
     * @param refusedMillis if its host refuses connections
     */
    public record ReturnTimeouts(long millis, long refusedMillis) {
        /**
         * @param part the divisor of the time without a refusal: a TaskManager that starts is
         *     refused, too
         */
        long of(boolean isRefused, int part) {
            return isRefused ? Math.min(millis, refusedMillis) : millis / part;
        }
    }

    private static final Logger LOG = LoggerFactory.getLogger(DriverLinks.class);

    /** Number of threads besides those that dial. */
    static final int FIXED_THREADS = 4;

    private static final int MAX_THREADS = 32;
    private static final int LINKS_OF_A_THREAD = 8;

    /** Maximum number of TaskManagers without a link whose releases are kept. */
    private static final int MAX_ORPHANS = 256;

    private static final long FIRST_PAUSE_MILLIS = 200;
    private static final long MAX_PAUSE_MILLIS = 1_000;

    /** Tasks fail together when outputs are lost, and one check serves all of them. */
    static final long SHARED_CHECK_MILLIS = 500;

    private final ScheduledExecutorService threads;
    private final long pingIntervalMillis;
    private final DriverListener listener;
    private final long lostAfterMillis;
    private final ReturnTimeouts timeouts;
    private final long sharedCheckNanos;
    private final Map<String, DriverLink> links = new ConcurrentHashMap<>();
    private ClientOptions options;
    private volatile TaskManagerEvents events;

    /** Protects the three fields below. */
    private final Object checking = new Object();

    private boolean checked;
    private long checkedNanos;

    /** The latest check of each TaskManager, which may be unanswered. */
    private final Map<DriverLink, Future<Boolean>> checks = new HashMap<>();

    /** The TaskManagers behind the open connections; guarded by itself. */
    private final Map<DriverLink, Message.HelloAck> instances = new HashMap<>();

    /** Number of links that are not connected and dial. */
    private final AtomicInteger dialing = new AtomicInteger();

    /** The links that soon try again whether they may dial, each once. */
    private final Set<DriverLink> waiting = ConcurrentHashMap.newKeySet();

    private volatile Membership membership = Membership.FIXED;
    private final Map<DriverLink, ScheduledFuture<?>> pings = new ConcurrentHashMap<>();

    /** Pending releases of TaskManagers whose links were dropped, by id; guarded by itself. */
    private final Map<String, DueReleases> orphans = new LinkedHashMap<>();

    /** When the last connection to a TaskManager was lost, by id. */
    private final Map<String, Long> lostAt = new ConcurrentHashMap<>();

    /** Endpoints added before {@link #start}. */
    private final Set<Endpoint> early = new LinkedHashSet<>();

    /**
     * @param threads ping until they are shut down
     * @param lostAfterMillis how long a TaskManager may be disconnected before it is gone
     * @param timeouts how long readers wait for a disconnected TaskManager
     * @param sharedCheckMillis how long callers share the result of a check
     */
    public DriverLinks(
            ScheduledExecutorService threads,
            long pingIntervalMillis,
            long lostAfterMillis,
            ReturnTimeouts timeouts,
            long sharedCheckMillis) {
        this.threads = threads;
        this.pingIntervalMillis = pingIntervalMillis;
        this.lostAfterMillis = lostAfterMillis;
        this.timeouts = timeouts;
        this.sharedCheckNanos = TimeUnit.MILLISECONDS.toNanos(sharedCheckMillis);
        this.listener = new DriverListener(threads);
    }

    /**
     * Starts the links; returns false if they are started already.
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

    /** Adds a link, which connects after {@link #start}. */
    public synchronized void add(Endpoint endpoint) {
        if (options == null) {
            early.add(endpoint);
        } else if (!contains(endpoint)) {
            DriverLink link = new DriverLink(endpoint, options, listener, this);
            links.put(endpoint.toString(), link);
            scale();
            // It runs until the link is dropped or the threads are shut down.
            submit(
                    () ->
                            pings.put(
                                    link,
                                    threads.scheduleWithFixedDelay(
                                            () -> scheduledPing(link),
                                            0,
                                            pingIntervalMillis,
                                            TimeUnit.MILLISECONDS)));
        }
    }

    /**
     * Pings, or dials if that leaves a thread for connected TaskManagers: an address that does not
     * answer occupies a thread until the connect timeout.
     */
    private void scheduledPing(DriverLink link) {
        if (link.isConnected() || membership.isConfigured(link.endpoint())) {
            link.ping();
            return;
        }
        boolean mayDial = dialing.incrementAndGet() <= maxDials();
        try {
            if (mayDial) {
                link.ping();
            }
        } finally {
            dialing.decrementAndGet();
        }
        if (!mayDial && links.get(link.endpoint().toString()) == link && waiting.add(link)) {
            submit(
                    () -> {
                        ScheduledFuture<?> unused =
                                threads.schedule(
                                        () -> pingAfterWait(link),
                                        FIRST_PAUSE_MILLIS,
                                        TimeUnit.MILLISECONDS);
                    });
        }
    }

    private void pingAfterWait(DriverLink link) {
        waiting.remove(link);
        scheduledPing(link);
    }

    /** Returns how many addresses may be dialed at a time. */
    private int maxDials() {
        return Math.max(2, Math.min(MAX_THREADS, links.size() / LINKS_OF_A_THREAD));
    }

    /** Adds threads for many links. */
    private void scale() {
        if (threads instanceof ScheduledThreadPoolExecutor pool) {
            int wanted = maxDials() + FIXED_THREADS;
            if (maxDials() > 2 && wanted > pool.getCorePoolSize()) {
                pool.setCorePoolSize(wanted);
            }
        }
    }

    /** Sets the decisions about links. Called before {@link #start}. */
    void setMembership(Membership ofApplication) {
        membership = ofApplication;
    }

    /**
     * Drops links at whose endpoints no TaskManager has answered for as long as readers wait, if no
     * map output is expected there.
     *
     * @param isWanted whether an endpoint is still dialed
     */
    void dropSilent(Predicate<Endpoint> isWanted) {
        long millis = Math.max(lostAfterMillis, timeouts.millis());
        for (DriverLink link : links.values()) {
            if (!link.isConnected()
                    && !membership.isConfigured(link.endpoint())
                    && !isWanted.test(link.endpoint())
                    && (hasMoved(link) || (link.isSilentFor(millis) && !isExpected(link)))) {
                drop(link, "no TaskManager has answered there for a while");
            }
        }
    }

    /** Returns whether the TaskManager of a lost link is connected at another address. */
    private boolean hasMoved(DriverLink link) {
        Message.HelloAck answered = link.taskManager();
        return answered != null && connected(answered.taskManagerId()) != null;
    }

    private boolean isExpected(DriverLink link) {
        Message.HelloAck answered = link.taskManager();
        return answered != null && !events.expected(answered.taskManagerId()).isEmpty();
    }

    /** Ends a link. Keeps its pending releases until its TaskManager is connected again. */
    private void drop(DriverLink link, String why) {
        if (!links.remove(link.endpoint().toString(), link)) {
            return;
        }
        LOG.info("The link to {} ends: {}", link.endpoint(), why);
        ScheduledFuture<?> ping = pings.remove(link);
        if (ping != null) {
            ping.cancel(false);
        }
        link.closing();
        keepReleases(link);
        // Closing waits for a running exchange.
        submit(() -> threads.execute(link::close));
        membership.changed(false);
    }

    private void keepReleases(DriverLink link) {
        Message.HelloAck answered = link.taskManager();
        if (answered == null) {
            return;
        }
        synchronized (orphans) {
            if (orphans.size() >= MAX_ORPHANS) {
                orphans.remove(orphans.keySet().iterator().next());
            }
            orphans.computeIfAbsent(answered.taskManagerId(), id -> new DueReleases())
                    .addLate(link.dueReleases());
        }
        links.values().stream()
                .filter(other -> other.isConnected() && other.isTo(answered.taskManagerId()))
                .findFirst()
                .ifPresent(other -> adoptReleases(other, answered.taskManagerId()));
    }

    /** Adds a pending release at each TaskManager; returns the connected links. */
    List<DriverLink> addRelease(int shuffleId, long end) {
        synchronized (orphans) {
            orphans.values().forEach(each -> each.add(shuffleId, end, true));
        }
        links.values().forEach(link -> link.addRelease(shuffleId, end));
        return links.values().stream().filter(DriverLink::isConnected).toList();
    }

    /** Returns whether the connection to a TaskManager was lost. */
    boolean hasLost(String taskManagerId) {
        return lostAt.containsKey(taskManagerId);
    }

    /** Called by a link with the report of a TaskManager. */
    void reported(Message.MemberReport report, boolean ofItself) {
        membership.reported(report, ofItself);
    }

    TaskManagerEvents events() {
        return events;
    }

    @Override
    public void add(TaskManagerAddress address) {
        add(Endpoint.tcp(address.host(), address.port()));
    }

    @Override
    public TaskManagerAddress connected(String taskManagerId) {
        return links.values().stream()
                .filter(link -> link.isConnected() && link.isTo(taskManagerId))
                .findFirst()
                .map(DriverLink::address)
                .orElse(null);
    }

    @Override
    public TaskManagerAddress withRemoteTier(Set<String> avoided) {
        return links.values().stream()
                .filter(link -> link.isConnected() && link.hasRemoteTier())
                .map(DriverLink::address)
                .filter(address -> !avoided.contains(address.taskManagerId()))
                .findFirst()
                .orElse(null);
    }

    @Override
    public boolean isKnown(String taskManagerId) {
        return lostAt.containsKey(taskManagerId)
                || links.values().stream().anyMatch(link -> link.isTo(taskManagerId));
    }

    @Override
    public boolean isAway(String taskManagerId) {
        return awayFor(1).contains(taskManagerId);
    }

    /**
     * Returns the TaskManagers all of whose links have been disconnected for a part of a reader's
     * timeout. One that has moved has an old link, too.
     */
    private Set<String> awayFor(int part) {
        Map<String, Boolean> away = new HashMap<>();
        for (DriverLink link : links.values()) {
            Message.HelloAck taskManager = link.taskManager();
            if (taskManager != null) {
                boolean isAway = link.isDisconnectedFor(timeouts.of(link.isRefused(), part));
                away.merge(taskManager.taskManagerId(), isAway, Boolean::logicalAnd);
            }
        }
        long now = System.nanoTime();
        long wait = TimeUnit.MILLISECONDS.toNanos(timeouts.of(false, part));
        lostAt.forEach((id, lost) -> away.putIfAbsent(id, now - lost >= wait));
        return away.entrySet().stream()
                .filter(Map.Entry::getValue)
                .map(Map.Entry::getKey)
                .collect(Collectors.toSet());
    }

    /** Returns the connected TaskManagers. */
    List<Message.KnownTaskManager> connectedTaskManagers() {
        return links.values().stream()
                .filter(DriverLink::isConnected)
                .map(DriverLink::address)
                .map(p -> new Message.KnownTaskManager(p.taskManagerId(), p.host(), p.port()))
                .distinct()
                .toList();
    }

    /**
     * Called by a link before it uses a new connection.
     *
     * @throws ClientException if a TaskManager with the same id is connected: one has a copy of the
     *     other's directories. A restarted TaskManager has the same address, or connects after the
     *     old connection has ended
     */
    void admit(DriverLink link, Message.HelloAck now) throws ClientException {
        String foreign = membership.whyForeign(link.endpoint(), now);
        if (foreign != null) {
            throw new ClientException.Refused(ErrorCode.TASKMANAGER_MISMATCH, foreign);
        }
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

    /** Called by a link after its connection has ended. */
    void ended(DriverLink link) {
        synchronized (instances) {
            instances.remove(link);
        }
    }

    /** Called by a link after it was connected. */
    void connected(DriverLink link) {
        String id = link.taskManager().taskManagerId();
        lostAt.remove(id);
        adoptReleases(link, id);
        events.connected(link.taskManager());
        endTwin(link, id);
        membership.changed(false);
        for (DriverLink other : links.values()) {
            if (other != link && other.isConnected()) {
                submit(() -> threads.execute(other::announceOthers));
            }
        }
    }

    private void adoptReleases(DriverLink link, String taskManagerId) {
        DueReleases due;
        synchronized (orphans) {
            due = orphans.remove(taskManagerId);
        }
        if (due != null && !due.isEmpty()) {
            link.dueReleases().addLate(due);
            submit(() -> threads.execute(link::release));
        }
    }

    /** Ends one of two links to one TaskManager, unless both are configured. */
    private void endTwin(DriverLink link, String taskManagerId) {
        for (DriverLink other : links.values()) {
            if (other != link && other.isConnected() && other.isTo(taskManagerId)) {
                DriverLink ended = membership.isConfigured(link.endpoint()) ? other : link;
                if (!membership.isConfigured(ended.endpoint())) {
                    membership.isAlias(ended.endpoint(), taskManagerId);
                    drop(ended, "its TaskManager is connected at another address");
                }
            }
        }
    }

    /** Called by a link when another TaskManager answers at its address. */
    void replaced(DriverLink link, String taskManagerId) {
        if (connected(taskManagerId) == null && membership.isOfOne(link.endpoint())) {
            events.replaced(taskManagerId);
        }
    }

    /**
     * Asks all TaskManagers which map outputs they have. When it returns, the missing outputs of
     * those that answered have been reported as lost. Called before Spark learns of a fetch
     * failure, because Spark aborts the job after a few of them. Calls shortly after a check share
     * its result.
     *
     * @return the TaskManagers that have been disconnected for half of a reader's timeout, or for
     *     all of it if their hosts refuse connections: they were probably lost, too
     */
    public Set<String> verifyAll(long deadlineMillis) {
        long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(deadlineMillis);
        synchronized (checking) {
            if (!checked || System.nanoTime() - checkedNanos > sharedCheckNanos) {
                checks.keySet().retainAll(links.values());
                // Connected TaskManagers first: the others may use up the time.
                links.values().stream()
                        .sorted(Comparator.comparing(link -> !link.isConnected()))
                        .forEach(this::startCheck);
                checks.values().forEach(answer -> await(answer, deadline));
                checked = true;
                checkedNanos = System.nanoTime();
            }
        }
        return awayFor(2);
    }

    /**
     * Starts a check, unless the last one is unanswered: one TaskManager must not use all threads.
     */
    private void startCheck(DriverLink link) {
        Future<Boolean> before = checks.get(link);
        if (before == null || before.isDone()) {
            submit(() -> checks.put(link, threads.submit(link::verify)));
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

    /** Called by a link after its connection was lost. */
    void disconnected(DriverLink link, String taskManagerId) {
        Lost lost = new Lost(link, taskManagerId, System.nanoTime());
        if (connected(taskManagerId) == null) {
            lostAt.put(taskManagerId, lost.nanos());
        }
        membership.changed(true);
        tryAgain(lost, new Backoff(FIRST_PAUSE_MILLIS, MAX_PAUSE_MILLIS));
    }

    /** A lost connection. */
    private record Lost(DriverLink link, String taskManagerId, long nanos) {}

    private void tryAgain(Lost lost, Backoff backoff) {
        long awayMillis = TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - lost.nanos());
        long pause = Math.max(0, Math.min(backoff.nextMillis(), lostAfterMillis - awayMillis));
        submit(
                () -> {
                    // No caller waits for it.
                    ScheduledFuture<?> unused =
                            threads.schedule(
                                    () -> check(lost, backoff), pause, TimeUnit.MILLISECONDS);
                });
    }

    private void check(Lost lost, Backoff backoff) {
        String taskManagerId = lost.taskManagerId();
        boolean isBack = lost.link().ping() && lost.link().isTo(taskManagerId);
        if (isBack || connected(taskManagerId) != null) {
            return;
        }
        if (System.nanoTime() - lost.nanos() < TimeUnit.MILLISECONDS.toNanos(lostAfterMillis)) {
            tryAgain(lost, backoff);
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

    /** Called before {@link #close} and before threads are interrupted. */
    void closing() {
        values().forEach(DriverLink::closing);
    }

    public void close() {
        values().forEach(DriverLink::close);
        listener.close();
    }

    boolean contains(Endpoint endpoint) {
        return links.containsKey(endpoint.toString());
    }

    /** Returns the links, in no particular order. */
    public Collection<DriverLink> values() {
        return links.values();
    }
}
