package io.sluice.spark.executor;

import io.sluice.client.connection.ConnectionPool;
import io.sluice.client.connection.TaskManagerConnection;
import io.sluice.client.wire.ClientException;
import io.sluice.client.wire.Endpoint;
import io.sluice.client.wire.Message;
import io.sluice.spark.common.NoTaskManagerException;
import io.sluice.spark.common.SluiceMetrics;
import java.io.IOException;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Function;
import java.util.function.LongSupplier;
import java.util.stream.Collectors;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import org.slf4j.event.Level;

/**
 * Chooses the TaskManager of an executor, and the data process of it that serves a task. Thread
 * safe.
 */
final class TaskManagerLeases {
    private static final Logger LOG = LoggerFactory.getLogger(TaskManagerLeases.class);

    /**
     * After this number of processes of a TaskManager have timed out, its host counts as down: the
     * others, which would cost a connect timeout each, are tried last.
     */
    private static final int MAX_SILENT_PROCESSES = 2;

    /** The endpoints that may be used, in the order in which to try them. */
    interface Candidates {
        /** Returns the endpoints to try first. */
        List<Endpoint> first(int role);

        /** Returns all endpoints, after asking the driver for new ones. */
        List<Endpoint> all(int role);
    }

    private final ConnectionPool pool;
    private final Candidates candidates;
    private final Function<String, NoTaskManagerException> noneAnswers;
    private final EndpointBackoff backoff;
    private final HostProcesses processes = new HostProcesses();

    /**
     * @param noneAnswers makes the exception from the reasons
     * @param clock as {@link System#nanoTime}
     */
    TaskManagerLeases(
            ConnectionPool pool,
            Candidates candidates,
            Function<String, NoTaskManagerException> noneAnswers,
            LongSupplier clock) {
        this.pool = pool;
        this.candidates = candidates;
        this.noneAnswers = noneAnswers;
        this.backoff = new EndpointBackoff(clock);
    }

    /**
     * One search for a TaskManager that answers.
     *
     * @param task chooses the data process
     * @param tried endpoints that were tried or skipped
     * @param failures why endpoints do not answer
     * @param backedOff endpoints that failed recently
     */
    private record Search(
            int role,
            long task,
            Set<Endpoint> tried,
            Map<Endpoint, ClientException.ConnectFailed> failures,
            Set<Endpoint> backedOff) {}

    /**
     * Tries the first candidates, then all that the driver knows, then those that failed recently.
     *
     * @param task any number; consecutive ones have different data processes
     */
    TaskManagerConnection lease(int role, long task) throws IOException {
        Search search =
                new Search(
                        role, task, new HashSet<>(), new LinkedHashMap<>(), new LinkedHashSet<>());
        TaskManagerConnection connection = leaseAnswering(candidates.first(role), search);
        if (connection == null) {
            connection = leaseAnswering(candidates.all(role), search);
        }
        for (Endpoint endpoint : search.backedOff()) {
            connection = connection == null ? tryLease(endpoint, search) : connection;
        }
        Map<Endpoint, ClientException.ConnectFailed> failures = search.failures();
        if (connection == null) {
            throw noneAnswers.apply(reasons(failures));
        }
        if (!failures.isEmpty()) {
            SluiceMetrics.INSTANCE.endpointFailovers.increment();
            // All tasks see the same failures: warn only of the first.
            boolean isOutdated =
                    failures.keySet().stream()
                            .anyMatch(each -> backoff.failuresInARow(each, role) == 1);
            LOG.atLevel(isOutdated ? Level.WARN : Level.DEBUG)
                    .log(
                            "Connected to {} because endpoints tried before do not answer: {}",
                            connection.endpoint(),
                            reasons(failures));
        }
        return connection;
    }

    /** Tries the endpoints in their order, Unix sockets that do not exist last. */
    private TaskManagerConnection leaseAnswering(List<Endpoint> ordered, Search search)
            throws IOException {
        List<Endpoint> missing = new ArrayList<>();
        for (Endpoint endpoint : ordered) {
            if (endpoint.isUnix() && !processes.hasSocket(endpoint)) {
                missing.add(endpoint);
                continue;
            }
            TaskManagerConnection connection = leaseUntried(endpoint, search);
            if (connection != null) {
                return connection;
            }
        }
        for (Endpoint endpoint : missing) {
            TaskManagerConnection connection = leaseUntried(endpoint, search);
            if (connection != null) {
                return connection;
            }
        }
        return null;
    }

    private TaskManagerConnection leaseUntried(Endpoint endpoint, Search search)
            throws IOException {
        return search.tried().add(endpoint) ? leaseOf(endpoint, search) : null;
    }

    /** Leases a connection to the task's process, or to another one of that TaskManager. */
    private TaskManagerConnection leaseOf(Endpoint endpoint, Search search) throws IOException {
        List<HostProcesses.DataProcess> candidates = processes.of(endpoint, search.task());
        if (candidates.isEmpty()) {
            TaskManagerConnection connection = leaseUnlessBackedOff(endpoint, search);
            if (connection == null) {
                return null;
            }
            processes.answered(endpoint, connection.taskManager());
            candidates = processes.of(endpoint, search.task());
            if (candidates.get(0).isThat(connection.taskManager())) {
                return connection;
            }
            pool.release(connection);
        }
        int silent = 0;
        for (HostProcesses.DataProcess process : candidates) {
            if (silent >= MAX_SILENT_PROCESSES) {
                backoff.avoid(process.endpoint(), search.role());
            }
            TaskManagerConnection connection = leaseUnlessBackedOff(process.endpoint(), search);
            if (connection != null) {
                if (!process.isThat(connection.taskManager())) {
                    // It has restarted with another number of processes.
                    processes.forget(endpoint);
                }
                return connection;
            }
            ClientException.ConnectFailed failure = search.failures().get(process.endpoint());
            if (failure != null && failure.getCause() instanceof ClientException.Deadline) {
                silent++;
            }
        }
        return null;
    }

    /** Leases a connection, or returns null if the endpoint fails or failed recently. */
    private TaskManagerConnection leaseUnlessBackedOff(Endpoint endpoint, Search search)
            throws IOException {
        if (!backoff.has(endpoint, search.role())) {
            return tryLease(endpoint, search);
        }
        if (!search.failures().containsKey(endpoint)) {
            search.backedOff().add(endpoint);
        }
        return null;
    }

    /** Leases a connection, or returns null and records the failure. */
    private TaskManagerConnection tryLease(Endpoint endpoint, Search search) throws IOException {
        long began = backoff.now();
        try {
            TaskManagerConnection connection = pool.lease(endpoint, search.role());
            backoff.answered(endpoint, search.role());
            return connection;
        } catch (ClientException.ConnectFailed e) {
            backoff.failed(endpoint, search.role(), began);
            search.failures().put(endpoint, e);
            return null;
        }
    }

    /** Makes tasks prefer other TaskManagers, or other processes of this one, for a while. */
    void avoid(Endpoint endpoint, int role) {
        backoff.avoid(endpoint, role);
        LOG.warn("The data process at {} has no room: trying others first", endpoint);
    }

    /** Makes tasks prefer others for a while, and no task get an idle connection to it. */
    void silent(Endpoint endpoint) {
        backoff.avoid(endpoint, Message.ROLE_CONSUMER);
        backoff.avoid(endpoint, Message.ROLE_PRODUCER);
        pool.drop(endpoint);
        LOG.warn("The TaskManager at {} does not answer: trying others first", endpoint);
    }

    private static String reasons(Map<Endpoint, ClientException.ConnectFailed> failures) {
        if (failures.isEmpty()) {
            return "the driver is not connected to any TaskManager";
        }
        return failures.values().stream()
                .map(ClientException.ConnectFailed::summary)
                .collect(Collectors.joining("; "));
    }
}
