package io.sluice.spark.driver;

import io.sluice.client.connection.ClientOptions;
import io.sluice.client.connection.DriverClient;
import io.sluice.client.connection.OutputEvents;
import io.sluice.client.failover.TaskManagerAddress;
import io.sluice.client.wire.ClientException;
import io.sluice.client.wire.Endpoint;
import io.sluice.client.wire.Frames;
import io.sluice.client.wire.Message;
import java.io.IOException;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.locks.ReentrantLock;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The driver's connection to one TaskManager, which is replaced when it is lost. Thread safe.
 *
 * <p>At most one thread waits for the TaskManager at a time. What needs no answer is done at once
 * or, while another thread waits, by that thread after its exchange: a TaskManager that hangs would
 * otherwise keep a thread for each event.
 */
public final class DriverLink {
    private static final Logger LOG = LoggerFactory.getLogger(DriverLink.class);

    private final Endpoint endpoint;
    private final ClientOptions options;
    private final DriverListener listener;
    private final DriverLinks links;

    /** Held during an exchange; protects what has no other protection. */
    private final ReentrantLock lock = new ReentrantLock();

    /** What is to be done when no exchange is under way. */
    private final Queue<Runnable> due = new ConcurrentLinkedQueue<>();

    /** Whether {@link #announceOthers} is queued. */
    private final AtomicBoolean announcing = new AtomicBoolean();

    /** TaskManagers announced on this connection, by id. */
    private final Map<String, Message.KnownTaskManager> announced = new HashMap<>();

    /** Whether the TaskManager has returned and its map outputs are not verified yet. */
    private boolean returned;

    private DriverClient client;

    /** The last reason logged for a refused TaskManager; empty if it is not refused. */
    private String refusal = "";

    private volatile boolean connected;
    private volatile Message.HelloAck taskManager;
    private volatile String lastFailure = "";
    private volatile boolean closed;

    /** When the connection was lost or, before that, made for the first time. */
    private volatile long lostNanos;

    private volatile boolean refused;

    private final DueReleases dueReleases = new DueReleases();
    private final long addedNanos = System.nanoTime();

    /**
     * @param listener calls {@link #receive} when something arrives
     * @param links notified of the connection and of events of the TaskManager
     */
    DriverLink(
            Endpoint endpoint, ClientOptions options, DriverListener listener, DriverLinks links) {
        this.endpoint = endpoint;
        this.options = options;
        this.listener = listener;
        this.links = links;
    }

    public Endpoint endpoint() {
        return endpoint;
    }

    /** Returns whether the last exchange succeeded. */
    public boolean isConnected() {
        return connected;
    }

    /** Returns the TaskManager that answered last; null before the first connection. */
    public Message.HelloAck taskManager() {
        return taskManager;
    }

    /** Returns whether the given TaskManager answered last. */
    boolean isTo(String taskManagerId) {
        Message.HelloAck answered = taskManager;
        return answered != null && answered.taskManagerId().equals(taskManagerId);
    }

    /** Returns whether the TaskManager that answered last serves copies in a remote tier. */
    boolean hasRemoteTier() {
        Message.HelloAck answered = taskManager;
        return answered != null && (answered.features() & Frames.REMOTE_COPIES) != 0;
    }

    /** Returns the TaskManager that answered last; not before the first connection. */
    TaskManagerAddress address() {
        Message.HelloAck answered = taskManager;
        return new TaskManagerAddress(
                answered.taskManagerId(), answered.advertisedHost(), answered.dataPort());
    }

    /** Returns endpoint and reason of the last failure; empty before the first one. */
    public String lastFailure() {
        return lastFailure;
    }

    /** Connects, pings, and sends pending releases; returns whether the TaskManager answered. */
    public boolean ping() {
        return attempt(
                "ping",
                driver -> {
                    driver.ping();
                    releaseDue(driver);
                });
    }

    /** Pings, and verifies all map outputs that the TaskManager should have. */
    boolean verify() {
        return attempt(
                "check of map outputs",
                driver -> {
                    driver.ping();
                    check(driver);
                });
    }

    /** Makes the TaskManager report missing map outputs as lost. */
    private void check(DriverClient driver) throws IOException {
        Map<Integer, List<Long>> expected = links.events().expected(taskManager.taskManagerId());
        for (Map.Entry<Integer, List<Long>> ofShuffle : expected.entrySet()) {
            driver.check(ofShuffle.getKey(), ofShuffle.getValue());
        }
        returned = false;
    }

    /** Returns whether the host refused the last attempt to connect. */
    boolean isRefused() {
        return refused;
    }

    /** Returns whether nothing has answered for at least {@code millis}. */
    boolean isSilentFor(long millis) {
        boolean never = taskManager == null;
        long since = never ? addedNanos : lostNanos;
        // At least one attempt must have failed.
        return !connected
                && !(never && lastFailure.isEmpty())
                && System.nanoTime() - since >= TimeUnit.MILLISECONDS.toNanos(millis);
    }

    /** Returns whether the connection was lost at least {@code millis} ago and is still lost. */
    boolean isDisconnectedFor(long millis) {
        return !connected
                && taskManager != null
                && System.nanoTime() - lostNanos >= TimeUnit.MILLISECONDS.toNanos(millis);
    }

    /**
     * Receives events of the TaskManager, now or after the exchange that is under way.
     *
     * @param received called afterwards
     */
    void receive(Runnable received) {
        soon(
                () -> {
                    try {
                        if (client != null) {
                            client.receive();
                        }
                    } catch (IOException | RuntimeException e) {
                        failed("listening", e);
                    }
                    received.run();
                });
    }

    /**
     * Announces the other TaskManagers of the application that this one does not know, now or after
     * the exchange that is under way.
     */
    void announceOthers() {
        if (announcing.getAndSet(true)) {
            return;
        }
        soon(
                () -> {
                    announcing.set(false);
                    try {
                        if (client != null) {
                            announceOthers(client);
                            client.flush();
                        }
                    } catch (IOException | RuntimeException e) {
                        failed("announcing TaskManagers", e);
                    }
                });
    }

    private void soon(Runnable work) {
        due.add(work);
        runDue();
    }

    private void runDue() {
        // Checked again after the lock is released: another thread may have failed to get it.
        while (!due.isEmpty() && lock.tryLock()) {
            try {
                Runnable work = due.poll();
                if (work != null) {
                    work.run();
                }
            } finally {
                lock.unlock();
            }
        }
    }

    private void announceOthers(DriverClient driver) throws IOException {
        for (Message.KnownTaskManager other : links.connectedTaskManagers()) {
            if (!isTo(other.taskManagerId())
                    && !other.equals(announced.put(other.taskManagerId(), other))) {
                driver.announce(other);
            }
        }
    }

    /**
     * Adds a pending release.
     *
     * @param end exclusive upper bound of map attempts: the id of the next task
     */
    void addRelease(int shuffleId, long end) {
        dueReleases.add(shuffleId, end, !connected);
    }

    DueReleases dueReleases() {
        return dueReleases;
    }

    /** Sends the pending releases; returns whether all of them succeeded. */
    boolean release() {
        return attempt("release of shuffles", this::releaseDue);
    }

    private void releaseDue(DriverClient driver) throws IOException {
        for (Map.Entry<Integer, DueReleases.Due> each : dueReleases.all().entrySet()) {
            int shuffleId = each.getKey();
            DueReleases.Due release = each.getValue();
            if (release.end() != Long.MAX_VALUE) {
                long freed = driver.releaseAttempts(shuffleId, release.end());
                LOG.debug("Shuffle {} released at {}: {} bytes", shuffleId, endpoint, freed);
            } else if (!release.late() || !links.events().isRegistered(shuffleId)) {
                long freed = driver.releaseShuffle(shuffleId);
                LOG.debug("Shuffle {} released at {}: {} bytes", shuffleId, endpoint, freed);
            } else {
                // Without a bound this would release newer map outputs, too.
                LOG.info(
                        "Shuffle {} is not released at {} before the end of the application,"
                                + " because it may be in use again",
                        shuffleId,
                        endpoint);
            }
            dueReleases.done(shuffleId, release);
        }
    }

    /** Releases all data of the application at the TaskManager. */
    boolean releaseApplication() {
        return attempt(
                "release of the application",
                driver -> {
                    long freed = driver.releaseApplication();
                    LOG.info("Application released at {}: {} bytes", endpoint, freed);
                });
    }

    private boolean attempt(String what, Exchange exchange) {
        lock.lock();
        try {
            return attemptTwice(what, exchange);
        } finally {
            lock.unlock();
            runDue();
        }
    }

    private boolean attemptTwice(String what, Exchange exchange) {
        // Twice, because the connection may have died since the last exchange.
        for (int attempt = 0; attempt < 2 && !closed; attempt++) {
            boolean fresh = client == null;
            try {
                if (client == null) {
                    client = admitted(new DriverClient(endpoint, options, new Events()));
                    onHello(client.taskManager());
                    announced.clear();
                    listener.listen(client, this);
                }
                announceOthers(client);
                exchange.run(client);
                if (returned) {
                    check(client);
                }
                if (!connected) {
                    connected = true;
                    links.connected(this);
                }
                return true;
            } catch (IOException | RuntimeException e) {
                // A scheduled ping that throws would be the last one.
                failed(what, e);
                if (fresh) {
                    break;
                }
            }
        }
        return false;
    }

    private DriverClient admitted(DriverClient made) throws ClientException {
        try {
            links.admit(this, made.taskManager());
        } catch (ClientException e) {
            if (!e.getMessage().equals(refusal)) { // log it once, not at each ping
                refusal = e.getMessage();
                LOG.error("TaskManager at {} is not used: {}", endpoint, refusal);
            }
            made.refuse(e);
            throw e;
        }
        refusal = "";
        return made;
    }

    private void onHello(Message.HelloAck now) {
        Message.HelloAck before = taskManager;
        if (before == null) {
            lostNanos = System.nanoTime();
        }
        refused = false;
        taskManager = now;
        returned = before != null || links.hasLost(now.taskManagerId());
        if (options.remoteCopies() && !hasRemoteTier()) {
            LOG.warn(
                    "TaskManager {} at {} has no remote tier: its map outputs get no copies there."
                            + " Set [storage] remote, or spark.sluice.replicas.remote=false",
                    now.taskManagerId(),
                    endpoint);
        }
        if (before != null && !isTo(before.taskManagerId())) {
            LOG.warn(
                    "Another TaskManager answers at {}: {} instead of {}",
                    endpoint,
                    now.taskManagerId(),
                    before.taskManagerId());
            links.replaced(this, before.taskManagerId());
        }
    }

    private void failed(String what, Exception e) {
        if (closed) {
            LOG.debug("{} ended because the link to {} is closed", what, endpoint, e);
            return;
        }
        String why = e instanceof IOException ? e.getMessage() : e.toString();
        if (connected) {
            LOG.warn("TaskManager at {}: {} failed: {}", endpoint, what, why);
            lostNanos = System.nanoTime();
            connected = false;
            links.disconnected(this, taskManager.taskManagerId());
        }
        dueReleases.allAreLate();
        refused = e instanceof ClientException.ConnectFailed failed && failed.isRefused();
        lastFailure =
                e instanceof ClientException.ConnectFailed connectFailed
                        ? connectFailed.summary()
                        : endpoint + ": " + why;
        disconnect();
        if (e instanceof ClientException.Interrupted) {
            LOG.debug("Interrupted while talking to {}", endpoint, e);
        }
    }

    /** Called before {@link #close}: interrupts of threads are no longer failures. */
    void closing() {
        closed = true;
    }

    void close() {
        lock.lock();
        try {
            closed = true;
            connected = false;
            disconnect();
        } finally {
            lock.unlock();
            runDue();
        }
    }

    private void disconnect() {
        if (client != null) {
            client.close();
            client = null;
            listener.closed();
            links.ended(this);
        }
    }

    /** Forwards events with the id of the TaskManager. */
    private final class Events implements OutputEvents {
        @Override
        public void lost(Message.OutputsLost outputs) {
            links.events().lost(taskManager.taskManagerId(), outputs);
        }

        @Override
        public void held(Message.OutputsHeld outputs) {
            links.events().held(taskManager.taskManagerId(), outputs);
        }

        @Override
        public void remote(Message.OutputsRemote outputs) {
            links.events().remote(outputs);
        }

        @Override
        public void moved(Message.OutputsMoved outputs) {
            links.events().moved(taskManager.taskManagerId(), outputs);
        }

        @Override
        public void member(Message.MemberReport report) {
            links.reported(report, isTo(report.taskManagerId()));
        }
    }

    @FunctionalInterface
    private interface Exchange {
        void run(DriverClient client) throws IOException;
    }
}
