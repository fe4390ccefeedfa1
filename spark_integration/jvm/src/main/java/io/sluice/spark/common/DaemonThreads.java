package io.sluice.spark.common;

import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.TimeUnit;

/** Daemon threads of the plugin. */
public final class DaemonThreads {
    private static final long IDLE_SECONDS = 30;

    private DaemonThreads() {}

    /** Makes threads of the given name. */
    public static ThreadFactory named(String name) {
        return work -> {
            Thread thread = new Thread(work, name);
            thread.setDaemon(true);
            return thread;
        };
    }

    /** Makes an executor with one thread, which ends when it is idle for a while. */
    public static ScheduledThreadPoolExecutor single(String name) {
        ScheduledThreadPoolExecutor thread = new ScheduledThreadPoolExecutor(1, named(name));
        thread.setKeepAliveTime(IDLE_SECONDS, TimeUnit.SECONDS);
        thread.allowCoreThreadTimeOut(true);
        return thread;
    }
}
