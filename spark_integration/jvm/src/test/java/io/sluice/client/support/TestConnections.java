package io.sluice.client.support;

import io.sluice.client.connection.ConnectionPool;
import io.sluice.client.connection.ConnectionSource;
import io.sluice.client.connection.TaskManagerConnection;
import io.sluice.client.connection.TaskTrace;
import io.sluice.client.failover.ReplicaLocator;
import io.sluice.client.failover.UnreachableCache;
import io.sluice.client.wire.Endpoint;
import java.io.IOException;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Stream;

/**
 * Leases connections to one mock daemon, which may have replaced another one, or to others while it
 * is avoided.
 */
public final class TestConnections implements ConnectionSource {
    private final ConnectionPool pool;
    private final int role;
    private final Endpoint endpoint;
    public long returnTimeoutMillis = 2_000;
    public long refusedTimeoutMillis = 2_000;

    /** Runs once, after a connection has been leased. */
    public Runnable onLease = () -> {};

    public final AtomicInteger reconnected = new AtomicInteger();
    public final AtomicInteger refetched = new AtomicInteger();
    public final AtomicInteger failedOver = new AtomicInteger();
    public ReplicaLocator places = ReplicaLocator.EMPTY;
    public TaskTrace trace;
    public final UnreachableCache absences = new UnreachableCache();
    public final List<Endpoint> passedOver = new CopyOnWriteArrayList<>();

    /** Where others are reached, in the order in which they are tried. */
    public final List<Endpoint> others = new CopyOnWriteArrayList<>();

    public TestConnections(ConnectionPool pool, Endpoint endpoint, int role) {
        this.pool = pool;
        this.role = role;
        this.endpoint = endpoint;
    }

    @Override
    public TaskManagerConnection lease() throws IOException {
        Endpoint best =
                Stream.concat(Stream.of(endpoint), others.stream())
                        .filter(each -> !passedOver.contains(each))
                        .findFirst()
                        .orElse(endpoint);
        TaskManagerConnection connection = pool.lease(best, role);
        Runnable hook = onLease;
        onLease = () -> {};
        hook.run();
        return connection;
    }

    @Override
    public TaskManagerConnection leaseAgain(Endpoint endpoint, String taskManagerId)
            throws IOException {
        return pool.lease(endpoint, role);
    }

    @Override
    public long returnTimeoutMillis() {
        return returnTimeoutMillis;
    }

    @Override
    public long refusedTimeoutMillis() {
        return refusedTimeoutMillis;
    }

    @Override
    public void release(TaskManagerConnection connection) {
        pool.release(connection);
    }

    @Override
    public void avoid(Endpoint endpoint) {
        passedOver.add(endpoint);
    }

    @Override
    public void silent(TaskManagerConnection connection) {
        ConnectionSource.super.silent(connection);
        passedOver.add(connection.endpoint());
    }

    @Override
    public void reconnected() {
        reconnected.incrementAndGet();
    }

    @Override
    public ReplicaLocator replicas() {
        return places;
    }

    @Override
    public UnreachableCache unreachable() {
        return absences;
    }

    @Override
    public void failedOver() {
        failedOver.incrementAndGet();
    }

    @Override
    public void refetched() {
        refetched.incrementAndGet();
    }

    @Override
    public TaskTrace trace() {
        return trace;
    }
}
