package io.sluice.spark;

import io.sluice.client.ClientOptions;
import io.sluice.client.Endpoint;
import io.sluice.client.Message;
import java.util.Collection;
import java.util.LinkedHashSet;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;

/** The driver's links to TaskManagers, one for each endpoint, and their pings. Thread safe. */
final class DriverLinks {
    private final ScheduledExecutorService threads;
    private final long pingIntervalMillis;
    private final DriverListener listener;
    private final Consumer<Message.OutputsLost> lost;
    private final Map<String, DriverLink> links = new ConcurrentHashMap<>();
    private ClientOptions options;

    /** Endpoints that came before the options, without which no link can greet. */
    private final Set<Endpoint> early = new LinkedHashSet<>();

    /**
     * @param threads ping until they are shut down
     * @param lost called with the map outputs that a TaskManager has lost, by one of the threads
     */
    DriverLinks(
            ScheduledExecutorService threads,
            long pingIntervalMillis,
            Consumer<Message.OutputsLost> lost) {
        this.threads = threads;
        this.pingIntervalMillis = pingIntervalMillis;
        this.listener = new DriverListener(threads);
        this.lost = lost;
    }

    /** Begins with the links; returns false if they have begun before. */
    synchronized boolean start(ClientOptions withOptions) {
        if (options != null) {
            return false;
        }
        options = withOptions;
        early.forEach(this::add);
        early.clear();
        return true;
    }

    /** Adds a link, or remembers its endpoint until the links begin. */
    synchronized void add(Endpoint endpoint) {
        if (options == null) {
            early.add(endpoint);
        } else if (!contains(endpoint)) {
            DriverLink link = new DriverLink(endpoint, options, listener, lost);
            links.put(endpoint.toString(), link);
            // It runs until the threads are shut down.
            ScheduledFuture<?> unused =
                    threads.scheduleWithFixedDelay(
                            link::ping, 0, pingIntervalMillis, TimeUnit.MILLISECONDS);
        }
    }

    /** Closes the links. */
    void close() {
        values().forEach(DriverLink::close);
        listener.close();
    }

    boolean contains(Endpoint endpoint) {
        return links.containsKey(endpoint.toString());
    }

    /** Returns the links, in no particular order; links may come meanwhile. */
    Collection<DriverLink> values() {
        return links.values();
    }
}
