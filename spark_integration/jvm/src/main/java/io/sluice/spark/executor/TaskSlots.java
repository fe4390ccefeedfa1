package io.sluice.spark.executor;

import java.util.function.UnaryOperator;

/** Computes from Spark's settings how many tasks an executor runs at a time. */
final class TaskSlots {
    private TaskSlots() {}

    /**
     * @param setting returns the value of one of Spark's settings, or null
     * @param processors processors of the host: the default in local and standalone mode
     */
    static int of(UnaryOperator<String> setting, int processors) {
        String master = setting.apply("spark.master");
        int cores = processors;
        if (master != null && !master.equals("local") && !master.startsWith("local[")) {
            boolean oneUnlessSaid = master.startsWith("yarn") || master.startsWith("k8s");
            cores = number(setting, "spark.executor.cores", oneUnlessSaid ? 1 : processors);
        }
        return Math.max(1, cores / number(setting, "spark.task.cpus", 1));
    }

    private static int number(UnaryOperator<String> setting, String key, int otherwise) {
        String value = setting.apply(key);
        return value == null ? otherwise : Math.max(1, Integer.parseInt(value.trim()));
    }
}
