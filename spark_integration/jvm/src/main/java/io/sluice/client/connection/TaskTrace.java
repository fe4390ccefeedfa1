package io.sluice.client.connection;

import io.sluice.client.wire.Frames;
import io.sluice.client.wire.Message;
import java.io.IOException;

/**
 * The trace that a task belongs to; the TaskManagers make its spans.
 *
 * @param traceparent the parent span, in the form of W3C Trace Context; if empty, the TaskManager
 *     begins a trace
 * @param stageId Spark's stage
 * @param taskAttemptId Spark's task attempt
 */
public record TaskTrace(String traceparent, long stageId, long taskAttemptId) {
    /** A longer text is not a traceparent. */
    private static final int MAX_CHARACTERS = 256;

    public TaskTrace {
        if (traceparent == null || traceparent.length() > MAX_CHARACTERS) {
            traceparent = "";
        }
    }

    /** Sends the context of a map output or gate to a TaskManager that makes traces. */
    public void send(TaskManagerConnection connection, long number) throws IOException {
        if ((connection.taskManager().features() & Frames.TRACES) != 0) {
            connection.send(new Message.TraceContext(number, traceparent, stageId, taskAttemptId));
        }
    }
}
