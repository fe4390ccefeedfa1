package io.sluice.spark.executor;

import io.sluice.client.connection.ConnectionSource;
import io.sluice.client.connection.TaskManagerConnection;
import io.sluice.client.connection.TaskTrace;
import io.sluice.client.failover.ReplicaLocator;
import io.sluice.client.failover.RetryDeadline;
import io.sluice.client.failover.UnreachableCache;
import io.sluice.client.wire.ClientException;
import io.sluice.client.wire.Endpoint;
import io.sluice.client.wire.Message;
import io.sluice.spark.common.SluiceMetrics;
import java.io.IOException;
import org.apache.spark.TaskContext;

/** Leases the connections of one task in one role. Thread safe. */
final class TaskConnections implements ConnectionSource {
    /** The local property of Spark with the parent span of a job. */
    private static final String TRACEPARENT = "traceparent";

    private final ExecutorRuntime runtime;
    private final int role;
    private final long task;
    private final long returnTimeoutMillis;
    private final long refusedTimeoutMillis;
    private final TaskTrace trace;

    /**
     * @param task chooses the data process
     * @param returnTimeoutMillis how long tasks in this role wait for a lost TaskManager
     * @param refusedTimeoutMillis how long they wait if its host refuses connections
     */
    TaskConnections(
            ExecutorRuntime runtime,
            int role,
            long task,
            long returnTimeoutMillis,
            long refusedTimeoutMillis) {
        this.runtime = runtime;
        this.role = role;
        this.task = task;
        this.returnTimeoutMillis = returnTimeoutMillis;
        this.refusedTimeoutMillis = refusedTimeoutMillis;
        this.trace = runtime.settings().traces() ? traceOf(TaskContext.get()) : null;
    }

    /** Returns the trace that the thread of the job has set, or one to begin. */
    private static TaskTrace traceOf(TaskContext context) {
        return context == null
                ? null
                : new TaskTrace(
                        context.getLocalProperty(TRACEPARENT),
                        context.stageId(),
                        context.taskAttemptId());
    }

    @Override
    public TaskManagerConnection lease() throws IOException {
        return runtime.lease(role, task, returnTimeoutMillis);
    }

    @Override
    public TaskManagerConnection leaseAgain(Endpoint endpoint, String taskManagerId)
            throws IOException {
        RetryDeadline deadline = new RetryDeadline(returnTimeoutMillis);
        while (true) {
            try {
                TaskManagerConnection connection = runtime.pool().lease(endpoint, role);
                String answers = connection.taskManager().taskManagerId();
                if (answers.equals(taskManagerId)) {
                    return connection;
                }
                runtime.pool().release(connection);
                throw new ClientException.ConnectFailed(
                        endpoint.toString(),
                        "TaskManager " + answers + " answers there now, not " + taskManagerId,
                        null);
            } catch (ClientException.ConnectFailed e) {
                if (!deadline.pause("the return of TaskManager " + taskManagerId)) {
                    throw e;
                }
            }
        }
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
        runtime.pool().release(connection);
    }

    @Override
    public void avoid(Endpoint endpoint) {
        runtime.avoid(endpoint, role);
    }

    @Override
    public void silent(TaskManagerConnection connection) {
        ConnectionSource.super.silent(connection);
        Message.HelloAck silent = connection.taskManager();
        runtime.silent(connection.endpoint());
        // The driver may know it by its data port.
        runtime.silent(Endpoint.tcp(silent.advertisedHost(), silent.dataPort()));
    }

    @Override
    public void reconnected() {
        SluiceMetrics.INSTANCE.reconnects.increment();
    }

    @Override
    public ReplicaLocator replicas() {
        return runtime.replicas();
    }

    @Override
    public UnreachableCache unreachable() {
        return runtime.unreachable();
    }

    @Override
    public TaskTrace trace() {
        return trace;
    }

    @Override
    public void failedOver() {
        SluiceMetrics.INSTANCE.sourceFailovers.increment();
    }

    @Override
    public void refetched() {
        SluiceMetrics.INSTANCE.refetches.increment();
    }
}
