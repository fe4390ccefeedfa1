package io.sluice.spark.driver;

import io.sluice.client.connection.ClientOptions;
import io.sluice.client.connection.DriverClient;
import io.sluice.client.connection.OutputEvents;
import io.sluice.client.failover.PlaceDirectory;
import io.sluice.client.wire.ClientException;
import io.sluice.client.wire.Endpoint;
import io.sluice.client.wire.Frames;
import io.sluice.client.wire.Message;
import java.io.IOException;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Keeps the driver's connection to one TaskManager and replaces it when it is lost. Thread safe.
 */
public final class DriverLink {
    private static final Logger LOG = LoggerFactory.getLogger(DriverLink.class);

    /**
     * Pending releases to keep for one TaskManager; beyond that, the oldest data stay until the
     * application's end.
     */
    private static final int MAX_DUE_RELEASES = 100_000;

    private final Endpoint endpoint;
    private final ClientOptions options;
    private final DriverListener listener;
    private final DriverLinks links;

    /** TaskManagers that were named on this connection, by id. */
    private final Map<String, Message.KnownTaskManager> named = new HashMap<>();

    /** Whether the TaskManager has returned and its map outputs have not been checked yet. */
    private boolean returned;

    private DriverClient client;

    /** Why the TaskManager is refused, as it was logged; empty if it is not refused. */
    private String refusal = "";

    private volatile boolean connected;
    private volatile Message.HelloAck taskManager;
    private volatile String lastFailure = "";
    private volatile boolean closed;

    /** When the connection was lost, or when the TaskManager answered Hello for the first time. */
    private volatile long lostNanos;

    /** Releases that are still to be sent, by shuffle; guarded by itself. */
    private final Map<Integer, DueRelease> dueReleases = new LinkedHashMap<>();

    /**
     * A release of the map outputs of attempts below {@code end}.
     *
     * @param late whether the shuffle may have been written again since the release was decided
     */
    private record DueRelease(long end, boolean late) {}

    /**
     * @param listener tells this link when the TaskManager says something
     * @param links told of the connection and of what the TaskManager says
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

    /** Returns whether it is the given TaskManager that answered last. */
    boolean isTo(String taskManagerId) {
        Message.HelloAck answered = taskManager;
        return answered != null && answered.taskManagerId().equals(taskManagerId);
    }

    /** Returns whether the TaskManager that answered last makes and takes copies. */
    boolean hasCopies() {
        Message.HelloAck answered = taskManager;
        return answered != null && (answered.features() & Frames.FEATURE_COPIES) != 0;
    }

    /** Returns the place of the TaskManager that answered last; not before the first connection. */
    PlaceDirectory.Place place() {
        Message.HelloAck answered = taskManager;
        return new PlaceDirectory.Place(
                answered.taskManagerId(), answered.advertisedHost(), answered.dataPort());
    }

    /** Returns endpoint and reason of the last failure; empty before the first one. */
    public String lastFailure() {
        return lastFailure;
    }

    /**
     * Connects if necessary, pings, and sends pending releases; returns whether the TaskManager
     * answered.
     */
    public synchronized boolean ping() {
        return attempt(
                "sign of life",
                driver -> {
                    driver.ping();
                    releaseDue(driver);
                });
    }

    /** Pings, and checks all map outputs that the TaskManager should have. */
    synchronized boolean verify() {
        return attempt(
                "check of map outputs",
                driver -> {
                    driver.ping();
                    check(driver);
                });
    }

    /** Makes the TaskManager report missing map outputs as lost. */
    private void check(DriverClient driver) throws IOException {
        if (driver.hasChecks()) {
            Map<Integer, List<Long>> expected =
                    links.events().expected(taskManager.taskManagerId());
            for (Map.Entry<Integer, List<Long>> ofShuffle : expected.entrySet()) {
                driver.check(ofShuffle.getKey(), ofShuffle.getValue());
            }
        }
        returned = false;
    }

    /** Returns whether the connection was lost at least {@code millis} ago and is still lost. */
    boolean isAwayFor(long millis) {
        return !connected
                && taskManager != null
                && System.nanoTime() - lostNanos >= TimeUnit.MILLISECONDS.toNanos(millis);
    }

    /** Takes what the TaskManager has said of its own accord. */
    synchronized void receive() {
        if (client == null) {
            return;
        }
        try {
            client.receive();
        } catch (IOException | RuntimeException e) {
            failed("listening", e);
        }
    }

    /** Names the other TaskManagers of the application, as far as this one does not know them. */
    synchronized void nameOthers() {
        if (client == null) {
            return;
        }
        try {
            nameOthers(client);
            client.flush();
        } catch (IOException | RuntimeException e) {
            failed("naming TaskManagers", e);
        }
    }

    private void nameOthers(DriverClient driver) throws IOException {
        if (!driver.hasCopies()) {
            return;
        }
        for (Message.KnownTaskManager other : links.withCopies()) {
            if (!isTo(other.taskManagerId())
                    && !other.equals(named.put(other.taskManagerId(), other))) {
                driver.tell(other);
            }
        }
    }

    /**
     * Adds a release, to be sent now or, if the TaskManager is away, when it is back.
     *
     * @param end exclusive upper bound of map attempts: the next one that will begin
     */
    void addRelease(int shuffleId, long end) {
        synchronized (dueReleases) {
            if (dueReleases.size() >= MAX_DUE_RELEASES) {
                dueReleases.remove(dueReleases.keySet().iterator().next());
            }
            dueReleases.put(shuffleId, new DueRelease(end, !connected));
        }
    }

    /** Sends the pending releases; returns whether all of them succeeded. */
    synchronized boolean release() {
        return attempt("release of shuffles", this::releaseDue);
    }

    private void releaseDue(DriverClient driver) throws IOException {
        Map<Integer, DueRelease> due;
        synchronized (dueReleases) {
            due = new LinkedHashMap<>(dueReleases);
        }
        for (Map.Entry<Integer, DueRelease> each : due.entrySet()) {
            int shuffleId = each.getKey();
            DueRelease release = each.getValue();
            if (driver.hasBoundedReleases() && release.end() != Long.MAX_VALUE) {
                long freed = driver.releaseAttempts(shuffleId, release.end());
                LOG.debug("Shuffle {} released at {}: {} bytes", shuffleId, endpoint, freed);
            } else if (!release.late() || !links.events().isRegistered(shuffleId)) {
                long freed = driver.releaseShuffle(shuffleId);
                LOG.debug("Shuffle {} released at {}: {} bytes", shuffleId, endpoint, freed);
            } else {
                // An older TaskManager would also release newer map outputs.
                LOG.info(
                        "Shuffle {} is not released at {}, because it may be in use again: its old"
                                + " data stay until the application's end",
                        shuffleId,
                        endpoint);
            }
            synchronized (dueReleases) {
                dueReleases.remove(shuffleId, release);
            }
        }
    }

    /** Releases all data of the application there. */
    synchronized boolean releaseApplication() {
        return attempt(
                "release of the application",
                driver -> {
                    long freed = driver.releaseApplication();
                    LOG.info("Application released at {}: {} bytes", endpoint, freed);
                });
    }

    private boolean attempt(String what, Exchange exchange) {
        // Twice, because the connection may have died since the last exchange.
        for (int attempt = 0; attempt < 2 && !closed; attempt++) {
            boolean fresh = client == null;
            try {
                if (client == null) {
                    client = admitted(new DriverClient(endpoint, options, new Heard()));
                    greeted(client.taskManager());
                    named.clear();
                    listener.listen(client, this);
                }
                nameOthers(client);
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
                // No exception may leave: a scheduled ping that throws would be the last one.
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

    private void greeted(Message.HelloAck now) {
        Message.HelloAck before = taskManager;
        if (before == null) {
            lostNanos = System.nanoTime();
        }
        taskManager = now;
        returned = before != null;
        if (before != null && !isTo(before.taskManagerId())) {
            LOG.warn(
                    "Another TaskManager answers at {}: {} instead of {}",
                    endpoint,
                    now.taskManagerId(),
                    before.taskManagerId());
            links.replaced(before.taskManagerId());
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
            links.disconnected(this);
        }
        synchronized (dueReleases) {
            dueReleases.replaceAll((id, due) -> new DueRelease(due.end(), true));
        }
        lastFailure =
                e instanceof ClientException.ConnectFailed connectFailed
                        ? connectFailed.summary()
                        : endpoint + ": " + why;
        disconnect();
        if (e instanceof ClientException.Interrupted) {
            LOG.debug("Interrupted while talking to {}", endpoint, e);
        }
    }

    /** Announces {@link #close}: later interrupts of a thread do not count as failures. */
    void closing() {
        closed = true;
    }

    synchronized void close() {
        closed = true;
        connected = false;
        disconnect();
    }

    private void disconnect() {
        if (client != null) {
            client.close();
            client = null;
            listener.closed();
            links.left(this);
        }
    }

    /** Passes on what the TaskManager says, with its id. */
    private final class Heard implements OutputEvents {
        @Override
        public void lost(Message.OutputsLost outputs) {
            links.events().lost(taskManager.taskManagerId(), outputs);
        }

        @Override
        public void held(Message.OutputsHeld outputs) {
            links.events().held(taskManager.taskManagerId(), outputs);
        }

        @Override
        public void moved(Message.OutputsMoved outputs) {
            links.events().moved(taskManager.taskManagerId(), outputs);
        }
    }

    @FunctionalInterface
    private interface Exchange {
        void run(DriverClient client) throws IOException;
    }
}
