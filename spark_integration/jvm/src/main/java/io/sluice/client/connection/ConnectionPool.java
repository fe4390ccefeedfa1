package io.sluice.client.connection;

import io.sluice.client.wire.ClientException;
import io.sluice.client.wire.Endpoint;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * The idle connections of an executor. A task leases a connection, and releases it if it is clean
 * or closes it. Thread safe.
 */
public final class ConnectionPool implements AutoCloseable {
    private record Key(Endpoint endpoint, int role) {}

    private final ClientOptions options;
    private final int maxIdle;
    private final Map<Key, Deque<TaskManagerConnection>> idle = new HashMap<>();
    private int idleCount;
    private boolean closed;

    /**
     * @param maxIdle maximum number of idle connections, all roles and endpoints together; so many
     *     for each data process of a TaskManager, because a task may have a connection to each
     */
    public ConnectionPool(ClientOptions options, int maxIdle) {
        this.options = options;
        this.maxIdle = maxIdle;
    }

    /**
     * Leases an idle connection that works, otherwise a new one.
     *
     * @throws ClientException.ConnectFailed if no TaskManager answers there
     */
    public TaskManagerConnection lease(Endpoint endpoint, int role) throws ClientException {
        Key key = new Key(endpoint, role);
        while (true) {
            TaskManagerConnection connection = takeIdle(key);
            if (connection == null) {
                return TaskManagerConnection.connect(endpoint, options, role);
            }
            if (connection.isReusable()) {
                return connection;
            }
            connection.close();
        }
    }

    private synchronized TaskManagerConnection takeIdle(Key key) {
        Deque<TaskManagerConnection> connections = idle.get(key);
        TaskManagerConnection connection = connections == null ? null : connections.pollLast();
        if (connection != null) {
            idleCount--;
        }
        return connection;
    }

    /** Takes back a clean connection. */
    public void release(TaskManagerConnection connection) {
        connection.setHandler(null);
        synchronized (this) {
            if (!closed && idleCount < maxIdle * connection.taskManager().processes()) {
                idle.computeIfAbsent(
                                new Key(connection.endpoint(), connection.role()),
                                k -> new ArrayDeque<>())
                        .addLast(connection);
                idleCount++;
                return;
            }
        }
        connection.close();
    }

    /** Closes the idle connections to an endpoint, whose TaskManager does not answer. */
    public void drop(Endpoint endpoint) {
        List<TaskManagerConnection> dropped = new ArrayList<>();
        synchronized (this) {
            idle.forEach(
                    (key, connections) -> {
                        if (key.endpoint().equals(endpoint)) {
                            dropped.addAll(connections);
                            connections.clear();
                        }
                    });
            idleCount -= dropped.size();
        }
        dropped.forEach(TaskManagerConnection::close);
    }

    public synchronized int idleConnections() {
        return idleCount;
    }

    @Override
    public synchronized void close() {
        closed = true;
        for (Deque<TaskManagerConnection> connections : idle.values()) {
            connections.forEach(TaskManagerConnection::close);
        }
        idle.clear();
        idleCount = 0;
    }
}
