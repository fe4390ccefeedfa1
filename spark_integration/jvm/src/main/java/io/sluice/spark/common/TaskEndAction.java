package io.sluice.spark.common;

import org.apache.spark.TaskContext;
import org.apache.spark.util.TaskCompletionListener;

/**
 * Runs an action when a task ends, unless the action is cancelled first.
 *
 * <p>Spark keeps a listener until the task ends, and one task may have thousands of readers. This
 * object therefore holds only the action, and drops it when it has run or is cancelled.
 */
public final class TaskEndAction implements TaskCompletionListener {
    private volatile Runnable action;

    private TaskEndAction(Runnable action) {
        this.action = action;
    }

    /**
     * Registers an action, which also runs when the task fails or is killed. If the task has ended
     * already, the action runs at once.
     */
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
