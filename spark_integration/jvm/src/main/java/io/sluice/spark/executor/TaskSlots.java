package io.sluice.spark.executor;

import java.util.function.UnaryOperator;

/**
 * Computes how many tasks an executor runs at a time. Spark does not tell its cores, so they are
 * derived from the settings that define them: a host with many processors may have many small
 * executors.
 */
final class TaskSlots {
    private TaskSlots() {}

    /**
     * @param setting returns the value of one of Spark's settings, or null
     * @param processors processors of the host, which an executor uses unless a setting says
     *     otherwise: in local mode, and in standalone mode all that its worker has
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
