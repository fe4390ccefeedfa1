package io.sluice.spark.common;

import org.apache.spark.TaskContext;
import org.apache.spark.util.TaskCompletionListener;

/**
 * Runs an action when a task ends, unless the action is cancelled first. Drops the action then,
 * because Spark keeps listeners until the task ends, and a task may have thousands of readers.
 */
public final class TaskEndAction implements TaskCompletionListener {
    private volatile Runnable action;

    private TaskEndAction(Runnable action) {
        this.action = action;
    }

    /** Registers an action, also for failed and killed tasks; runs it at once after the end. */
    public static TaskEndAction register(TaskContext context, Runnable action) {
        TaskEndAction registered = new TaskEndAction(action);
        context.addTaskCompletionListener(registered);
        return registered;
    }

    /** Drops the action. Any thread may call it. */
    public void cancel() {
        action = null;
    }

    @Override
    public void onTaskCompletion(TaskContext context) {
        Runnable pending = action;
        action = null;
        if (pending != null) {
            pending.run();
        }
    }
}
