package io.sluice.spark;

import io.sluice.client.ClientException;
import io.sluice.client.ClientOptions;
import io.sluice.client.DriverClient;
import io.sluice.client.Endpoint;
import io.sluice.client.Message;
import java.io.IOException;
import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;
import java.util.function.Consumer;
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
    private final Consumer<Message.OutputsLost> lost;
    private DriverClient client;
    private volatile boolean connected;
    private volatile Message.HelloAck taskManager;
    private volatile String lastFailure = "";
    private boolean closed;

    /** Shuffles that are still to be released there; guarded by itself. */
    private final Set<Integer> dueReleases = new LinkedHashSet<>();

    /**
     * @param listener tells this link when the TaskManager says something
     * @param lost called with the map outputs that the TaskManager has lost
     */
    DriverLink(
            Endpoint endpoint,
            ClientOptions options,
            DriverListener listener,
            Consumer<Message.OutputsLost> lost) {
        this.endpoint = endpoint;
        this.options = options;
        this.listener = listener;
        this.lost = lost;
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

    /** Returns endpoint and reason of the last failure; empty before the first one. */
    public String lastFailure() {
        return lastFailure;
    }

    /**
     * Connects if necessary, pings, and sends pending releases; returns whether the TaskManager
     * answered.
     */
    synchronized boolean ping() {
        return attempt(
                "sign of life",
                driver -> {
                    driver.ping();
                    releaseDue(driver);
                });
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

    /** Adds a release, to be sent now or, if the TaskManager is away, when it is back. */
    void addRelease(int shuffleId) {
        synchronized (dueReleases) {
            if (dueReleases.size() >= MAX_DUE_RELEASES) {
                dueReleases.remove(dueReleases.iterator().next());
            }
            dueReleases.add(shuffleId);
        }
    }

    /** Sends the pending releases; returns whether all of them succeeded. */
    synchronized boolean release() {
        return attempt("release of shuffles", this::releaseDue);
    }

    private void releaseDue(DriverClient driver) throws IOException {
        List<Integer> due;
        synchronized (dueReleases) {
            due = new ArrayList<>(dueReleases);
        }
        for (int shuffleId : due) {
            long freed = driver.releaseShuffle(shuffleId);
            LOG.debug("Shuffle {} released at {}: {} bytes", shuffleId, endpoint, freed);
            synchronized (dueReleases) {
                dueReleases.remove(shuffleId);
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
                    client = new DriverClient(endpoint, options, lost);
                    taskManager = client.taskManager();
                    listener.listen(client, this);
                }
                exchange.run(client);
                connected = true;
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

    private void failed(String what, Exception e) {
        String why = e instanceof IOException ? e.getMessage() : e.toString();
        if (connected) {
            LOG.warn("TaskManager at {}: {} failed: {}", endpoint, what, why);
        }
        connected = false;
        lastFailure =
                e instanceof ClientException.ConnectFailed connectFailed
                        ? connectFailed.summary()
                        : endpoint + ": " + why;
        if (client != null) {
            client.close();
            client = null;
            listener.closed();
        }
        if (e instanceof ClientException.Interrupted) {
            LOG.debug("Interrupted while talking to {}", endpoint, e);
        }
    }

    synchronized void close() {
        closed = true;
        connected = false;
        if (client != null) {
            client.close();
            client = null;
            listener.closed();
        }
    }

    @FunctionalInterface
    private interface Exchange {
        void run(DriverClient client) throws IOException;
    }
}
